"""Evidence: what each end of a connection says of its close, as facts that rules can be written in.

A row gets the columns `client` and `broker`, structs of `FACTS`: conditions that are never null, times, and texts for
sentences. Which end closed first is what each end says of itself; clocks of two hosts are never compared for that, but
how long each end was silent is. This room never names a cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_probe_pipeline.config import Config

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class End:
    """One end of the connections: `name` is its column there, `who` that of its facts and the word for it."""

    name: str
    who: str
    config: Config

    def of(self, name: str) -> Column:
        """What is known of the end."""
        return F.col(f"{self.name}.{name}")

    def close(self, name: str) -> Column:
        """What its close says; null while it is open."""
        return F.col(f"{self.name}.close.{name}")

    @property
    def silence_us(self) -> Column:
        """Its idle age; its whole age if no payload ever passed."""
        return F.coalesce(self.close("silence_us"), self.close("idle_us"), self.close("age_us"), F.lit(0))

    @property
    def closed_us(self) -> Column:
        """When it began to close, by the clock of its host."""
        return F.coalesce(self.close("closing_ts"), self.close("ts"))

    def silent_for(self, seconds: float) -> Column:
        """Its idle age is at least that."""
        return self.silence_us >= seconds * SECOND_US


def ends(config: Config) -> tuple[End, End]:
    """The client's end and the broker's."""
    return End("connecting", "client", config), End("accepting", "broker", config)


def every(*conditions: Column) -> Column:
    """All hold; what is not known does not."""
    return F.coalesce(reduce(and_, conditions), F.lit(False))


def some(*conditions: Column) -> Column:
    """At least one is known to hold."""
    return reduce(or_, (F.coalesce(condition, F.lit(False)) for condition in conditions))


def watched(end: End) -> Column:
    """An agent has named the end."""
    return F.col(end.name).isNotNull()


def closed(end: End) -> Column:
    """The end is closed both ways."""
    return end.close("ts").isNotNull()


def itself(end: End) -> Column:
    """The end closed before it heard that the other had, by FIN or by RST."""
    return some(
        end.close("closed_by") == "local", (end.close("how") == "rst_sent") & (end.close("closed_by") != "peer")
    )


def heard_fin(end: End) -> Column:
    """The end heard of the other's close by a FIN."""
    return every(end.close("closed_by") == "peer", end.close("how") == "fin")


def got_reset(end: End) -> Column:
    """A received RST is the first that the end heard of a close."""
    return every(end.close("how") == "rst_received", end.close("closed_by") != "local")


def sent_reset(end: End) -> Column:
    """The socket of the end sent an RST, or its host did because the socket was gone."""
    by_host = F.col(f"{end.who}_reset_us")
    return some(
        end.close("how") == "rst_sent", by_host.isNotNull() & end.close("ts").isNull(), by_host >= end.closed_us
    )


def idle(end: End) -> Column:
    """The silence before the close is long enough for a limit on idle connections."""
    return every(closed(end), end.silent_for(end.config.idle_minimum))


def no_answer(end: End) -> Column:
    """What the end sent was never acknowledged: it timed out, or gave up what it had sent after a silence."""
    sent = (end.close("unacked_bytes") > 0) & (end.close("unanswered_retransmits") > 0)
    gave_up = every(end.close("closed_by") == "local", sent, idle(end), ~exited(end))
    return some(end.close("how") == "timeout", gave_up)


def exited(end: End) -> Column:
    """The socket was closed by the end of its process."""
    return every(end.close("owner_exiting"))


def ended(end: End) -> Column:
    """The process closed the socket and ended a moment later."""
    return every(end.close("owner_ended"))


def left(end: End) -> Column:
    """The last request was to leave the consumer group."""
    return every(end.close("last_api") == "LeaveGroup")


def refused(end: End) -> Column:
    """The end saw a response that refuses the credentials."""
    return end.close("auth_error").isNotNull()


def authenticating(end: End) -> Column:
    """The last request was one to authenticate, and moments ago."""
    asked_to = end.close("last_api").isin("SaslHandshake", "SaslAuthenticate")
    return every(asked_to, ~end.silent_for(end.config.authentication_within))


def stopped_listening(end: End) -> Column:
    """The last socket that listened on the port had been closed, and not long ago."""
    return every(end.close("listener_closed_us") <= end.config.shutdown_within * SECOND_US)


def asked(end: End) -> Column:
    """Requests without a response."""
    return F.coalesce(end.close("in_flight"), F.lit(0))


def owed(end: End) -> Column:
    """A request has no response, or was a Produce with acks=0, which has none, and moments ago."""
    without = (end.close("last_api") == "Produce") & (end.close("last_acks") == 0)
    return some(asked(end) > 0, without & ~end.silent_for(end.config.right_after))


def silent(end: End) -> Column:
    """Its agent gave no word for so long that nobody expects one."""
    return every(F.col("now_us") - F.col(f"{end.who}_agent.heard_us") >= end.config.agent_silent * SECOND_US)


def complete_until(end: End) -> Column:
    """Up to then its agent has told of everything, by the clock of its host."""
    return F.coalesce(f"{end.who}_agent.complete_until", F.lit(0))


def seconds(microseconds: Column) -> Column:
    """A time as `12.3 s`."""
    return F.when(microseconds.isNotNull(), F.format_string("%.1f s", microseconds / SECOND_US))


def _text(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("?"))


_CONDITIONS: tuple[Callable[[End], Column], ...] = (
    *(watched, closed, itself, heard_fin, got_reset, sent_reset, idle, no_answer, exited, ended, left, refused),
    *(authenticating, stopped_listening, owed, silent),
)
FACTS: dict[str, Callable[[End], Column]] = {
    **{condition.__name__: condition for condition in _CONDITIONS},
    "asked": asked,
    "complete_until": complete_until,
    "silence_us": lambda end: end.silence_us,
    "closed_us": lambda end: end.closed_us,
    "heard_us": lambda end: end.of("heard_us"),
    # Texts.
    "silence": lambda end: seconds(end.silence_us),
    "api": lambda end: F.coalesce(end.close("last_api"), F.lit("bytes that cannot be read")),
    "process": lambda end: F.concat(
        _text(end.of("workload.comm")), F.lit("["), _text(end.of("workload.pid")), F.lit("]")
    ),
    "how": lambda end: _text(end.close("how")),
    "error": lambda end: _text(end.close("auth_error")),
    "unacked": lambda end: F.coalesce(end.close("unacked_bytes"), F.lit(0)),
    "unanswered": lambda end: F.coalesce(end.close("unanswered_retransmits"), F.lit(0)),
    "since_listening": lambda end: _text(seconds(end.close("listener_closed_us"))),
    "last_word": lambda end: _text(F.date_format(F.timestamp_micros(complete_until(end)), "HH:mm:ss")),
}


def with_facts(connections: DataFrame, agents: DataFrame, clock: DataFrame, config: Config) -> DataFrame:
    """The connections with `client`, `broker`, the clock, and whether the client's process closed others with it."""
    resets = agents.select("agent_id", F.explode("resets").alias("of")).select("agent_id", "of.*")
    both = ends(config)
    for end in both:
        said = agents.select(
            F.col("agent_id").alias("_agent"), F.struct("complete_until", "heard_us").alias(f"{end.who}_agent")
        )
        sent = (
            resets.groupBy("agent_id", "local", "peer")
            .agg(F.max("ts").alias(f"{end.who}_reset_us"))
            .withColumnsRenamed({"agent_id": "_of", "local": "_local", "peer": "_peer"})
        )
        of_socket = [F.col(f"_{name}") == end.of(fact) for name, fact in _SOCKET.items()]
        connections = (
            connections.join(F.broadcast(said), F.col("_agent") == end.of("agent_id"), "left")
            .join(F.broadcast(sent), of_socket, "left")
            .drop("_agent", *(f"_{name}" for name in _SOCKET))
        )
    return (
        connections.crossJoin(F.broadcast(clock))
        .withColumns({end.who: F.struct(*(of(end).alias(name) for name, of in FACTS.items())) for end in both})
        .transform(_with_those_closed_together, config)
    )


_SOCKET = {"of": "agent_id", "local": "local", "peer": "peer"}


def _with_those_closed_together(connections: DataFrame, config: Config) -> DataFrame:
    """With the idle ages of what the client's process itself closed within the same second."""
    process = [F.col(f"connecting.{name}") for name in ("agent_id", "workload.pid", "workload.start_time")]
    together = every(F.col("client.itself"), process[1].isNotNull())
    # All others are alone, so that no partition of the window is large.
    window = (
        Window.partitionBy(*process, F.when(together, F.lit("")).otherwise(F.col("key")))
        .orderBy("client.closed_us")
        .rangeBetween(-SECOND_US, SECOND_US)
    )
    least, greatest = F.min("client.silence_us").over(window), F.max("client.silence_us").over(window)
    return connections.withColumns({"least_us": least, "greatest_us": greatest}).withColumns(
        {
            "closed_with_others": F.col("greatest_us")
            > F.col("least_us") * (1 + config.same_age_percent / 100) + config.idle_minimum * SECOND_US,
            "ages": F.concat_ws(" to ", seconds(F.col("least_us")), seconds(F.col("greatest_us"))),
        }
    )
