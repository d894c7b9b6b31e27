"""Remembers which events of each agent's run have been counted: an agent that starts again may send some once more.

Functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.agents import newest_agents
from kafka_probe_pipeline.source import struct_of

RANGES_KEPT = 64
"""Most ranges of `seq` that are remembered of an agent: the widest. One without losses has one."""
MOST_REPEATED = 10_000
"""Most repeated events of a micro-batch that Spark copies to each executor, as agent and `seq`."""
SCHEMA = struct_of(
    {
        "agent_id": T.StringType(),
        "seen": T.ArrayType(struct_of({"first": T.LongType(), "last": T.LongType()})),
        "last_seen_us": T.LongType(),
    }
)
_BLOCK = 1024
_REMEMBERED_US = 30 * 24 * 3600 * 1_000_000  # longer than events wait on disk


def fresh(events: DataFrame, before: DataFrame) -> tuple[DataFrame, int]:
    """Return the events that count, and how many do not, because they were sent before.

    before: `SCHEMA`, as of the batch before. Of the events of an agent with one `seq`, the first in the topic counts.

    Runs a Spark job, which finds repeated events by few columns: `dropDuplicates` would sort and shuffle all columns.
    The join that follows has a copy of the repeated `seq` on each executor, unless somebody forged very many.
    """
    seen_before = F.broadcast(before.select("agent_id", "seen"))
    marked = events.join(seen_before, "agent_id", "left").withColumn("known", _is_seen(F.col("seq"))).drop("seen")
    of_seq = marked.groupBy("agent_id", "seq").agg(
        F.count("*").alias("count"), F.min("position").alias("first"), F.any_value("known").alias("known")
    )
    is_repeated = ~F.col("known") & (F.col("count") > 1)
    left_out = F.sum(F.when(F.col("known"), F.col("count")).otherwise(F.col("count") - 1))
    ((left_out_number, repeated_number),) = of_seq.agg(left_out, F.count_if(is_repeated)).collect()
    new = marked.where(~F.col("known")).drop("known")
    if repeated_number:
        repeated = of_seq.where(is_repeated).select("agent_id", "seq", "first")
        joined = F.broadcast(repeated) if repeated_number <= MOST_REPEATED else repeated
        is_first = F.col("first").isNull() | (F.col("position") == F.col("first"))
        new = new.join(joined, ["agent_id", "seq"], "left").where(is_first).drop("first")
    return new, left_out_number or 0


def seen_events(events: DataFrame, before: DataFrame) -> DataFrame:
    """Return `SCHEMA` of the agents that reported last: the `seq` of their events, and when Kafka got the last."""
    return (
        remembered(events, before).transform(newest_agents).join(seen(events, before), "agent_id").select(*SCHEMA.names)
    )


def remembered(events: DataFrame, before: DataFrame) -> DataFrame:
    """Return `agent_id` and `last_seen_us` of all agents but those that have not reported for `_REMEMBERED_US`."""
    new = events.select("agent_id", F.col("received_us").alias("last_seen_us"))
    rows = (
        before.select(*new.columns)
        .unionByName(new)
        .groupBy("agent_id")
        .agg(F.max("last_seen_us").alias("last_seen_us"))
    )
    return (
        rows.crossJoin(rows.agg(F.max("last_seen_us").alias("now_us")))
        .where(F.col("last_seen_us") > F.col("now_us") - _REMEMBERED_US)
        .drop("now_us")
    )


def seen(events: DataFrame, before: DataFrame) -> DataFrame:
    """Return `agent_id` and `seen`, the ranges of `seq` of all events so far, by agent.

    The greatest `seq` is not enough: one forged event would make all that its agent sends later look like repetitions.
    """
    before = before.select("agent_id", "seen")
    block = F.floor(F.col("seq") / _BLOCK)  # few enough at once for an array, however many there are
    numbers = F.collect_set(F.struct(F.col("seq").alias("first"), F.col("seq").alias("last")))
    new = (
        events.select("agent_id", "seq")
        .join(F.broadcast(before), "agent_id", "left")
        .where(~_is_seen(F.col("seq")))
        .groupBy("agent_id", block.alias("block"))
        .agg(F.sort_array(numbers).alias("ranges"))
        .select("agent_id", _widest(_joined("ranges")).alias("seen"))
    )
    return (
        before.unionByName(new)
        .groupBy("agent_id")
        .agg(F.sort_array(F.flatten(F.collect_list("seen"))).alias("ranges"))
        .select("agent_id", _widest(_joined("ranges")).alias("seen"))
    )


def _is_seen(seq: Column) -> Column:
    return F.coalesce(F.exists("seen", lambda known: seq.between(known["first"], known["last"])), F.lit(False))


def _joined(ranges: str) -> Column:
    """Return ranges that do not overlap, in ascending order: those that touch each other as one."""
    begins = F.filter(ranges, lambda one, i: F.coalesce(F.get(ranges, i - 1)["last"] < one["first"] - 1, F.lit(True)))
    ends = F.filter(ranges, lambda one, i: F.coalesce(F.get(ranges, i + 1)["first"] > one["last"] + 1, F.lit(True)))
    return F.zip_with(
        begins, ends, lambda begin, end: F.struct(begin["first"].alias("first"), end["last"].alias("last"))
    )


def _widest(ranges: Column) -> Column:
    by_width = F.transform(ranges, lambda one: F.struct((one["first"] - one["last"]).alias("width"), one.alias("one")))
    kept = F.transform(F.slice(F.sort_array(by_width), 1, RANGES_KEPT), lambda wide: wide["one"])
    return F.sort_array(kept)
