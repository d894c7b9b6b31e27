"""Connections: `open`, `flow` and `close` events of both ends in, one row per connection out.

The ends are joined by `flow_id`, which is the same on both hosts. An end without one, which an agent listed when it
started, has that of the agent before it, or is a connection of its own until it gets one. Times of events are of the
clock of their host and are never compared with another host's; `last_seen_us` is of Kafka's clock. Pure functions of
DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe import events as schema
from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.source import Clock, once, spark_schema, struct_of
from kafka_probe_pipeline.sums import OVERFLOWED, shown

SIDES = ("client", "server")
KINDS = ("open", "flow", "close")
FACTS = (
    "node",
    "netns",
    "side",
    "flow_id",
    "local",
    "peer",
    "cluster_id",
    "workload",
    "client",
    "opaque",
    "found",
    "nat",
)
TOTALS = ("requests", "request_bytes", "response_bytes")

_EVENT = {field.name: field.dataType for field in spark_schema()}
_LONG, _STRING, _BOOLEAN = T.LongType(), T.StringType(), T.BooleanType()

_OF_OPEN = {field.name for field in schema.own_fields("open")}
_OF_CLOSE = [field.name for field in schema.own_fields("close") if field.name not in _OF_OPEN]

CLOSE = struct_of({name: _EVENT[name] for name in ("ts", *_OF_CLOSE)})
END = struct_of(
    {
        "agent_id": _STRING,
        "conn_id": _STRING,
        **{name: _EVENT[name] for name in FACTS},
        "opened_us": _LONG,
        "close": CLOSE,
        **dict.fromkeys(TOTALS, _LONG),
        "topics": T.ArrayType(_STRING),
        "topics_cut": _BOOLEAN,
        "last_seen_us": _LONG,
    }
)
# Why it was closed, once that is known: `verdicts` fills it in. `closed_us` is of the clock of the end `by`.
VERDICT = struct_of(
    {
        "batch_id": _LONG,
        "judged_us": _LONG,
        "cause": _STRING,
        "evidence": _STRING,
        "by": _STRING,
        "idle_us": _LONG,
        "closed_us": _LONG,
    }
)
SCHEMA = struct_of(
    {
        "key": _STRING,
        "flow_id": _STRING,
        "state": _STRING,
        "ends": _STRING,
        "client": END,
        "server": END,
        "verdict": VERDICT,
    }
)


def connections(
    events: DataFrame, before: DataFrame, agents_before: DataFrame, clock: Clock, config: Config
) -> DataFrame:
    """The connections `before`, brought up to date by the events of a batch: columns of `SCHEMA`."""
    about = events.where(F.col("kind").isin(*KINDS) & F.col("conn_id").isNotNull())
    new = about.transform(once, agents_before).transform(pieces)
    return (
        before.transform(ends)
        .unionByName(new, allowMissingColumns=True)
        .transform(merged, config.topics_kept)
        .transform(identified)
        .transform(joined)
        .transform(within_limits, clock, config)
    )


def pieces(events: DataFrame) -> DataFrame:
    """Each event as an end of which it knows a part, with its `seq`."""

    def of(kind: str, value: Column) -> Column:
        return F.when(F.col("kind") == kind, value)

    named = F.transform("topics", lambda topic: F.coalesce(topic["topic"], topic["topic_id"]))
    first_seen = F.coalesce(of("open", F.col("ts")), of("close", F.col("ts") - F.col("age_us")))
    return events.select(
        "agent_id",
        "conn_id",
        "seq",
        *FACTS,
        first_seen.alias("opened_us"),
        of("close", _struct(CLOSE.names)).alias("close"),
        of("flow", _struct(("seq", *TOTALS))).alias("counted"),
        of("flow", F.array_compact(named)).alias("topics"),
        F.lit(False).alias("topics_cut"),
        F.col("received_us").alias("last_seen_us"),
    )


def ends(connections: DataFrame) -> DataFrame:
    """The ends of the connections, each with the verdict on its connection, as older than any event."""
    before = F.lit(-1).cast("long").alias("seq")
    return (
        connections.select(F.explode(F.array_compact(F.array(*SIDES))).alias("end"), "verdict")
        .select("end.*", before, "verdict")
        .withColumn("counted", F.struct("seq", *TOTALS))
        .drop(*TOTALS)
    )


def merged(pieces: DataFrame, topics_kept: int) -> DataFrame:
    """Return one row per end: the newest value of each fact, and the sums of the flows, each counted once.

    An agent that retries writes some events twice.
    """

    def newest(value: str) -> Column:
        return F.expr(f"max_by({value}, seq) FILTER (WHERE {value} IS NOT NULL) AS {value}")

    def total(name: str) -> Column:
        known = f"filter(counted.{name}, count -> count IS NOT NULL)"
        plus = f"(sum, count) -> coalesce(try_add(sum, count), {OVERFLOWED}L)"
        return F.expr(f"if(size({known}) > 0, aggregate({known}, 0L, {plus}), NULL)")

    topics = F.array_distinct(F.flatten(F.collect_list("topics")))
    return (
        pieces.groupBy("agent_id", "conn_id")
        .agg(
            *map(newest, (*FACTS, "close")),
            F.min("opened_us").alias("opened_us"),
            F.collect_set("counted").alias("counted"),
            F.sort_array(topics).alias("topics"),
            F.bool_or("topics_cut").alias("topics_cut"),
            F.max("last_seen_us").alias("last_seen_us"),
            F.max("verdict").alias("verdict"),
        )
        .withColumns(
            {
                **{name: total(name) for name in TOTALS},
                "topics_cut": F.col("topics_cut") | (F.size("topics") > topics_kept),
                "topics": F.slice("topics", 1, topics_kept),
            }
        )
    )


def identified(ends: DataFrame) -> DataFrame:
    """Fill in missing flow ids, from the open end that the same node had between the same addresses."""
    same = Window.partitionBy("node", "netns", "side", "local", "peer")
    known_us = F.when(F.col("flow_id").isNotNull() & F.col("close").isNull(), F.col("last_seen_us"))
    return ends.withColumn("flow_id", F.coalesce("flow_id", F.max_by("flow_id", known_us).over(same)))


def joined(ends: DataFrame) -> DataFrame:
    """One row per connection. Of two ends on one side, seen by an agent before and after its restart, the newer."""
    end = _struct(END.names)
    newest = F.struct(F.col("close").isNotNull(), "last_seen_us", "agent_id", "conn_id")
    return (
        ends.groupBy(F.coalesce("flow_id", F.concat_ws("/", "agent_id", "conn_id")).alias("key"))
        .agg(
            F.max("flow_id").alias("flow_id"),
            *(F.max_by(end, F.when(F.col("side") == side, newest)).alias(side) for side in SIDES),
            F.max("verdict").alias("verdict"),
        )
        .withColumns({"state": _state(), "ends": _watched()})
        .select(*SCHEMA.names)
    )


def within_limits(connections: DataFrame, clock: Clock, config: Config) -> DataFrame:
    """Without what is over for long. One whose verdict is given stays while an end of it is open."""
    last_seen_us = F.greatest(*(f"{side}.last_seen_us" for side in SIDES))
    now_us = F.lit(clock.now_us)
    quiet = now_us - F.greatest("verdict.judged_us", last_seen_us)
    over = (F.col("state") == "closed") & F.col("verdict").isNotNull() & (quiet >= config.closed_limit * 1e6)
    forgotten = now_us - last_seen_us >= config.open_limit * 1e6
    return connections.where(~over & ~forgotten)


def without_overflows(connections: DataFrame) -> DataFrame:
    """The connections for a reader: null where a sum overflowed. They are no state any more."""

    def end(side: str) -> Column:
        return reduce(lambda end, name: end.withField(name, shown(end[name])), TOTALS, F.col(side))

    return connections.withColumns({side: end(side) for side in SIDES})


def _struct(names: Iterable[str]) -> Column:
    """As a text it is one call to the JVM, and not several for each name."""
    return F.expr(f"struct({', '.join(names)})")


def _state() -> Column:
    open_ends = [F.col(side).isNotNull() & F.col(f"{side}.close").isNull() for side in SIDES]
    closed_ends = [F.col(f"{side}.close").isNotNull() for side in SIDES]
    return (
        F.when(~(closed_ends[0] | closed_ends[1]), "open")
        .when(open_ends[0] | open_ends[1], "half closed")
        .otherwise("closed")
    )


def _watched() -> Column:
    return (
        F.when(F.col("client").isNull(), "server only").when(F.col("server").isNull(), "client only").otherwise("both")
    )
