"""Builds events as an agent writes them, and Kafka records that contain them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kafka_probe.events import SCHEMA_VERSION
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_pipeline import source

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00:00
MINUTE_US = 60_000_000

Event = dict[str, Any]


def flow(seq: int | None = 0, **fields: object) -> Event:
    """Return a flow event of one Produce request at noon; `fields` replace or add."""
    return {
        "v": SCHEMA_VERSION,
        "kind": "flow",
        "ts": NOON_US,
        "node": "node-1",
        "agent_id": "agent-1",
        "seq": seq,
        "side": "server",
        "workload": {"pid": 7, "comm": "java"},
        "client": {"id": "client-1"},
        "api": "Produce",
        "api_key": ApiKey.PRODUCE,
        "api_version": 11,
        "requests": 1,
        **fields,
    }


def frames_event(*data: bytes, **fields: object) -> Event:
    """Return a `frames` event of frames with this data, a millisecond apart, requests and responses in turn."""
    numbers = [*range(len(data))]
    same = {"tcp_seq": 7, "frame_bytes": 100, "latency_us": 9, "api_key": ApiKey.METADATA, "api_version": 12, "part": 0}
    samples = {
        "end": [0] * len(data),
        "monotonic_ns": [1_000_000 * number for number in numbers],
        "correlation_id": [number // 2 for number in numbers],
        "flags": [number % 2 for number in numbers],
        **{name: [value] * len(data) for name, value in same.items()},
        "data": [b64encode(one).decode() for one in data],
    }
    return {
        "v": SCHEMA_VERSION,
        "kind": "frames",
        "ts": NOON_US,
        "node": "node-1",
        "agent_id": "agent-1",
        "seq": 0,
        "copy_rules": "0" * 16,
        "wall_offset_ns": NOON_US * 1000,
        "ends": [{"conn_id": f"{1:016x}", "flow_id": "f" * 16, "side": "client"}],
        "samples": samples,
        **fields,
    }


def lines(*events: Event) -> str:
    """Return events as the value of one Kafka record."""
    return "".join(json.dumps(event) + "\n" for event in events)


def records(spark: SparkSession, *values: str) -> DataFrame:
    """Return rows as from Kafka's source: one row per record, offsets from 0."""
    at = datetime.fromtimestamp(NOON_US / 1e6, UTC)
    rows = [("events", 0, offset, at, bytearray(value.encode())) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, "topic string, partition int, offset long, timestamp timestamp, value binary")


def events(spark: SparkSession, *events: Event) -> DataFrame:
    """Return events as the transformations receive them, without the time at which Kafka received them."""
    parsed = records(spark, lines(*events)).transform(source.parsed).persist()
    return source.received(parsed).drop("received_us")


SECOND_US = 1_000_000
CLIENT, BROKER = "client-agent", "broker-agent"
_seqs = count()


def at_end(agent: str, kind: str, connection: int = 1, **fields: object) -> Event:
    """Return an event of an agent about its end of a numbered connection.

    `seq` counts up over the events of all connections.
    """
    near, far = f"10.0.1.1:{40_000 + connection}", "10.0.0.9:9092"
    client = agent == CLIENT
    return {
        "v": SCHEMA_VERSION,
        "kind": kind,
        "ts": NOON_US,
        "agent_id": agent,
        "seq": next(_seqs),
        "node": "client-node" if client else "broker-node",
        "side": "client" if client else "server",
        "conn_id": f"{agent}-{connection}",
        "flow_id": f"{connection:016x}",
        "workload": {"pid": 100 + connection if client else 9, "start_time": 1, "comm": "app" if client else "java"},
        "local": near if client else far,
        # Behind a NAT: the broker sees another address.
        "peer": far if client else f"10.9.0.1:{connection}",
        **fields,
    }


def opened(agent: str, connection: int = 1, **fields: Any) -> Event:
    """Return the event of an end that was first seen an hour ago."""
    facts: Event = {"ts": NOON_US - 60 * MINUTE_US, "found": "start"}
    return at_end(agent, "open", connection, **facts | fields)


def closed(agent: str, connection: int = 1, **fields: Any) -> Event:
    """Return the event of an end that closed at noon after 30 s of silence.

    By default it closed by FIN, after the other end.
    """
    facts: Event = {
        "found": "start",
        "closing_ts": NOON_US,
        "closed_by": "peer",
        "how": "fin",
        "idle_us": 30 * SECOND_US,
        "silence_us": 30 * SECOND_US,
        "age_us": 60 * MINUTE_US,
        "last_api": "Fetch",
        "in_flight": 0,
        "unacked_bytes": 0,
        "unanswered_retransmits": 0,
        "owner_exiting": False,
        "owner_ended": False,
    }
    return at_end(agent, "close", connection, **facts | fields)


def requested(agent: str, connection: int = 1, **fields: Any) -> Event:
    """Return the event of a Produce request of an end, with its response."""
    topic = {"topic": "orders", "partition": 3, "error": 0, "records": 5, "bytes": 100}
    facts: Event = {
        "api": "Produce",
        "api_key": ApiKey.PRODUCE,
        "api_version": 11,
        "correlation_id": 7,
        "request_bytes": 200,
        "response_bytes": 60,
        "latency_us": 1500,
        "errors": {},
        "topics": [topic],
    }
    return at_end(agent, "request", connection, **facts | fields)


def reset_sent(agent: str, connection: int = 1, **fields: Any) -> Event:
    """Return the event of a reset that an agent's host sent to the far end of a connection."""
    facts: Event = {"direction": "sent", "conn_id": None, "flow_id": None, "workload": None}
    return at_end(agent, "reset", connection, **facts | fields)


def offset_seen(offset: int, **fields: Any) -> Event:
    """Return an entry of an `offsets` event: an offset of a partition of the topic orders, seen at noon."""
    topic: Event = {"cluster_id": "east", "broker": None, "topic": "orders", "topic_id": None}
    return {**topic, "partition": 0, "offset": offset, "source": "fetch", "seen": NOON_US, **fields}


def offsets_event(agent: str, ends: Sequence[Event] = (), positions: Sequence[Event] = ()) -> Event:
    """Return an `offsets` event with these entries, of a second after noon."""
    about = ("conn_id", "flow_id", "side", "workload", "local", "peer")
    event = at_end(agent, "offsets", ts=NOON_US + SECOND_US, partition_ends=ends, group_positions=positions)
    return {name: value for name, value in event.items() if name not in about}


def agent_event(agent: str, *, until_s: float = 3, **fields: Any) -> Event:
    """Return an `agent` event, which states that everything up to `until_s` after noon has been sent.

    It is of an interval of five seconds.
    """
    until = NOON_US + round(until_s * SECOND_US)
    about = ("conn_id", "flow_id", "side", "workload", "local", "peer")
    facts: Event = {"since": until - 5 * SECOND_US, "ts": until, "complete_until": until, "open": []}
    event = at_end(agent, "agent", **facts | fields)
    return {name: value for name, value in event.items() if name not in about}
