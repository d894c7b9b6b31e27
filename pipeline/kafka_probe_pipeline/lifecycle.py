"""Makes the rows of the tables `opens` and `closes`: one per event, when Kafka received it included.

Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.source import spark_schema, struct_of

RECEIVED = "received_ts"
"""When Kafka got the event, by its clock; the other times are of the agent's clock."""
CONNECTION = ("agent_id", "conn_id")
"""Columns that name one end of a connection, as one run of an agent saw it."""
MOST_TOPICS = 21
"""Topics of a row: an agent names 20, and sums the others in one entry."""
_TIMES = ("ts", "closing_ts", "still_open_ts")
_ADDRESSES = ("node", "netns", "side", "local", "peer")


def _table_of(kind: str) -> T.StructType:
    """Return the columns of a table of one kind of event: its fields, with times as timestamps."""
    kinds = {field.name: field.dataType for field in spark_schema(kind) if field.name not in ("v", "kind")}
    times = dict.fromkeys((*(name for name in _TIMES if name in kinds), RECEIVED), T.TimestampType())
    return struct_of({**kinds, **times})


OPENS, CLOSES = _table_of("open"), _table_of("close")


def opens(events: DataFrame) -> DataFrame:
    """Return the rows of the first and repeated `open` events: columns of `OPENS`."""
    return _rows(events, "open", OPENS)


def closes(events: DataFrame) -> DataFrame:
    """Return the rows of the `close` events: columns of `CLOSES`."""
    return _rows(events, "close", CLOSES)


def _rows(events: DataFrame, kind: str, table: T.StructType) -> DataFrame:
    of_kind = events.where((F.col("kind") == kind) & F.col("conn_id").isNotNull())
    return of_kind.select(*(_column(field) for field in table))


def _column(field: T.StructField) -> Column:
    match field:
        case T.StructField(name=name) if name == RECEIVED:
            value = F.timestamp_micros("received_us")
        case T.StructField(dataType=T.TimestampType()):
            value = F.timestamp_micros(field.name)
        case T.StructField(dataType=T.ArrayType(elementType=T.StructType() as element)):
            # Another kind of event may have more fields in its list of the same name.
            listed = F.slice(field.name, 1, MOST_TOPICS)
            value = F.transform(listed, lambda one: F.struct(*(one[name].alias(name) for name in element.names)))
        case _:
            value = F.col(field.name)
    return value.alias(field.name)


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
