"""Prints `request` events for `kafka-probe trace`: one line each, with columns in a fixed order, or as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafka_probe.errors import UsageError
from kafka_probe.events import owner_names
from kafka_probe.patterns import ConnectionNames, matches, matches_connection
from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.setting_types import ArchiveFilter, ExchangeSelection
from kafka_probe.sinks.outbox import encode
from kafka_probe.sinks.stdout import STDOUT, StdoutSink, shown

if TYPE_CHECKING:
    from kafka_probe.events import Event, RequestEvent, RequestTopic

COLUMNS = "{:15} {:10} {:>7} {:15} {:20} {:24} {:>9} {:>9} {:>9} {:>10}  {}"
_NARROW_CLIENT, _NARROW_API = 14, 20
_NARROW = f"{{:12}} {{:{_NARROW_CLIENT}}} {{:{_NARROW_API}}} {{:>10}}  {{}}"
WIDE = 140
"""A terminal with fewer columns gets lines with fewer fields, which are cut at its width."""
ANY_ERROR = "any"
_ERRORS = [name for name, code in ERROR_CODES.items() if code]
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
_NARROW_HEADER = _NARROW.format("TIME", "CLIENT", "API", "LATENCY", "ERRORS, TOPICS")


class RequestFilter(NamedTuple):
    """The exchanges to print. error: name or code of Kafka's, ANY_ERROR, or empty: also without an error."""

    selection: ExchangeSelection = ExchangeSelection("all")
    wanted: ArchiveFilter = ArchiveFilter()
    error: str = ""

    @classmethod
    def of(cls, selection: ExchangeSelection, choice: Mapping[str, str | None]) -> RequestFilter:
        """Return a filter. choice: values for fields of ArchiveFilter, and `error`; None is no condition.

        Raises:
            UsageError: a value is wrong.
        """
        given = {name: value for name, value in choice.items() if value}
        error = given.pop("error", "")
        error = ANY_ERROR if error.lower() == ANY_ERROR else error.upper()
        if selection.which == "off":
            raise UsageError("Set --requests to all, errors, slower:MS or 1/N: nothing is printed with off.")
        if error not in ("", ANY_ERROR, *_ERRORS) and not (error.isdecimal() and int(error)):
            nearest = "".join(f" The most similar one is {name}." for name in get_close_matches(error, _ERRORS, 1))
            raise UsageError(f"--error: Kafka has no error {error}.{nearest}")
        try:
            return cls(selection, ArchiveFilter.of(given), error)
        except ValueError as wrong:
            raise UsageError(f"Wrong choice of requests: {wrong}.") from None

    def chooses(self, event: RequestEvent) -> bool:
        """Return True if the event is to be printed. Agents also send some that the selection leaves out."""
        names = ConnectionNames(
            event["client"]["id"],
            event["workload"]["pid"],
            (event["local"], event["peer"]),
            (event["conn_id"], event["flow_id"]),
            lambda: owner_names(event["workload"]),
        )
        topics = (name for topic in event["topics"] for name in (topic["topic"], topic["topic_id"]))
        return (
            self.selection.chooses(failed=bool(event["errors"]), latency_us=event["latency_us"])
            and self.error in ("", *event["error_names"], *event["errors"], *([ANY_ERROR] if event["errors"] else []))
            and matches(self.wanted.api, event["api"])
            and matches_connection(self.wanted, names)
            and matches(self.wanted.topic, *topics)
        )


_ALL = RequestFilter()


def trace_sink(as_json: bool = False, descriptor: int = STDOUT, wanted: RequestFilter = _ALL) -> StdoutSink:
    """Return a sink that prints the wanted `request` events only; a header precedes lines of text."""
    width = (os.get_terminal_size(descriptor).columns if os.isatty(descriptor) else 0) or WIDE  # 0: not known
    head = f"{HEADER if width >= WIDE else _NARROW_HEADER[:width]}\n"

    def render(event: Event) -> bytes | None:
        nonlocal head
        if event["kind"] != "request" or not wanted.chooses(event):
            return None
        if as_json:
            return encode(event)
        # The first line brings the header: an agent that cannot start prints nothing.
        above, head = head, ""
        return (above + (line(event) if width >= WIDE else narrow_line(event, width))).encode()

    return StdoutSink(render, descriptor)


def line(event: RequestEvent) -> str:
    """Return one exchange as a line with its newline: time, process, client, API, sizes, latency, topics and errors."""
    workload = event["workload"]
    return (
        COLUMNS.format(
            _time(event),
            shown(event["side"]),
            shown(workload["pid"]),
            shown(workload["comm"])[:15],
            shown(event["client"]["id"])[:20],
            _api(event),
            shown(event["correlation_id"]),
            shown(event["request_bytes"]),
            shown(event["response_bytes"]),
            _latency(event),
            ", ".join([*_topics(event), *_errors(event)]),
        ).rstrip()
        + "\n"
    )


def narrow_line(event: RequestEvent, width: int) -> str:
    """Return the same in at most `width` characters, with fewer fields, and errors before topics."""
    from rich.cells import cell_len, set_cell_size

    name, _, version = _api(event).rpartition(" ")
    text = _NARROW.format(
        _time(event)[:12],
        set_cell_size(shown(event["client"]["id"]), _NARROW_CLIENT),
        f"{name[: _NARROW_API - len(version) - 1]} {version}",
        _latency(event),
        ", ".join([*_errors(event), *_topics(event)]),
    ).rstrip()
    return (text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…") + "\n"


def _time(event: RequestEvent) -> str:
    return datetime.fromtimestamp(event["ts"] / 1e6, UTC).astimezone().strftime("%H:%M:%S.%f")


def _api(event: RequestEvent) -> str:
    return f"{event['api']} v{event['api_version']}"


def _latency(event: RequestEvent) -> str:
    latency_us = event["latency_us"]
    return "-" if latency_us is None else f"{latency_us / 1000:.3f}ms"


def _topics(event: RequestEvent) -> list[str]:
    labels = (f"{label}={shown(event[name])}" for name, label in LABELS.items() if event.get(name) is not None)
    return [*map(_topic, event["topics"]), *labels]


def _errors(event: RequestEvent) -> list[str]:
    errors = [f"{shown(name)} x{count}" for name, count in event["error_names"].items()]
    return errors if event["status"] == "complete" else [*errors, f"({event['status']})"]


def _topic(topic: RequestTopic) -> str:
    name = shown(topic["topic"] or topic["topic_id"])
    partition = "" if topic["partition"] is None else f"-{topic['partition']}"
    offset = f"@{topic['offset']}" if "offset" in topic else ""
    records = f" {topic['records']} records" if topic.get("records") else ""
    codec = topic.get("codec", "none")
    return f"{name}{partition}{offset}{records}" + ("" if codec == "none" else f" {shown(codec)}")
