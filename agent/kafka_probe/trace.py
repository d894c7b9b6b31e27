"""Prints `request` events for `kafka-probe trace`: one line each, with columns in a fixed order, or as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kafka_probe.sinks.outbox import encode
from kafka_probe.sinks.stdout import STDOUT, StdoutSink, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_probe.events import Event

COLUMNS = "{:15} {:10} {:>7} {:15} {:20} {:24} {:>9} {:>9} {:>9} {:>10}  {}"
LABELS = {
    "group": "group",
    "instance_id": "instance",
    "transactional_id": "txn",
    "acks": "acks",
    "mechanism": "sasl",
}
HEADER = COLUMNS.format(
    "TIME", "SIDE", "PID", "COMM", "CLIENT", "API", "CORR", "SENT", "ANSWERED", "LATENCY", "TOPICS, ERRORS"
)


def trace_sink(as_json: bool = False, descriptor: int = STDOUT) -> StdoutSink:
    """Return a sink that prints only `request` events; a header precedes lines of text."""
    head = f"{HEADER}\n"

    def render(event: Event) -> bytes | None:
        nonlocal head
        if event["kind"] != "request":
            return None
        if as_json:
            return encode(event)
        # The first line brings the header: an agent that cannot start prints nothing.
        above, head = head, ""
        return (above + line(event)).encode()

    return StdoutSink(render, descriptor)


def line(event: Event) -> str:
    """Return one exchange as a line with its newline: time, process, client, API, sizes, latency, topics and errors."""
    workload, client = _object(event, "workload"), _object(event, "client")
    when = datetime.fromtimestamp(float(str(event.get("ts") or 0)) / 1e6, UTC).astimezone().strftime("%H:%M:%S.%f")
    latency = event.get("latency_us")
    return (
        COLUMNS.format(
            when,
            shown(event.get("side")),
            workload.get("pid") or "-",
            shown(workload.get("comm"))[:15],
            shown(client.get("id"))[:20],
            f"{event.get('api')} v{event.get('api_version')}",
            shown(event.get("correlation_id")),
            shown(event.get("request_bytes")),
            shown(event.get("response_bytes")),
            "-" if latency is None else f"{int(str(latency)) / 1000:.3f}ms",
            _about(event),
        ).rstrip()
        + "\n"
    )


def _about(event: Mapping[str, Any]) -> str:
    parts = [_topic(topic) for topic in event.get("topics") or ()]
    parts += [f"{label}={shown(event[name])}" for name, label in LABELS.items() if event.get(name) is not None]
    parts += [f"{shown(name)} x{count}" for name, count in (event.get("error_names") or {}).items()]
    status = event.get("status")
    return ", ".join(parts + ([] if status in (None, "complete") else [f"({status})"]))


def _topic(topic: Mapping[str, Any]) -> str:
    name = shown(topic.get("topic") or topic.get("topic_id"))
    partition = "" if topic.get("partition") is None else f"-{topic['partition']}"
    offset = "" if topic.get("offset") is None else f"@{topic['offset']}"
    records = f" {topic['records']} records" if topic.get("records") else ""
    codec = f" {shown(topic['codec'])}" if topic.get("codec") not in (None, "none") else ""
    return f"{name}{partition}{offset}{records}{codec}"


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return event.get(name) or {}
