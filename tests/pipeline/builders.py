"""Short builders: events as an agent writes them, and Kafka records that hold them."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kafka_probe.events import SCHEMA_VERSION
from kafka_probe_pipeline import source

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00:00
MINUTE_US = 60_000_000

Event = dict[str, Any]


def flow(seq: int | None = 0, **fields: object) -> Event:
    """A flow event of one Produce request at noon; `fields` replace or add."""
    return {
        "v": SCHEMA_VERSION,
        "kind": "flow",
        "ts": NOON_US,
        "node": "node-1",
        "agent_id": "agent-1",
        "seq": seq,
        "side": "accepting",
        "workload": {"pid": 7, "comm": "java"},
        "client": {"id": "client-1"},
        "api": "Produce",
        "api_key": 0,
        "api_version": 11,
        "requests": 1,
        **fields,
    }


def lines(*events: Event) -> str:
    """Events as the value of one Kafka record."""
    return "".join(json.dumps(event) + "\n" for event in events)


def records(spark: SparkSession, *values: str) -> DataFrame:
    """What Kafka's source gives: one row per record, offsets from 0."""
    rows = [("events", 0, offset, bytearray(value.encode())) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, "topic string, partition int, offset long, value binary")


def events(spark: SparkSession, *events: Event) -> DataFrame:
    """Events as the transformations get them."""
    return records(spark, lines(*events)).transform(source.parsed).transform(source.events)
