"""Evidence: what the two ends of a connection say of its end, as columns with names that rules can be written in.

A row is a connection with both of its ends and what their agents said (`agents`). Which end closed first is what each
end says of itself; clocks of two hosts are never compared for that, but how long each end was silent is. Each function
gives a condition or a value; a condition is never null. This room never names a cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_probe_pipeline.config import Config

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class End:
    """One end of the connections; `name` is the column, `who` the word for it in sentences."""

    name: str
    who: str

    def fact(self, name: str) -> Column:
        """What is known of the end."""
        return F.col(f"{self.name}.{name}")

    def close(self, name: str) -> Column:
        """What its close says; null while it is open."""
        return F.col(f"{self.name}.close.{name}")

    def agent(self, name: str) -> Column:
        """What its agent said of itself."""
        return F.col(f"{self.name}_agent.{name}")


CLIENT, BROKER = End("connecting", "client"), End("accepting", "broker")
ENDS = (CLIENT, BROKER)
OTHER = {CLIENT: BROKER, BROKER: CLIENT}


def every(*conditions: Column) -> Column:
    """All hold; what is unknown does not."""
    return F.coalesce(reduce(and_, conditions), F.lit(False))


def some(*conditions: Column) -> Column:
    """At least one is known to hold."""
    return F.coalesce(reduce(or_, (F.coalesce(condition, F.lit(False)) for condition in conditions)), F.lit(False))


def gathered(connections: DataFrame, agents: DataFrame, clock: DataFrame) -> DataFrame:
    """The connections with the clock, per end NAME `NAME_agent` and `NAME_reset_us`, and two ages."""
    resets = agents.select("agent_id", F.explode("resets").alias("of")).select("agent_id", "of.*")
    for end in ENDS:
        said = agents.select(
            F.col("agent_id").alias("_agent"), F.struct("complete_until", "heard_us").alias(f"{end.name}_agent")
        )
        sent = resets.groupBy("agent_id", "local", "peer").agg(F.max("ts").alias(f"{end.name}_reset_us"))
        sent = sent.withColumnsRenamed({"agent_id": "_of", "local": "_local", "peer": "_peer"})
        same_socket = every(
            F.col("_of") == end.fact("agent_id"),
            F.col("_local") == end.fact("local"),
            F.col("_peer") == end.fact("peer"),
        )
        connections = (
            connections.join(F.broadcast(said), F.col("_agent") == end.fact("agent_id"), "left")
            .join(F.broadcast(sent), same_socket, "left")
            .drop("_agent", "_of", "_local", "_peer")
        )
    return connections.crossJoin(F.broadcast(clock)).withColumns(_ages_closed_together())


def _ages_closed_together() -> dict[str, Column]:
    """The least and the greatest idle age of what the client's process itself closed within the same second."""
    together = every(closed_itself(CLIENT), CLIENT.fact("workload.pid").isNotNull())
    process = (CLIENT.fact(name) for name in ("agent_id", "workload.pid", "workload.start_time"))
    # All others are alone, so that no partition of the window is large.
    window = (
        Window.partitionBy(*process, F.when(together, F.lit("")).otherwise(F.col("key")))
        .orderBy(closed_us(CLIENT))
        .rangeBetween(-SECOND_US, SECOND_US)
    )
    return {
        "least_age_us": F.min(silence_us(CLIENT)).over(window),
        "greatest_age_us": F.max(silence_us(CLIENT)).over(window),
    }


def watched(end: End) -> Column:
    """An agent has named the end."""
    return F.col(end.name).isNotNull()


def closed(end: End) -> Column:
    """The end is closed both ways."""
    return every(end.close("ts").isNotNull())


def closed_us(end: End) -> Column:
    """When the end began to close, by the clock of its host."""
    return F.coalesce(end.close("closing_ts"), end.close("ts"))


def silence_us(end: End) -> Column:
    """The idle age of the end, its whole age if no payload ever passed."""
    return F.coalesce(end.close("silence_us"), end.close("idle_us"), end.close("age_us"))


def closed_itself(end: End) -> Column:
    """The end closed before it heard that the other had, by FIN or by RST."""
    return some(
        end.close("closed_by") == "local", every(end.close("how") == "rst_sent", end.close("closed_by") != "peer")
    )


def first(end: End) -> Column:
    """The end closed first: it says so itself, and the other does not say so of itself."""
    return every(closed_itself(end), ~closed_itself(OTHER[end]))


def was_idle(end: End, config: Config) -> Column:
    """The silence before the end began to close is long enough for a limit on idle connections."""
    return every(silence_us(end) >= config.idle_minimum * SECOND_US)


def was_active(end: End, config: Config) -> Column:
    """The silence was too short for one."""
    return every(silence_us(end) < config.idle_minimum * SECOND_US)


def asked(end: End) -> Column:
    """Requests without a response."""
    return F.coalesce(end.close("in_flight"), F.lit(0))


def authenticating(end: End, config: Config) -> Column:
    """The last request was one to authenticate, and moments ago."""
    return every(
        end.close("last_api").isin("SaslHandshake", "SaslAuthenticate"),
        silence_us(end) <= config.authentication_within * SECOND_US,
    )


def stopped_listening(config: Config) -> Column:
    """The broker had closed the listening socket, and not long ago."""
    return every(BROKER.close("listener_closed_us") <= config.shutdown_within * SECOND_US)


def unanswered(config: Config) -> Column:
    """A request has no response, or it was a Produce with acks=0, which has none, and moments ago."""
    produced = every(
        BROKER.close("last_api") == "Produce",
        BROKER.close("last_acks") == 0,
        silence_us(BROKER) < config.right_after * SECOND_US,
    )
    return some(asked(BROKER) > 0, produced)


def got_reset(end: End) -> Column:
    """A received RST is the first that the end heard of a close."""
    return every(end.close("how") == "rst_received", end.close("closed_by") != "local")


def sent_reset(end: End) -> Column:
    """The socket of the end sent an RST, or its host did because the socket was gone."""
    gone = F.col(f"{end.name}_reset_us").isNotNull() & (
        end.close("ts").isNull() | (F.col(f"{end.name}_reset_us") >= closed_us(end))
    )
    return some(end.close("how") == "rst_sent", gone)


def closed_before(end: End, config: Config) -> Column:
    """The end closed by itself while the other was still open: its silence was not longer than the other's."""
    margin = config.clock_margin * SECOND_US
    return every(closed_itself(end), silence_us(end) <= silence_us(OTHER[end]) + margin)


def got_no_answer(end: End, config: Config) -> Column:
    """What the end sent after a silence was never acknowledged, until it gave up."""
    gave_up = every(
        end.close("closed_by") == "local",
        end.close("unacked_bytes") > 0,
        end.close("unanswered_retransmits") > 0,
        was_idle(end, config),
        ~exited(end),
    )
    return some(end.close("how") == "timeout", gave_up)


def held(end: End) -> Column:
    """The end is watched and never heard that the other had closed."""
    return every(watched(end), ~every(end.close("closed_by") == "peer", end.close("how") == "fin"), ~sent_reset(end))


def exited(end: End) -> Column:
    """The socket was closed by the end of its process."""
    return every(end.close("owner_exiting"))


def refused(end: End) -> Column:
    """The end saw a response that refuses the credentials."""
    return every(end.close("auth_error").isNotNull())


def closed_with_others(config: Config) -> Column:
    """The process closed others of its connections within the same second, of idle ages that differ."""
    return every(F.col("greatest_age_us") > F.col("least_age_us") * (1 + config.same_age_percent / 100))


def complete(end: End, until_us: Column) -> Column:
    """The agent of the end has sent all that it saw up to then, by the clock of its host."""
    return every(end.agent("complete_until") >= until_us)


def silent(end: End, config: Config) -> Column:
    """Nobody expects a word from the agent of the end any more."""
    return every(watched(end), F.col("now_us") - end.agent("heard_us") >= config.agent_silent * SECOND_US)


def settled(config: Config) -> Column:
    """No more is to be heard of the end of the connection, or it was waited for long enough."""

    def without(end: End) -> Column:
        """The end is not closed: the other's word has to do."""
        other = OTHER[end]
        here = every(
            watched(end), complete(end, closed_us(other) + config.clock_margin * SECOND_US) | silent(end, config)
        )
        absent = every(~watched(end), F.col("now_us") - other.fact("heard_us") >= config.other_end_wait * SECOND_US)
        return every(closed(other), ~closed(end), here | absent)

    return some(every(closed(CLIENT), closed(BROKER)), without(CLIENT), without(BROKER))
