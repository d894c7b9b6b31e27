"""Makes the rows of the tables that have one row per event: its fields, and when Kafka received it.

Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.source import MOST_TOPICS, TIMES, spark_schema, struct_of

RECEIVED = "received_ts"
"""When Kafka got the event, by its clock; the other times are of the agent's clock."""
SEEN = "seen_ts"
"""When the agent saw the response that has an offset, by the agent's clock."""
TOPICS_OF_CONNECTION = 21
"""Most topics of an open or a close: an agent names 20, and sums the others in one entry."""
_TIMES = ("ts", *TIMES)
_MINUTE_US = 60_000_000


def _columns_of(kind: str, *without: str) -> T.StructType:
    """Return the columns of a table of one kind of event: its fields, with times as timestamps."""
    fields = {field.name: field.dataType for field in spark_schema(kind) if field.name not in ("v", "kind", *without)}
    times = dict.fromkeys((*(name for name in _TIMES if name in fields), RECEIVED), T.TimestampType())
    return struct_of({**fields, **times})


def _columns_of_offsets(name: str) -> T.StructType:
    """Return the columns of a table of one list in `offsets` events: the event's origin and an entry's fields."""
    (entries,) = (field.dataType for field in spark_schema("offsets") if field.name == name)
    assert isinstance(entries, T.ArrayType)
    assert isinstance(entries.elementType, T.StructType)
    times = dict.fromkeys((SEEN, "ts", RECEIVED), T.TimestampType())
    fields = {field.name: field.dataType for field in entries.elementType if field.name != "seen"}
    return struct_of({"node": T.StringType(), "agent_id": T.StringType(), **fields, **times})


OPENS, CLOSES, REQUESTS = map(_columns_of, ("open", "close", "request"))
AGENTS = _columns_of("agent", "open")
PARTITION_ENDS, GROUP_POSITIONS = map(_columns_of_offsets, ("partition_ends", "group_positions"))


def opens(events: DataFrame) -> DataFrame:
    """Return the rows of the first and repeated `open` events: columns of `OPENS`."""
    return _rows(events.where((F.col("kind") == "open") & F.col("conn_id").isNotNull()), OPENS)


def closes(events: DataFrame) -> DataFrame:
    """Return the rows of the `close` events: columns of `CLOSES`."""
    return _rows(events.where((F.col("kind") == "close") & F.col("conn_id").isNotNull()), CLOSES)


def requests(events: DataFrame) -> DataFrame:
    """Return the rows of the `request` events: columns of `REQUESTS`."""
    return _rows(events.where(F.col("kind") == "request"), REQUESTS, MOST_TOPICS)


def partition_ends(events: DataFrame) -> DataFrame:
    """Return the rows of the ends of partitions in `offsets` events: columns of `PARTITION_ENDS`."""
    return _offsets(events, "partition_ends", PARTITION_ENDS)


def group_positions(events: DataFrame) -> DataFrame:
    """Return the rows of the positions of groups in `offsets` events: columns of `GROUP_POSITIONS`."""
    return _offsets(events, "group_positions", GROUP_POSITIONS)


def agents(events: DataFrame) -> DataFrame:
    """Return one row per agent and minute, of the `agent` events that `is_minutely`: columns of `AGENTS`."""
    return _rows(events.where(is_minutely()), AGENTS)


def is_minutely() -> Column:
    """Return True for the `agent` event of the interval in which a minute ends.

    An agent sends these events every few seconds, and most of their counters grow with each.
    """
    first, last = (F.floor(F.col(name) / _MINUTE_US) for name in ("since", "ts"))
    return F.coalesce((F.col("kind") == "agent") & (first < last), F.lit(False))


def _offsets(events: DataFrame, name: str, columns: T.StructType) -> DataFrame:
    of_event = ("node", "agent_id", "ts", "received_us")
    entries = events.where(F.col("kind") == "offsets").select(*of_event, F.explode(name).alias("entry"))
    fields = entries.select(*of_event, "entry.*").withColumnRenamed("seen", "seen_us")
    return fields.selectExpr(
        *(_expression(field, 0) if field.name != SEEN else f"timestamp_micros(seen_us) AS {SEEN}" for field in columns)
    )


def _rows(events: DataFrame, columns: T.StructType, most_topics: int = TOPICS_OF_CONNECTION) -> DataFrame:
    return events.selectExpr(*(_expression(field, most_topics) for field in columns))


def _expression(field: T.StructField, most_topics: int) -> str:
    """Return a column in SQL: all columns of a table then take one call to the JVM."""
    match field:
        case T.StructField(name=name) if name == RECEIVED:
            value = "timestamp_micros(received_us)"
        case T.StructField(name=name, dataType=T.TimestampType()):
            value = f"timestamp_micros({name})"
        case T.StructField(name=name, dataType=T.ArrayType(elementType=T.StructType() as element)):
            # Another kind of event may have more fields in its list of the same name.
            fields = ", ".join(f"one.{part}" for part in element.names)
            value = f"transform(slice({name}, 1, {most_topics}), one -> struct({fields}))"
        case T.StructField(name=name):
            value = name
    return f"{value} AS {name}"
