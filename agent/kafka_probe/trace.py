"""Prints `request` events for `kafka-probe trace`: one line each, with columns in a fixed order, or as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from kafka_probe.sinks.outbox import encode
from kafka_probe.sinks.stdout import STDOUT, StdoutSink, shown

if TYPE_CHECKING:
    from kafka_probe.events import Event, RequestEvent, RequestTopic

COLUMNS = "{:15} {:10} {:>7} {:15} {:20} {:24} {:>9} {:>9} {:>9} {:>10}  {}"
_Label = Literal["group", "instance_id", "transactional_id", "acks", "mechanism"]
LABELS: dict[_Label, str] = {
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


def line(event: RequestEvent) -> str:
    """Return one exchange as a line with its newline: time, process, client, API, sizes, latency, topics and errors."""
    workload, latency_us = event["workload"], event["latency_us"]
    when = datetime.fromtimestamp(event["ts"] / 1e6, UTC).astimezone().strftime("%H:%M:%S.%f")
    return (
        COLUMNS.format(
            when,
            shown(event["side"]),
            shown(workload["pid"]),
            shown(workload["comm"])[:15],
            shown(event["client"]["id"])[:20],
            f"{event['api']} v{event['api_version']}",
            shown(event["correlation_id"]),
            shown(event["request_bytes"]),
            shown(event["response_bytes"]),
            "-" if latency_us is None else f"{latency_us / 1000:.3f}ms",
            _about(event),
        ).rstrip()
        + "\n"
    )


def _about(event: RequestEvent) -> str:
    parts = [_topic(topic) for topic in event["topics"]]
    parts += [f"{label}={shown(event[name])}" for name, label in LABELS.items() if event.get(name) is not None]
    parts += [f"{shown(name)} x{count}" for name, count in event["error_names"].items()]
    status = event["status"]
    return ", ".join(parts + ([] if status == "complete" else [f"({status})"]))


def _topic(topic: RequestTopic) -> str:
    name = shown(topic["topic"] or topic["topic_id"])
    partition = "" if topic["partition"] is None else f"-{topic['partition']}"
    offset = f"@{topic['offset']}" if "offset" in topic else ""
    records = f" {topic['records']} records" if topic.get("records") else ""
    codec = topic.get("codec", "none")
    return f"{name}{partition}{offset}{records}" + ("" if codec == "none" else f" {shown(codec)}")
