"""Frames: `frames` events in, a row per sample of a frame out.

Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe import events as schema
from kafka_probe_pipeline.event_rows import RECEIVED
from kafka_probe_pipeline.source import struct_of

_NUMBERS = tuple(name for name in schema.FrameSamples.__annotations__ if name not in ("end", "data"))
_OF_EVENT = ("node", "agent_id", "seq", "copy_rules")
_OF_END = ("conn_id", "flow_id", "side")
HOUR = "hour"
"""Column of the hour in which Kafka received a frame, UTC, by which the table is partitioned besides the date.

The last frames of a connection may be much older: a date of their own would delete them early.
"""

SCHEMA = struct_of(
    {
        "ts": T.TimestampType(),
        RECEIVED: T.TimestampType(),
        **{name: T.LongType() if name == "seq" else T.StringType() for name in (*_OF_EVENT, *_OF_END)},
        **dict.fromkeys(_NUMBERS, T.LongType()),
        "data": T.BinaryType(),
        HOUR: T.IntegerType(),
    }
)


def frames(events: DataFrame) -> DataFrame:
    """Return a row per sample: columns of `SCHEMA`. Samples of one flow are in the order in which they were copied."""
    sample = F.explode(F.arrays_zip(*(f"samples.{name}" for name in (*_NUMBERS, "end", "data")))).alias("sample")
    exploded = events.select(*_OF_EVENT, "wall_offset_ns", "received_us", "ends", sample)
    end = F.col("ends")[F.col("sample.end").cast("int")]
    ts = F.expr("timestamp_micros((sample.monotonic_ns + wall_offset_ns) div 1000)").alias("ts")  # `/` would round
    received = F.timestamp_micros("received_us").alias(RECEIVED)
    rows = exploded.select(
        ts,
        received,
        *_OF_EVENT,
        *(end[name].alias(name) for name in _OF_END),
        *(F.col(f"sample.{name}").alias(name) for name in _NUMBERS),
        F.unbase64("sample.data").alias("data"),
        F.hour(received).alias(HOUR),
    )
    return rows.sortWithinPartitions("flow_id", "monotonic_ns", "part")
