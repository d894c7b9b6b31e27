"""Connections: rows of `opens` and `closes` of both ends in, one row per connection out.

The ends are joined by `flow_id`, which is the same on both hosts; one without it is a connection of its own. Times of
events are of the clock of their host and are never compared with another host's; `last_seen_us` is of Kafka's clock.
Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe import events as schema
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.event_rows import RECEIVED
from kafka_probe_pipeline.flow_ids import CONNECTION
from kafka_probe_pipeline.source import Clock, spark_schema, struct_of

SIDES = ("client", "server")
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
    "requests",
    "request_bytes",
    "response_bytes",
    "group",
)

_EVENT = {field.name: field.dataType for field in spark_schema("open", "close")}
_LONG, _STRING = T.LongType(), T.StringType()
_OF_OPEN = {field.name for field in schema.own_fields("open")}
_OF_CLOSE = [field.name for field in schema.own_fields("close") if field.name not in {*_OF_OPEN, "closing_ts"}]

# `closing_us` and `ended_us`: `closing_ts` and `ts` of the event.
CLOSE = struct_of({"closing_us": _LONG, "ended_us": _LONG, **{name: _EVENT[name] for name in _OF_CLOSE}})
END = struct_of(
    {
        "agent_id": _STRING,
        "conn_id": _STRING,
        **{name: _EVENT[name] for name in FACTS},
        "topics": T.ArrayType(_STRING),
        "opened_us": _LONG,
        "close": CLOSE,
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
        "refused_request_bytes": _LONG,
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


def connections(closes: DataFrame, opens: DataFrame, before: DataFrame) -> DataFrame:
    """Return the closed connections, `before` updated by the new `closes`: columns of `SCHEMA`.

    opens: rows in which the other ends of connections are looked up of which one end was closed. An end that is open is
    known from there only, so that the state holds no connection that is open at both ends.
    """
    known = before.transform(ends).unionByName(closes.transform(ends_of), allowMissingColumns=True)
    others = open_ends_of(opens, known)
    found = known if others is None else known.unionByName(others.transform(ends_of), allowMissingColumns=True)
    return found.transform(newest).transform(joined).where(F.col("state") != "open")


def open_ends_of(opens: DataFrame, known: DataFrame) -> DataFrame | None:
    """Return the rows of `opens` about the open ends of flows of which an end is `known`; None without any.

    Flows that are half closed are among them: they are kept as long as their other end is reported.
    """
    sides = F.collect_set(F.when(F.col("close").isNotNull() & F.col("side").isin(*SIDES), F.col("side")))
    half = known.groupBy("flow_id").agg(sides.alias("closed")).where(F.size("closed") == 1)
    end = ["flow_id", "side"]
    found = opens.select(*end, RECEIVED).join(F.broadcast(half), "flow_id").where("NOT array_contains(closed, side)")
    found = found.groupBy(*end).agg(F.max(RECEIVED).alias("newest"))
    # To read three columns of all connections that are open, and then all columns of the newest ones, takes a fraction
    # of reading all columns of all: often the other end was opened a moment ago, and its close comes next.
    ((first_us,),) = found.agg(F.unix_micros(F.min("newest"))).collect()
    if first_us is None:
        return None
    newer = opens.where(F.col(RECEIVED) >= F.timestamp_micros(F.lit(first_us)))
    return newer.join(F.broadcast(found.select(*end)), end, "left_semi")


def not_over(closes: DataFrame, earlier: DataFrame, before: DataFrame) -> DataFrame:
    """Return the new `closes` without those of connections that have been closed, judged and dropped from the state.

    earlier: closes so far. An agent may send a close twice, or long after the agent of the other end.
    """
    key = _key()
    late = earlier.select(key).join(F.broadcast(closes.select(key)), "key", "left_semi").distinct()
    over = late.join(before.select("key"), "key", "left_anti")
    return closes.withColumn("key", key).join(F.broadcast(over), "key", "left_anti").drop("key")


def without_other_end(connections: DataFrame) -> DataFrame:
    """Return the connections without a verdict of which one end is not known yet."""
    return connections.where((F.col("ends") != "both") & F.col("verdict").isNull())


def open_of(opens: DataFrame, closes: DataFrame) -> DataFrame:
    """Return the connections of which no end is closed: columns of `SCHEMA`."""
    return of_rows(opens, closes).where(F.col("state") == "open")


def of_rows(opens: DataFrame, closes: DataFrame) -> DataFrame:
    """Return the connections with an end in rows of `opens` and `closes`: columns of `SCHEMA`, without verdicts."""
    ends = opens.unionByName(closes, allowMissingColumns=True).transform(ends_of)
    return ends.transform(newest).transform(joined)


def ends_of(rows: DataFrame) -> DataFrame:
    """Return the ends that rows of `opens` or `closes` are about, each with the `seq` of its event."""
    absent = {*_OF_CLOSE, *FACTS} - {*rows.columns}
    closing_us = F.unix_micros("closing_ts") if "closing_ts" in rows.columns else F.lit(None).cast(_LONG)
    times = {"closing_us": closing_us, "ended_us": F.unix_micros("ts")}
    return rows.withColumns({name: F.lit(None).cast(_EVENT[name]) for name in absent} | times).select(
        *CONNECTION,
        "seq",
        *FACTS,
        F.array_compact(F.transform("topics", lambda one: F.coalesce(one["topic"], one["topic_id"]))).alias("topics"),
        (F.col("ended_us") - F.greatest(F.coalesce("age_us", F.lit(0)), F.lit(0))).alias("opened_us"),
        F.when(F.col("closing_us").isNotNull(), _struct(CLOSE.names)).alias("close"),
        F.unix_micros(RECEIVED).alias("last_seen_us"),
        F.lit(None).cast(VERDICT).alias("verdict"),
    )


def ends(connections: DataFrame) -> DataFrame:
    """Return the ends of the connections, each with the verdict on its connection, as older than any event."""
    return connections.select(F.explode(F.array_compact(F.array(*SIDES))).alias("end"), "verdict").select(
        "end.*", F.lit(-1).cast("long").alias("seq"), "verdict"
    )


def newest(ends: DataFrame) -> DataFrame:
    """Return one row per end, as its newest event has it: a `close`, or else the last `open`."""
    end = _struct(END.names)
    return (
        ends.groupBy(*CONNECTION)
        .agg(
            F.max_by(end, F.struct(F.col("close").isNotNull(), "seq")).alias("end"),
            F.max("verdict").alias("verdict"),
        )
        .select("end.*", "verdict")
    )


def joined(ends: DataFrame) -> DataFrame:
    """Return one row per connection: columns of `SCHEMA`.

    Of two ends on one side, reported by an agent before and after its restart, it has the newer one.
    """
    end = _struct(END.names)
    newer = F.struct(F.col("close").isNotNull(), "last_seen_us", "agent_id", "conn_id")
    return (
        ends.groupBy(_key())
        .agg(
            F.max("flow_id").alias("flow_id"),
            *(F.max_by(end, F.when(F.col("side") == side, newer)).alias(side) for side in SIDES),
            F.max("verdict").alias("verdict"),
        )
        .withColumns({"state": _state(), "ends": _watched()})
        .select(*SCHEMA.names)
    )


def within_limits(connections: DataFrame, clock: Clock, config: PipelineConfig) -> DataFrame:
    """Drop the connections that were judged long ago, and those of which nothing was reported for long.

    One that has a verdict stays while an agent reports that an end of it is open.
    """
    quiet = clock.now_us - F.greatest("verdict.judged_us", *(f"{side}.last_seen_us" for side in SIDES))
    over = (F.col("state") == "closed") & F.col("verdict").isNotNull() & (quiet >= config.closed_limit * 1e6)
    return connections.where(~over & (quiet < config.open_limit * 1e6))


def _key() -> Column:
    return F.coalesce("flow_id", F.concat_ws("/", "agent_id", "conn_id")).alias("key")


def _struct(names: Iterable[str]) -> Column:
    """Return a struct of columns. An SQL expression takes one call to the JVM, columns take several each."""
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
