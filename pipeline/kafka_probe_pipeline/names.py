"""Names topics by their ids. A name from any agent applies to the rows of all agents, also to earlier rows.

Pure functions of DataFrames; pairs are rows of `SCHEMA`, one per id. This module never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.source import struct_of

# `ts`: when Kafka got the first event that named the id.
SCHEMA = struct_of({"ts": T.TimestampType(), "topic_id": T.StringType(), "topic": T.StringType()})


def pairs(events: DataFrame) -> DataFrame:
    """Return the topic ids that events of any kind name, each with its first name.

    Events other than `topics` count, too, because a `topics` event may be lost.
    """
    return (
        events.select("received_us", F.explode("topics").alias("of"))
        .select("received_us", "of.topic_id", "of.topic")
        .where(F.col("topic_id").isNotNull() & F.col("topic").isNotNull())
        .groupBy("topic_id")
        .agg(F.min(F.struct("received_us", "topic")).alias("first"))
        .select("topic_id", F.timestamp_micros("first.received_us").alias("ts"), F.col("first.topic").alias("topic"))
        .select(*SCHEMA.names)
    )


def unlike(pairs: DataFrame, known: DataFrame) -> DataFrame:
    """Return the pairs whose topic id no pair of `known` has."""
    return pairs.join(known, "topic_id", "left_anti")


def named(rows: DataFrame, known: DataFrame) -> DataFrame:
    """Return rows of traffic, each `topic` by the name of its id, where that is known."""
    name = known.select("topic_id", F.col("topic").alias("name"))
    return rows.join(name, "topic_id", "left").withColumn("topic", F.coalesce("name", "topic")).select(*rows.columns)


def named_late(rows: DataFrame, new: DataFrame) -> DataFrame:
    """Return those of the rows that had an id only, and get their name from the new pairs."""
    return rows.where(F.col("topic").isNull()).transform(named, new).where(F.col("topic").isNotNull())
