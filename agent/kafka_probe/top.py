"""Shows traffic for `kafka-probe top`: which process uses which API on which topic, how often and how fast.

`TrafficTable` sums `flow` events into rows; two sinks print them: `LiveTop` as a table on a terminal, `PlainTop` as
plain text or JSON lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafka_probe.events import bucket_middle_us
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.sinks.outbox import encode
from kafka_probe.sinks.stdout import STDOUT, StdoutSink, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from kafka_probe.connections.connection import Connection
    from kafka_probe.connections.offsets import GroupLag
    from kafka_probe.events import Event, FlowEvent, FlowTopic


_OWN = "(kafka-probe)"  # the API of kafka-probe's own traffic
ROWS_KEPT = 16_384
"""Most rows in memory: requests of further rows are counted in one sum."""
ROWS_SHOWN = 1000
"""Most rows of a printed table: with names of any length they fit into the output buffer."""


class RowKey(NamedTuple):
    """The values that flows of one row have in common. peer: the broker's address, or the host of a broker's client."""

    side: str
    pid: int | None
    comm: str | None
    container: str | None
    client_id: str | None
    library: str | None
    peer: str | None
    group: str | None
    api: str | None
    api_version: int | None
    topic: str | None

    @property
    def internal(self) -> bool:
        return self.api == _OWN


@dataclass(slots=True)
class TopRow:
    """Sums over the observed time. `bytes` counts frames, or record sets if frames name several topics.

    errors: by Kafka's name.
    """

    requests: int = 0
    bytes: int = 0
    records: int = 0
    errors: Counter[str] = field(default_factory=Counter)
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

    internal: the rows include kafka-probe's own traffic; else `left_out` counts its requests. both_ends_here: see
    TableSink; such connections have the rows of their client's ends. `excess_requests` counts requests of rows beyond
    ROWS_KEPT; `ended` counts closed connections that were not decoded, by `opaque`.
    """

    def __init__(self, *, internal: bool = False, both_ends_here: Callable[[], Collection[str]] = frozenset) -> None:
        self.rows: dict[RowKey, TopRow] = {}
        self.seconds = 0.0
        self.lost: Mapping[str, int] = {}
        self.left_out = 0
        self.excess_requests = 0
        self.ended: Counter[str] = Counter()
        self._internal = internal
        self._both_ends_here = both_ends_here
        self._here: Collection[str] | None = None  # in this interval

    def add(self, events: Sequence[Event]) -> bool:
        """Add events; return True if an interval is complete: its `agent` event comes last and contains its length."""
        before = self.seconds
        for event in events:
            match event["kind"]:
                case "flow":
                    if event["internal"] and not self._internal:
                        self.left_out += event["requests"]
                    elif event["side"] == "client" or not self._is_here(event["flow_id"]):
                        self._add_flow(event)
                case "close":
                    if event["opaque"]:
                        self.ended[event["opaque"]] += 1
                case "agent":
                    self._here = None
                    self.seconds += (event["ts"] - event["since"]) / 1e6
                    self.lost = {reason: count for reason, count in event["losses"].items() if count}
        return self.seconds > before

    def _is_here(self, flow_id: str | None) -> bool:
        """Return True if both ends of a connection are on this host. Connections are looked at once per interval."""
        if self._here is None:
            self._here = self._both_ends_here()
        return flow_id in self._here

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
            for code, count in errors.items():
                row.errors[ERROR_NAMES.get(int(code), code)] += count
            row.latency.update({int(bucket): count for bucket, count in flow["latency"].items()})

    def busiest(self) -> list[tuple[RowKey, TopRow]]:
        """Return all rows, most requests first."""
        return sorted(self.rows.items(), key=lambda item: (-item[1].requests, -item[1].bytes, str(item[0])))


def _key(flow: FlowEvent, topic: FlowTopic | None) -> RowKey:
    workload, client, peer = flow["workload"], flow["client"], flow["peer"]
    library = " ".join(filter(None, (client["software_name"], client["software_version"])))
    if peer and flow["side"] == "server":
        peer = peer.rpartition(":")[0]
    return RowKey(
        flow["side"],
        workload["pid"],
        workload["comm"],
        workload["pod"] or workload["container_name"] or workload["container_id"] or workload["unit"],
        client["id"],
        library or None,
        peer,
        flow["group"],
        _OWN if flow["internal"] else flow["api"],
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
    Column("PEER", "left", wide=True, long=True),
    Column("API", "left", long=True),
    Column("TOPIC", "left", long=True),
    Column("REQ/S", "right"),
    Column("KB/S", "right"),
    Column("REC/S", "right", wide=True),
    Column("P50 MS", "right", wide=True),
    Column("P99 MS", "right"),
    Column("LAG", "right", wide=True),
    Column("ERRORS", "right"),
    Column("ERROR", "left", wide=True, long=True),
)
WIDE = 160
_FETCHES = frozenset(("Fetch", "ShareFetch"))
_REASONS = 3  # of losses, those with the largest counts

Lags = Mapping[tuple[str | None, str | None], int]
"""Records by which a group is behind in a topic."""


def cells(key: RowKey, row: TopRow, seconds: float, lags: Lags = MappingProxyType({})) -> list[str]:
    """Return a row as texts, one cell per column."""
    lag = _lag(key, lags)
    (error, _), *_ = row.errors.most_common(1) or [("-", 0)]
    p50, p99 = row.quantile_us(0.5), row.quantile_us(0.99)
    version = "" if key.api_version is None else f" v{key.api_version}"
    return [
        shown(key.side),
        shown(key.pid),
        shown(key.comm),
        _short(shown(key.container)),
        shown(key.client_id),
        shown(key.library),
        shown(key.peer),
        shown(key.api) + version,
        shown(key.topic),
        f"{row.requests / seconds:.1f}",
        f"{row.bytes / seconds / 1000:.1f}",
        f"{row.records / seconds:.1f}",
        "-" if p50 is None else f"{p50 / 1000:.2f}",
        "-" if p99 is None else f"{p99 / 1000:.2f}",
        shown(lag),
        str(row.errors.total() or "-"),
        error,
    ]


def _lag(key: RowKey, lags: Lags) -> int | None:
    return lags.get((key.group, key.topic)) if key.api in _FETCHES else None


def _short(container: str) -> str:
    """Return a container id as engines shorten it. Names of pods and units are kept whole: their ends differ."""
    return container[:12] if re.fullmatch(r"[0-9a-f]{64}", container) else container


def plain_table(
    traffic: TrafficTable, connections: Iterable[Connection] = (), lags: Lags = MappingProxyType({})
) -> bytes:
    """Return the busiest rows as aligned text with a header, and a footer that includes the open connections."""
    seconds = traffic.seconds or 1.0
    rows = traffic.busiest()[:ROWS_SHOWN]
    table = [[column.name for column in COLUMNS], *(cells(key, row, seconds, lags) for key, row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    alignment = ["<" if column.align == "left" else ">" for column in COLUMNS]
    lines = [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, alignment, widths, strict=True)).rstrip()
        for line in table
    ]
    return ("\n".join([*lines, footer(traffic, len(traffic.rows), len(rows), connections)]) + "\n").encode()


def json_lines(traffic: TrafficTable, lags: Lags = MappingProxyType({})) -> Iterator[bytes]:
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
                "errors": row.errors.total(),
                "error_names": row.errors,
                "lag": _lag(key, lags),
                "latency_p50_us": row.quantile_us(0.5),
                "latency_p99_us": row.quantile_us(0.99),
            }
        )
    if left_out := rows[ROWS_SHOWN:]:
        requests = sum(row.requests for _, row in left_out) + traffic.excess_requests
        yield encode({"rows_left_out": len(left_out), "requests": requests})


def footer(traffic: TrafficTable, rows: int, printed: int, connections: Iterable[Connection]) -> str:
    """Return a text on the time that the rows cover, on losses, on omitted rows, and on connections without rows.

    rows, printed: how many rows there are, and how many of them are printed.
    """
    lost = sorted(traffic.lost.items(), key=lambda item: -item[1])
    reasons = [f"{reason} {count}" for reason, count in lost[:_REASONS]]
    if others := sum(count for _, count in lost[_REASONS:]):
        reasons.append(f"others {others}")
    parts = [f"{rows} rows over {traffic.seconds:.1f} s, lost: {', '.join(reasons) or 'nothing'}"]
    if left_out := rows - printed:
        parts.append(f"the last {_counted(left_out, 'row')} left out")
    if traffic.excess_requests:
        parts.append(f"{_counted(traffic.excess_requests, 'request')} of further rows not counted")
    found = Counter(connection.opaque for connection in connections if not connection.internal)
    if all(key.internal for key in traffic.rows) and not rows:
        parts.append(f"no requests on {_counted(found.total(), 'open connection')}")
    for opaque, name in {"tls": "TLS", "unknown": "not Kafka"}.items():
        if count := found[opaque] + traffic.ended[opaque]:
            parts.append(f"{_counted(count, 'connection')} {'is' if count == 1 else 'are'} {name} and not decoded")
    if traffic.left_out:
        parts.append(f"{traffic.left_out} of kafka-probe's own requests are left out; --internal shows them")
    return "; ".join(parts)


def by_topic(lags: Iterable[GroupLag]) -> Lags:
    """Return lags by group and topic; those of clusters with equal names are added."""
    found = Counter[tuple[str | None, str | None]]()
    for lag in lags:
        found[lag.group, lag.topic] += lag.total
    return found


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class PlainTop(StdoutSink):
    """Prints a table or JSON lines per interval, or once: after `once_s` seconds or at an earlier close.

    `connections` and `lags`, if set, return the open connections, and how far groups are behind.
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
        self.lags: Callable[[], Sequence[GroupLag]] = lambda: ()
        self.both_ends_here: Callable[[], Collection[str]] = frozenset
        self._once_s = once_s
        self._as_json = as_json
        self._internal = internal
        self._traffic = self._empty()
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
        lags = by_topic(self.lags())
        if self._as_json:
            self.write(list(json_lines(self._traffic, lags)))
        else:
            self.write([plain_table(self._traffic, self.connections(), lags)])
        self._traffic = self._empty()

    def _empty(self) -> TrafficTable:
        return TrafficTable(internal=self._internal, both_ends_here=lambda: self.both_ends_here())


class LiveTop:
    """Updates a table on the terminal; rich draws it in its own thread.

    `connections` and `lags`, if set, return the open connections, and how far groups are behind. console: the terminal,
    by default that of standard output.
    """

    def __init__(self, *, internal: bool = False, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self.lags: Callable[[], Sequence[GroupLag]] = lambda: ()
        self.both_ends_here: Callable[[], Collection[str]] = frozenset
        self._internal = internal
        self._traffic = self._empty()
        self._console = console or Console()
        self._live = Live("Waiting for the first interval ...", console=self._console, refresh_per_second=2)

    def send(self, events: Sequence[Event]) -> None:
        self._live.start()  # idempotent; starts rich's thread
        if self._traffic.add(events):
            self._live.update(self.table(self._traffic))
            self._traffic = self._empty()

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

        rows, lags = traffic.busiest()[: max(self._console.height - 4, 1)], by_topic(self.lags())
        table = Table(
            box=None,
            expand=True,
            caption=Text(footer(traffic, len(traffic.rows), len(rows), self.connections())),
            caption_justify="left",
            pad_edge=False,
        )
        shown_columns = [self._console.width >= WIDE or not column.wide for column in COLUMNS]
        for column in compress(COLUMNS, shown_columns):
            table.add_column(column.name, justify=column.align, no_wrap=not column.long, min_width=len(column.name))
        for key, row in rows:
            of_row = cells(key, row, traffic.seconds or 1.0, lags)
            texts = (Text(cell, no_wrap=True, overflow="ellipsis") for cell in of_row)
            table.add_row(*compress(texts, shown_columns))
        return table

    def _empty(self) -> TrafficTable:
        return TrafficTable(internal=self._internal, both_ends_here=lambda: self.both_ends_here())
