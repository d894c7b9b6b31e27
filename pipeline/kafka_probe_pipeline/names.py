"""Names topics by their ids. A name from any agent applies to the rows of all agents, also to earlier rows.

Pure functions of DataFrames; pairs are rows of `topic_id` and `name`, one per id. This module never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.source import struct_of

PAIRS = struct_of({"topic_id": T.StringType(), "name": T.StringType()})


def pairs(events: DataFrame) -> DataFrame:
    """The ids that the events of any kind name."""
    return (
        events.select(F.explode("topics").alias("of"))
        .select(F.col("of.topic_id").alias("topic_id"), F.col("of.topic").alias("name"))
        .where(F.col("topic_id").isNotNull() & F.col("name").isNotNull())
        .groupBy("topic_id")
        .agg(F.min("name").alias("name"))
    )


def unlike(pairs: DataFrame, known: DataFrame) -> DataFrame:
    """The pairs whose id is not known."""
    return pairs.join(known, "topic_id", "left_anti")


def named(rows: DataFrame, known: DataFrame) -> DataFrame:
    """Rows of traffic, each `topic` by the name of its id, where that is known."""
    return rows.join(known, "topic_id", "left").withColumn("topic", F.coalesce("name", "topic")).select(*rows.columns)


def named_late(rows: DataFrame, new: DataFrame) -> DataFrame:
    """Those of the rows that had an id only, and get their name from the new pairs."""
    return rows.where(F.col("topic").isNull()).transform(named, new).where(F.col("topic").isNotNull())
