"""Holds the state of each agent's run, which shows up to when its reports are complete.

One row per run: since and up to when its reports are complete, when its last event arrived, what is open on its host,
and to which ends its host sent an RST without a socket. Pure functions of DataFrames; never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.source import Clock, spark_schema

# Per agent the newest are kept, and when the newest of the others was: a host that is scanned sends them without end.
RESETS_KEPT = 5_000
MOST_AGENTS = 20_000
"""Most runs of agents that are remembered: a fleet of 1,000 nodes may restart 20 times a month."""

_LONG, _STRING = T.LongType(), T.StringType()
RESET = T.StructType([T.StructField("ts", _LONG), T.StructField("local", _STRING), T.StructField("peer", _STRING)])
_AHEAD_US = 3600 * 1_000_000  # a clock further ahead of Kafka's is wrong, or the event is forged
# Taken from the newest event, not the greatest: the agent's clock may have been set back.
_OF_NEWEST = ("complete_since", "complete_until", "reported_us", "open")
# `complete_since` and `complete_until` are of the agent's clock. `reported_us`, when the report with `complete_until`
# arrived, and `last_seen_us` are of Kafka's. Resets before `resets_since` were dropped.
SCHEMA = T.StructType(
    [
        T.StructField("agent_id", _STRING),
        T.StructField("node", _STRING),
        T.StructField("complete_since", _LONG),
        T.StructField("complete_until", _LONG),
        T.StructField("reported_us", _LONG),
        T.StructField("resets_since", _LONG),
        T.StructField("last_seen_us", _LONG),
        T.StructField("open", spark_schema()["open"].dataType),
        T.StructField("resets", T.ArrayType(RESET)),
    ]
)


def _believed(time: str) -> Column:
    """Return a time by the agent's clock; null where it is far ahead of Kafka's."""
    return F.when(F.col(time) <= F.col("received_us") + _AHEAD_US, F.col(time))


def agents(events: DataFrame, before: DataFrame, clock: Clock, config: PipelineConfig) -> DataFrame:
    """Return the rows `before`, updated by the events of a batch, of the agents that reported last and lately."""
    is_reset = (F.col("kind") == "reset") & _believed("ts").isNotNull()
    new = events.select(
        "agent_id",
        "node",
        F.col("seq").alias("number"),
        F.col("received_us").alias("last_seen_us"),
        _believed("complete_since").alias("complete_since"),
        _believed("complete_until").alias("complete_until"),
        F.when(_believed("complete_until").isNotNull(), F.col("received_us")).alias("reported_us"),
        F.when(F.col("kind") == "agent", F.col("open")).alias("open"),
        F.when(is_reset, F.struct("ts", "local", "peer")).alias("reset"),
    )
    # The earlier state has number -1, below any `seq`. So a forged `seq` has no effect on later batches.
    older = before.drop("resets").withColumn("number", F.lit(-1).cast("long"))
    resets = before.select("agent_id", F.explode("resets").alias("reset"))
    return (
        older.unionByName(new, allowMissingColumns=True)
        .unionByName(resets, allowMissingColumns=True)
        .groupBy("agent_id")
        .agg(
            F.max("node").alias("node"),
            F.max("last_seen_us").alias("last_seen_us"),
            *(F.max_by(name, F.when(F.col(name).isNotNull(), F.col("number"))).alias(name) for name in _OF_NEWEST),
            F.max("resets_since").alias("resets_since"),
            # A set finds equal ones by their hashes, array_distinct compares each with each.
            F.sort_array(F.collect_set("reset"), asc=False).alias("resets"),
        )
        .withColumns(
            {
                "resets": F.slice("resets", 1, RESETS_KEPT),
                "resets_since": F.greatest("resets_since", F.get("resets", F.lit(RESETS_KEPT))["ts"] + 1),
            }
        )
        # Kept longer than any end that it reported: verdicts wait for an agent that is known.
        .where(F.col("last_seen_us") > clock.now_us - 2 * config.open_limit * 1e6)
        .select(*SCHEMA.names)
        .transform(newest_agents)
    )


def newest_agents(times: DataFrame) -> DataFrame:
    """Return the `MOST_AGENTS` whose events came last: forged events may name any number of agents."""
    return times.orderBy(F.desc("last_seen_us"), "agent_id").limit(MOST_AGENTS)
