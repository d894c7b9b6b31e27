"""Shows traffic for `kafka-probe top`: which process uses which API on which topic, how often and how fast.

`TrafficTable` sums `flow` events into rows; two sinks print them: `LiveTop` as a table on a terminal, `PlainTop` as
plain text or JSON lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafka_probe.events import bucket_middle_us
from kafka_probe.sinks.outbox import encode
from kafka_probe.sinks.stdout import STDOUT, StdoutSink, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from kafka_probe.connections.connection import Connection
    from kafka_probe.events import Event, FlowEvent, FlowTopic


ROWS_KEPT = 16_384
"""Most rows in memory: requests of further rows are counted in one sum."""
ROWS_SHOWN = 1000
"""Most rows of a printed table: with names of any length they fit into the output buffer."""


class RowKey(NamedTuple):
    """The values that flows of one row have in common."""

    side: str
    pid: int | None
    comm: str | None
    container: str | None
    client_id: str | None
    library: str | None
    api: str | None
    api_version: int | None
    topic: str | None


@dataclass(slots=True)
class TopRow:
    """Sums over the observed time. `bytes` counts frames, or record sets if frames name several topics."""

    requests: int = 0
    bytes: int = 0
    records: int = 0
    errors: int = 0
    latency: Counter[int] = field(default_factory=Counter)

    def quantile_us(self, q: float) -> float | None:
        """Return the `q`-quantile of the latency of responses, in µs within 4.4 %; None without responses."""
        rank = q * self.latency.total()
        for bucket in sorted(self.latency):
            rank -= self.latency[bucket]
            if rank <= 0:
                return bucket_middle_us(bucket)
        return None


class TrafficTable:
    """Holds rows summed from `flow` events, and the seconds that they cover.

    internal: the rows include kafka-probe's own traffic; else `left_out` counts its requests. `excess_requests`
    counts requests of rows beyond ROWS_KEPT; `ended` counts closed connections that were not decoded, by `opaque`.
    """

    def __init__(self, *, internal: bool = False) -> None:
        self.rows: dict[RowKey, TopRow] = {}
        self.seconds = 0.0
        self.lost = 0
        self.left_out = 0
        self.excess_requests = 0
        self.ended: Counter[str] = Counter()
        self._internal = internal

    def add(self, events: Iterable[Event]) -> bool:
        """Add events; return True if an interval is complete: its `agent` event comes last and contains its length."""
        before = self.seconds
        for event in events:
            match event["kind"]:
                case "flow":
                    if event["internal"] and not self._internal:
                        self.left_out += event["requests"]
                    else:
                        self._add_flow(event)
                case "close":
                    if event["opaque"]:
                        self.ended[event["opaque"]] += 1
                case "agent":
                    self.seconds += (event["ts"] - event["since"]) / 1e6
                    self.lost = sum(event["losses"].values())
        return self.seconds > before

    def _add_flow(self, flow: FlowEvent) -> None:
        topics = flow["topics"]
        for topic in topics or (None,):
            if topic is None or len(topics) == 1:
                requests, errors = flow["requests"], flow["errors"]
                size_bytes = flow["request_bytes"] + flow["response_bytes"]
            else:
                requests, errors, size_bytes = topic["requests"], topic["errors"], topic["bytes"]
            key = _key(flow, topic)
            if key not in self.rows and len(self.rows) >= ROWS_KEPT:
                self.excess_requests += requests
                continue
            row = self.rows.setdefault(key, TopRow())
            row.requests += requests
            row.bytes += size_bytes
            row.records += topic["records"] if topic else 0
            row.errors += sum(errors.values())
            row.latency.update({int(bucket): count for bucket, count in flow["latency"].items()})

    def busiest(self) -> list[tuple[RowKey, TopRow]]:
        """Return all rows, most requests first."""
        return sorted(self.rows.items(), key=lambda item: (-item[1].requests, -item[1].bytes, str(item[0])))


def _key(flow: FlowEvent, topic: FlowTopic | None) -> RowKey:
    workload, client = flow["workload"], flow["client"]
    library = " ".join(filter(None, (client["software_name"], client["software_version"])))
    return RowKey(
        flow["side"],
        workload["pid"],
        workload["comm"],
        workload["pod"] or workload["container_name"] or workload["container_id"] or workload["unit"],
        client["id"],
        library or None,
        "(kafka-probe)" if flow["internal"] else flow["api"],
        flow["api_version"],
        (topic["topic"] or topic["topic_id"]) if topic else None,
    )


class Column(NamedTuple):
    """A heading and the alignment of its values.

    wide: only wide terminals show the column; long: its values may be cut, if not all columns fit.
    """

    name: str
    align: Literal["left", "right"]
    wide: bool = False
    long: bool = False


COLUMNS = (
    Column("SIDE", "left", wide=True),
    Column("PID", "right"),
    Column("COMM", "left"),
    Column("CONTAINER", "left", wide=True, long=True),
    Column("CLIENT", "left", long=True),
    Column("LIBRARY", "left", wide=True, long=True),
    Column("API", "left", long=True),
    Column("TOPIC", "left", long=True),
    Column("REQ/S", "right"),
    Column("KB/S", "right"),
    Column("REC/S", "right", wide=True),
    Column("P50 MS", "right", wide=True),
    Column("P99 MS", "right"),
    Column("ERRORS", "right"),
)
WIDE = 140


def cells(key: RowKey, row: TopRow, seconds: float) -> list[str]:
    """Return a row as texts, one cell per column."""
    p50, p99 = row.quantile_us(0.5), row.quantile_us(0.99)
    version = "" if key.api_version is None else f" v{key.api_version}"
    return [
        shown(key.side),
        shown(key.pid),
        shown(key.comm),
        _short(shown(key.container)),
        shown(key.client_id),
        shown(key.library),
        shown(key.api) + version,
        shown(key.topic),
        f"{row.requests / seconds:.1f}",
        f"{row.bytes / seconds / 1000:.1f}",
        f"{row.records / seconds:.1f}",
        "-" if p50 is None else f"{p50 / 1000:.2f}",
        "-" if p99 is None else f"{p99 / 1000:.2f}",
        str(row.errors or "-"),
    ]


def _short(container: str) -> str:
    """Return a container id as engines shorten it. Names of pods and units are kept whole: their ends differ."""
    return container[:12] if re.fullmatch(r"[0-9a-f]{64}", container) else container


def plain_table(traffic: TrafficTable, connections: Iterable[Connection] = ()) -> bytes:
    """Return the busiest rows as aligned text with a header, and a footer that includes the open connections."""
    seconds = traffic.seconds or 1.0
    rows = traffic.busiest()[:ROWS_SHOWN]
    table = [[column.name for column in COLUMNS], *(cells(key, row, seconds) for key, row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    alignment = ["<" if column.align == "left" else ">" for column in COLUMNS]
    lines = [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, alignment, widths, strict=True)).rstrip()
        for line in table
    ]
    return ("\n".join([*lines, _footer(traffic, len(rows), connections)]) + "\n").encode()


def json_lines(traffic: TrafficTable) -> Iterator[bytes]:
    """Yield one JSON object per row of the busiest; keys of equal meaning have the names of the events.

    If rows are left out, a last object has `rows_left_out` and `requests`: theirs and those of rows beyond ROWS_KEPT.
    """
    seconds = traffic.seconds or 1.0
    rows = traffic.busiest()
    for key, row in rows[:ROWS_SHOWN]:
        yield encode(
            {
                **key._asdict(),
                "seconds": round(seconds, 3),
                "requests": row.requests,
                "bytes": row.bytes,
                "records": row.records,
                "errors": row.errors,
                "latency_p50_us": row.quantile_us(0.5),
                "latency_p99_us": row.quantile_us(0.99),
            }
        )
    if left_out := rows[ROWS_SHOWN:]:
        requests = sum(row.requests for _, row in left_out) + traffic.excess_requests
        yield encode({"rows_left_out": len(left_out), "requests": requests})


def _footer(traffic: TrafficTable, shown_rows: int, connections: Iterable[Connection]) -> str:
    """Return a text on the time that the rows cover, on losses, on omitted rows, and on connections without rows."""
    parts = [f"{len(traffic.rows)} rows over {traffic.seconds:.1f} s, lost: {traffic.lost or 'nothing'}"]
    if left_out := len(traffic.rows) - shown_rows:
        parts.append(f"{_counted(left_out, 'row')} with fewer requests left out")
    if traffic.excess_requests:
        parts.append(f"{_counted(traffic.excess_requests, 'request')} of further rows not counted")
    found = Counter(connection.opaque for connection in connections if not connection.internal)
    if not traffic.rows:
        parts.append(f"no requests on {_counted(found.total(), 'open connection')}")
    for opaque, name in {"tls": "TLS", "unknown": "not Kafka"}.items():
        if count := found[opaque] + traffic.ended[opaque]:
            parts.append(f"{_counted(count, 'connection')} {'is' if count == 1 else 'are'} {name} and not decoded")
    if traffic.left_out:
        parts.append(f"{traffic.left_out} of kafka-probe's own requests are left out; --internal shows them")
    return "; ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class PlainTop(StdoutSink):
    """Prints a table or JSON lines per interval, or once: after `once_s` seconds or at an earlier close.

    `connections`, if set, returns the open connections.
    """

    def __init__(
        self,
        once_s: float | None = None,
        as_json: bool = False,
        descriptor: int = STDOUT,
        *,
        internal: bool = False,
    ) -> None:
        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self._once_s = once_s
        self._as_json = as_json
        self._internal = internal
        self._traffic = TrafficTable(internal=internal)
        super().__init__(descriptor=descriptor)

    def send(self, events: Sequence[Event]) -> None:
        complete = self._traffic.add(events)
        if complete and self._once_s is None:
            self._print()
        elif complete and self._traffic.seconds >= 0.98 * (self._once_s or 0):
            self.on_closed()

    def close(self, timeout_s: float) -> None:
        if self._once_s is not None and self._traffic.seconds:
            self._print()
        super().close(timeout_s)

    def _print(self) -> None:
        if self._as_json:
            self.write(list(json_lines(self._traffic)))
        else:
            self.write([plain_table(self._traffic, self.connections())])
        self._traffic = TrafficTable(internal=self._internal)


class LiveTop:
    """Updates a table on the terminal; rich draws it in its own thread.

    `connections`, if set, returns the open connections. console: the terminal, by default that of standard output.
    """

    def __init__(self, *, internal: bool = False, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self._internal = internal
        self._traffic = TrafficTable(internal=internal)
        self._console = console or Console()
        self._live = Live("Waiting for the first interval ...", console=self._console, refresh_per_second=2)

    def send(self, events: Sequence[Event]) -> None:
        self._live.start()  # idempotent; starts rich's thread
        if self._traffic.add(events):
            self._live.update(self.table(self._traffic))
            self._traffic = TrafficTable(internal=self._internal)

    def close(self, timeout_s: float) -> None:  # noqa: ARG002  # no events are queued
        self._live.stop()

    def losses(self) -> Mapping[str, int]:
        return {}

    def counters(self) -> Mapping[str, int]:
        return {}

    def trouble(self) -> str | None:
        return None

    def table(self, traffic: TrafficTable) -> Table:
        """Return the busiest rows, as many as the terminal has lines, in the columns that fit into it."""
        from rich.table import Table
        from rich.text import Text

        rows = traffic.busiest()[: max(self._console.height - 4, 1)]
        table = Table(
            box=None,
            expand=True,
            caption=Text(_footer(traffic, len(rows), self.connections())),
            caption_justify="left",
            pad_edge=False,
        )
        shown_columns = [self._console.width >= WIDE or not column.wide for column in COLUMNS]
        for column in compress(COLUMNS, shown_columns):
            table.add_column(column.name, justify=column.align, no_wrap=not column.long, min_width=len(column.name))
        for key, row in rows:
            texts = (Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells(key, row, traffic.seconds or 1.0))
            table.add_row(*compress(texts, shown_columns))
        return table


def top_sink(once_s: float | None = None, as_json: bool = False, *, internal: bool = False) -> PlainTop | LiveTop:
    """Return a live sink on a terminal; a plain one for pipes, JSON, one table, or a dumb terminal."""
    if once_s is None and not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return LiveTop(internal=internal)
    return PlainTop(once_s, as_json, internal=internal)
