"""Judges closed connections: names the cause of each close, with the evidence as a sentence.

The first of the `RULES` that hold names the cause. A rule that rests on an absence waits until the reports of the agent
that would have seen it are complete; the evidence states if that agent is silent or has lost something. Spark keeps the
connections and finds those to judge, which are few; each is judged on its own, on the driver. This module never reads
or writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline import session
from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.connections import SCHEMA as CONNECTION
from kafka_probe_pipeline.connections import SIDES, VERDICT
from kafka_probe_pipeline.evidence import SECOND_US, SIDE_OF, AgentProgress, End
from kafka_probe_pipeline.rules import RULES
from kafka_probe_pipeline.source import Clock, struct_of

# Connections that were judged within this time are compared with those that are judged now: connections that were
# closed together may be judged in different batches.
_COMPARED_US = 30 * SECOND_US

ConnectionRow = Mapping[str, Any]

# A row of the table. `ts`: when the connection was closed, by the clock of the end `by`; `judged_ts` is of Kafka's.
SCHEMA = struct_of(
    {
        **dict.fromkeys(("ts", "judged_ts"), T.TimestampType()),
        **{name: VERDICT[name].dataType for name in ("cause", "evidence", "by", "idle_us", "refused_bytes")},
        **{field.name: field.dataType for field in CONNECTION if field.name != "verdict"},
    }
)


@dataclass(frozen=True, slots=True)
class Agents:
    """The last reports of all agents, and the resets that their hosts sent, by agent, local and far end."""

    progress: Mapping[str, AgentProgress]
    resets: Mapping[tuple[str, str, str], int]

    @classmethod
    def of(cls, agents: Iterable[Row], resets: Iterable[Row]) -> Agents:
        """Rows of `agents.SCHEMA` without resets, and of `resets_between`."""
        progress = {}
        for row in agents:
            times = ("complete_until", "last_seen_us", "complete_since", "resets_since")
            progress[row["agent_id"]] = AgentProgress(**{name: row[name] or 0 for name in times})
        return cls(progress, {(row["agent_id"], row["local"], row["peer"]): row["ts"] for row in resets})


def verdicts(connections: DataFrame, agents: DataFrame, clock: Clock, config: Config) -> DataFrame:
    """Return the connections with each `verdict` that can be given now; the same DataFrame if there is none."""
    is_closed = F.col("client.close").isNotNull() | F.col("server.close").isNotNull()
    recent = F.col("verdict.judged_us") > clock.now_us - _COMPARED_US - config.closed_together * SECOND_US
    concerned = connections.where(is_closed & (F.col("verdict").isNull() | recent))
    of_concern = concerned.collect()
    if all(row["verdict"] for row in of_concern):
        return connections
    reports = Agents.of(
        agents.drop("node", "open", "resets").collect(), agents.transform(resets_between, concerned).collect()
    )
    new = [*judged([row.asDict(recursive=True) for row in of_concern], reports, clock, config)]
    if not new:
        return connections
    found = session.rows(connections.sparkSession, ({"key": key, "new": verdict} for key, verdict in new), _GIVEN)
    with_new = connections.join(F.broadcast(found), "key", "left")
    return with_new.withColumn("verdict", F.coalesce("verdict", "new")).select(*CONNECTION.names)


def resets_between(agents: DataFrame, connections: DataFrame) -> DataFrame:
    """Return when the host of an end last sent a reset to the other end: `agent_id`, `local`, `peer` and `ts`.

    Of the ends of the connections only: all agents together may have sent more than the driver can hold.
    """
    keys = ["agent_id", "local", "peer"]
    sent = agents.select("agent_id", F.explode("resets").alias("reset")).select("agent_id", "reset.*")
    ends = connections.select(F.explode(F.array(*SIDES)).alias("end")).select("end.*").select(keys)
    return sent.join(F.broadcast(ends), keys, "left_semi").groupBy(keys).agg(F.max("ts").alias("ts"))


_GIVEN = struct_of({"key": CONNECTION["key"].dataType, "new": VERDICT})


def judged(
    connections: Sequence[ConnectionRow], agents: Agents, clock: Clock, config: Config
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return key and verdict of the connections that get one now. Those that have one are compared with them."""

    def end(name: str, of: ConnectionRow) -> End:
        known = of[SIDE_OF[name]]
        progress = agents.progress.get(known["agent_id"]) if known else None
        reset_us = agents.resets.get((known["agent_id"], known["local"], known["peer"])) if known else None
        return End(name, known, progress, reset_us, (0, 0), clock.now_us, config)

    clients = [end("client", one) for one in connections]
    together = silences_together(clients, config.closed_together * SECOND_US)
    for one, client, silences_us in zip(connections, clients, together, strict=True):
        if one["verdict"] is None:
            verdict = _verdict(replace(client, silences_us=silences_us), end("broker", one), config)
            if verdict:
                yield one["key"], {"batch_id": clock.batch_id, "judged_us": clock.now_us, **verdict}


def silences_together(clients: Sequence[End], within_us: float) -> list[tuple[int, int]]:
    """Return the least and the greatest silence of what the process of each client itself closed within that time, µs.

    Both are the client's own silence if its process closed nothing else.
    """
    found = [(client.silence_us, client.silence_us) for client in clients]
    processes: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, client in enumerate(clients):
        owner = client.known and client.known["workload"]
        if client.known and client.itself and owner and owner["pid"] is not None:
            processes[client.known["agent_id"], owner["pid"], owner["start_time"]].append(number)
    for closed in processes.values():
        closed.sort(key=lambda number: clients[number].closed_us)
        times = [clients[number].closed_us for number in closed]
        silences = [clients[number].silence_us for number in closed]
        for number, extremes in zip(closed, _extremes(times, silences, within_us), strict=True):
            found[number] = extremes
    return found


def _extremes(times: Sequence[int], values: Sequence[int], within_us: float) -> Iterator[tuple[int, int]]:
    """Yield the least and the greatest of the values within that time of each; `times` ascend.

    least and greatest: indices into `values`, as monotonic queues: the first is that of the least or greatest value.
    """
    least: deque[int] = deque()
    greatest: deque[int] = deque()
    end = 0
    for time_us in times:
        while end < len(times) and times[end] <= time_us + within_us:
            while least and values[least[-1]] >= values[end]:
                least.pop()
            while greatest and values[greatest[-1]] <= values[end]:
                greatest.pop()
            least.append(end)
            greatest.append(end)
            end += 1
        for indices in (least, greatest):
            while times[indices[0]] < time_us - within_us:
                indices.popleft()
        yield values[least[0]], values[greatest[0]]


def _verdict(client: End, broker: End, config: Config) -> dict[str, Any] | None:
    """Return the verdict on a connection from both of its ends; None while it waits."""
    if not _settled(client, broker, config):
        return None
    pairs = {"client": (client, broker), "broker": (broker, client)}
    rule = next(rule for rule in RULES if rule.holds(*pairs[rule.by]))
    end, other = pairs[rule.by]
    complete = True
    # The agent of the end reports for that long afterwards what else the process closed.
    witness, margin = (end, config.closed_together) if rule.rests_on == "end" else (other, config.clock_margin)
    if rule.rests_on:
        margin_us = margin * SECOND_US
        since_us = end.closed_us - end.silence_us - margin_us
        # A reset from the other end contradicts a rule that rests on it, and other closes one that rests on this end.
        lost = witness.lost_since(since_us) or (rule.rests_on == "other" and witness.resets_dropped_since(since_us))
        complete = not lost and witness.reported_until(end.closed_us + margin_us)
        if not (complete or lost or witness.silent):
            return None
    words = [rule.words.format(end=end, other=other), *map(_missing_report, (client, broker))]
    if not complete:
        words.append(f"; the cause would be {rule.cause} if the agent at the {witness.name} had reported everything")
    return {
        "cause": rule.cause if complete else "unknown",
        "evidence": "".join(words),
        "by": SIDE_OF[rule.by],
        "idle_us": end.silence_us,
        "closed_us": end.closed_us,
        "refused_bytes": end.produced_bytes if complete and rule.cause == "rejected_request" else None,
    }


def _settled(client: End, broker: End, config: Config) -> bool:
    """Return True if no further report of the close is expected, or the wait for it was long enough."""
    if client.closed and broker.closed:
        return True
    open_end, closed_end = (broker, client) if client.closed else (client, broker)
    if open_end.watched:
        return open_end.silent or open_end.reported_until(closed_end.closed_us + config.clock_margin * SECOND_US)
    assert closed_end.known
    return bool(open_end.now_us - closed_end.known["last_seen_us"] >= config.other_end_wait * SECOND_US)


def _missing_report(end: End) -> str:
    """Return why an end did not report its close; an empty text if it did."""
    if not end.watched:
        return f"; no agent watched the {end.name}"
    if not end.closed and end.silent:
        return f"; the agent at the {end.name} has not reported since {end.last_report}"
    return ""


def given(connections: DataFrame, batch_id: int) -> DataFrame:
    """Return the verdicts of one batch, with their connections: rows of the table of verdicts."""
    return (
        connections.where(F.col("verdict.batch_id") == batch_id)
        .select("verdict.*", *(name for name in connections.columns if name != "verdict"))
        .withColumns({"ts": F.timestamp_micros("closed_us"), "judged_ts": F.timestamp_micros("judged_us")})
        .select(*SCHEMA.names)
    )


def counted(connections: DataFrame, clock: Clock, config: Config) -> tuple[Counter[str], Counter[str]]:
    """Return how many verdicts of each cause are of this batch, and how many of the last window."""
    recent = F.col("verdict.judged_us") > clock.now_us - config.storm_window * SECOND_US
    rows = connections.where(recent).select("verdict.cause", "verdict.batch_id").collect()
    return Counter(row["cause"] for row in rows if row["batch_id"] == clock.batch_id), Counter(
        row["cause"] for row in rows
    )
