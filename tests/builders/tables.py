"""Builds the pipeline's tables from an agent's events, without Spark, for commands that read them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from kafka_probe.events import OWNER_NAMES

Event = Mapping[str, Any]

_TEXT, _LONG, _TIME = pa.string(), pa.int64(), pa.timestamp("us", "UTC")
_CLIENT = pa.struct([("id", _TEXT), ("software_name", _TEXT), ("software_version", _TEXT)])
_OWNER = pa.struct([("pid", _LONG), *((name, _TEXT) for name in OWNER_NAMES)])
_NAT = pa.struct([("local", _TEXT), ("peer", _TEXT)])
_TOPIC = pa.struct([("topic", _TEXT), ("topic_id", _TEXT), ("requests", _LONG), ("bytes", _LONG)])
_SUMS = [(name, _LONG) for name in ("requests", "request_bytes", "response_bytes")]
_OF_END = [
    *((name, _TEXT) for name in ("node", "agent_id", "conn_id", "flow_id", "side", "local", "peer")),
    *(("client", _CLIENT), ("workload", _OWNER), ("date", pa.date32()), ("received_ts", _TIME), ("ts", _TIME)),
    *(("group", _TEXT), ("opaque", _TEXT), ("topics", pa.list_(_TOPIC)), *_SUMS),
]
_SILENCES = [(name, _LONG) for name in ("present_silence_us", "longest_silence_us", "keepalive_s")]
_OPENS = pa.schema([*_OF_END, ("nat", _NAT), ("found", _TEXT), ("still_open_ts", _TIME), *_SILENCES])
_OF_CLOSE = (
    *(("closed_by", _TEXT), ("how", _TEXT), ("idle_us", _LONG), ("evicted", pa.bool_()), ("closing_ts", _TIME)),
    *(("age_us", _LONG), ("found", _TEXT)),
)
_CLOSES = pa.schema([*_OF_END, *_OF_CLOSE])
_NUMBERS = (
    *("monotonic_ns", "tcp_seq", "frame_bytes", "correlation_id"),
    *("latency_us", "api_key", "api_version", "flags", "part"),
)
_FRAMES = pa.schema(
    [
        *(("ts", _TIME), ("received_ts", _TIME), ("date", pa.date32()), ("hour", pa.int32())),
        *((name, _TEXT) for name in ("node", "agent_id", "copy_rules", "conn_id", "flow_id", "side")),
        *((name, _LONG) for name in ("seq", *_NUMBERS)),
        ("data", pa.binary()),
    ]
)
_END = pa.struct(
    [
        *((name, _TEXT) for name in ("node", "agent_id", "conn_id", "local", "peer", "group")),
        *(("client", _CLIENT), ("workload", _OWNER), ("topics", pa.list_(_TEXT)), ("opened_ts", _TIME), *_SUMS),
        ("close", pa.struct([("last_api", _TEXT), ("in_flight", _LONG)])),
    ]
)
_VERDICTS = pa.schema(
    [
        *(("date", pa.date32()), ("ts", _TIME), ("judged_ts", _TIME), ("idle_us", _LONG)),
        *((name, _END) for name in ("client", "server")),
        *((name, _TEXT) for name in ("key", "flow_id", "cause", "evidence", "ends", "by")),
    ]
)
_HIT = pa.list_(pa.struct([("count", _LONG), ("name", _TEXT)]))
_STORMS = pa.schema(
    [
        *((name, _TIME) for name in ("ts", "since_ts", "opened_ts", "resolved_ts")),
        *((name, _TEXT) for name in ("id", "kind", "subject", "state", "scope", "cause", "evidence")),
        *((name, _LONG) for name in ("batch_id", "count", "idle_us", "both_ends")),
        *((name, _HIT) for name in ("workloads", "brokers", "networks")),
        *(("date", pa.date32()), ("share", pa.float64())),
    ]
)
_AGENTS = pa.schema(
    [
        *(("date", pa.date32()), ("ts", _TIME), ("received_ts", _TIME), ("losses", pa.map_(_TEXT, _LONG))),
        *((name, _TEXT) for name in ("node", "agent_id", "backend", "kernel", "version")),
        *((name, _LONG) for name in ("seq", "connections", "cpu_us", "rss_bytes")),
    ]
)
_TRAFFIC = pa.schema(
    [
        *(("date", pa.date32()), ("window_start", _TIME), ("window_end", _TIME)),
        *((name, _TEXT) for name in ("node", "side", "comm", "container_name", "pod", "client_id", "api", "group")),
        *((name, _TEXT) for name in ("level", "topic", "topic_id", "software_name", "software_version", "opaque")),
        *((name, _TEXT) for name in ("cluster_id", "transactional_id")),
        *((name, _LONG) for name in ("records", "record_bytes", "uncounted_bytes", "refused_records")),
        *((name, _LONG) for name in ("refused_bytes", "api_key", "api_version", "acks", "batches", "throttle_ms")),
        *((name, _LONG) for name in ("responses", "pid", "start_time")),
        *_SUMS,
        *((name, pa.map_(_TEXT, _LONG)) for name in ("errors", "latency", "codecs")),
    ]
)
_PARTITION = pa.struct([("topic", _TEXT), ("topic_id", _TEXT), ("partition", _LONG), ("error", _LONG)])
_MEMBER = pa.struct([("member_id", _TEXT), ("instance_id", _TEXT)])
_REQUESTS = pa.schema(
    [
        *(("date", pa.date32()), ("ts", _TIME), ("received_ts", _TIME), ("client", _CLIENT), ("workload", _OWNER)),
        *((name, _TEXT) for name in ("node", "agent_id", "conn_id", "flow_id", "side", "local", "peer")),
        *((name, _TEXT) for name in ("api", "group", "status", "membership", "reason", "member_id", "instance_id")),
        *(("assignor", _TEXT), ("members", pa.list_(_MEMBER)), ("partitions", _LONG)),
        *((name, _LONG) for name in ("api_key", "api_version", "correlation_id", "response_bytes", "latency_us")),
        *(("seq", _LONG), ("generation", _LONG), ("member_epoch", _LONG)),
        *(("error_names", pa.map_(_TEXT, _LONG)), ("topics", pa.list_(_PARTITION))),
    ]
)
_OFFSETS = [
    *(("date", pa.date32()), ("received_ts", _TIME), ("ts", _TIME), ("seen_ts", _TIME)),
    *((name, _TEXT) for name in ("node", "agent_id", "cluster_id", "broker", "topic", "topic_id", "source")),
    *((name, _LONG) for name in ("partition", "offset")),
]
_TOPIC_NAMES = pa.schema([("date", pa.date32()), ("ts", _TIME), ("topic_id", _TEXT), ("topic", _TEXT)])
_ANSWERED = {"verdicts": _VERDICTS, "storms": _STORMS, "agents": _AGENTS, "opens": _OPENS, "closes": _CLOSES}
_ANSWERED |= {"traffic": _TRAFFIC, "topic_names": _TOPIC_NAMES, "requests": _REQUESTS}
_ANSWERED |= {"partition_ends": pa.schema(_OFFSETS), "group_positions": pa.schema([("group", _TEXT), *_OFFSETS])}


def write_tables(
    directory: Path, events: Sequence[Event], frames: Sequence[Event], verdicts: Sequence[Event] = ()
) -> None:
    """Write the tables `opens`, `closes`, `frames` and `verdicts` with the rows of these events."""
    for name, kind, schema in (("opens", "open", _OPENS), ("closes", "close", _CLOSES)):
        _write(directory / name, [_row(event, schema) for event in events if event["kind"] == kind], schema)
    samples = [row for event in frames for row in _samples(event)]
    _write(directory / "frames", samples, _FRAMES, "hour")
    _write(directory / "verdicts", [{"date": datetime.now(UTC).date(), **one} for one in verdicts], _VERDICTS)


def write_rows(directory: Path, name: str, rows: Sequence[Event]) -> None:
    """Write a table with such rows. Columns that they lack are null; `date` is that of the time."""
    times = ("received_ts", "window_start", "ts")
    dated = [{"date": next(row[time] for time in times if row.get(time)).date(), **row} for row in rows]
    _write(directory / name, dated, _ANSWERED[name])


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema, *partitions: str) -> None:
    table = pa.Table.from_pylist(rows, schema)
    write_deltalake(str(path), table, partition_by=["date", *partitions], mode="overwrite")


def _row(event: Event, schema: pa.Schema) -> dict[str, Any]:
    names = [name for name in ("ts", "closing_ts", "still_open_ts") if name in event]
    times = {name: datetime.fromtimestamp(event[name] / 1e6, UTC) for name in names}
    at, received = times["ts"], times.get("still_open_ts", times["ts"])
    own = {name: event.get(name) for name in schema.names} | {n: t for n, t in times.items() if n in schema.names}
    for name in {"client", "workload", "nat"} & {*schema.names}:
        fields = [field.name for field in schema.field(name).type]
        given = own[name]
        own[name] = None if given is None else {field: given.get(field) for field in fields}
    return {**own, "date": at.date(), "received_ts": received}


def _samples(event: Event) -> list[dict[str, Any]]:
    columns, rows = event["samples"], []
    for values in zip(*columns.values(), strict=True):
        sample = dict(zip(columns, values, strict=True))
        at = datetime.fromtimestamp((sample["monotonic_ns"] + event["wall_offset_ns"]) // 1000 / 1e6, UTC)
        of_event = {name: event[name] for name in ("node", "agent_id", "seq", "copy_rules")}
        numbers = {name: sample[name] for name in _NUMBERS}
        end, data = event["ends"][sample["end"]], b64decode(sample["data"])
        times = {"ts": at, "received_ts": at, "date": at.date(), "hour": at.hour}
        rows.append({**times, **of_event, **end, **numbers, "data": data})
    return rows
