"""Finds the flow ids of opens and closes that lack them.

Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_probe_pipeline.event_rows import CLOSES, OPENS, RECEIVED

CONNECTION = ("agent_id", "conn_id")
"""Columns that name one end of a connection, as one run of an agent saw it."""
_ADDRESSES = ("node", "netns", "side", "local", "peer")


def with_flow_ids(opens: DataFrame, earlier: DataFrame, closed: DataFrame) -> DataFrame:
    """Return new `opens`, with missing flow ids taken from the run of the agent before.

    An agent that starts lists what is open and learns a flow id with the first bytes only. earlier, closed: what the
    tables have so far. The connection is the one that the same node had open between the same addresses.
    """
    known = earlier.where(F.col("flow_id").isNotNull()).join(closed.select(*CONNECTION), [*CONNECTION], "left_anti")
    newest = (
        known.groupBy(*_ADDRESSES)
        .agg(F.max_by("flow_id", RECEIVED).alias("known_flow_id"))
        .withColumnsRenamed({name: f"known_{name}" for name in _ADDRESSES})
    )
    same = reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"known_{name}")) for name in _ADDRESSES))
    return (
        opens.join(newest, same & F.col("flow_id").isNull(), "left")
        .withColumn("flow_id", F.coalesce("flow_id", "known_flow_id"))
        .select(*OPENS.names)
    )


def with_flow_ids_of_opens(closes: DataFrame, opens: DataFrame) -> DataFrame:
    """Return new `closes`, with missing flow ids taken from the newest row in `opens` about their connection."""
    newest = opens.groupBy(*CONNECTION).agg(F.max_by("flow_id", "seq").alias("known_flow_id"))
    return (
        closes.join(newest, [*CONNECTION], "left")
        .withColumn("flow_id", F.coalesce("flow_id", "known_flow_id"))
        .select(*CLOSES.names)
    )
