"""Sums of the agent's events for /metrics, by a bounded number of label sets. Only the server's thread uses them.

Sums by side and API are kept from the agent's start to its end. Tables of workloads and topics hold a fixed number of
label sets. Further ones are counted under `other`, so that sums over all workloads or topics remain correct. A
workload without open connections and events for 15 minutes is dropped. When the table of topics is full, topics that
were not used for an hour are dropped. The sums by side and API keep the counts of both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from kafka_probe.events import (
    AgentEvent,
    CloseEvent,
    Event,
    FlowEvent,
    FlowTopic,
    OpenCountFacts,
    bucket_middle_us,
    is_internal,
)
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.text import printable

OTHER = "other"
_SHORT = 12  # characters of a container id, as container engines show it
ENDED_US = 15 * 60 * 1_000_000
UNUSED_US = 3600 * 1_000_000
LABEL_BYTES = 64
"""Most bytes of the labels of a row in UTF-8, on average over the rows that a table may have."""
ERRORS = 5
"""Most names of errors of a row by workload; further errors count as OTHER."""
SIDES = ("client", "server")
ENDS = tuple(
    (how, closed_by)
    for how in ("fin", "rst_sent", "rst_received", "timeout", "unknown")
    for closed_by in ("local", "peer", "unknown")
)
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Labels = tuple[str, ...]
LabelRow = TypeVar("LabelRow")


class OwnerLabels(NamedTuple):
    """The labels of a workload."""

    side: str
    workload: str
    comm: str


@dataclass(slots=True)
class Histogram:
    """Counts of latencies between successive BOUNDS_S and above the last one, and the sum of the latencies."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, latency: Mapping[str, int]) -> None:
        """Add the counts by bucket of a `flow` event. A latency counts as its bucket's middle, within 4.4 % of it."""
        for bucket, count in latency.items():
            index, middle_s = _of_bucket(bucket)
            self.counts[index] += count
            self.sum_s += middle_s * count


@cache
def _of_bucket(bucket: str) -> tuple[int, float]:
    middle_s = bucket_middle_us(int(bucket)) / 1e6
    return bisect_left(BOUNDS_S, middle_s), middle_s


@dataclass(slots=True)
class FlowCounters:
    """Sums over `flow` events."""

    most_errors: ClassVar[int] = len(ERROR_NAMES)
    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    records: int = 0
    throttle_ms: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, flow: FlowEvent) -> None:
        self.requests += flow["requests"]
        self.responses += flow["responses"]
        self.request_bytes += flow["request_bytes"]
        self.response_bytes += flow["response_bytes"]
        self.records += sum(topic["records"] for topic in flow["topics"])
        self.throttle_ms += flow["throttle_ms"]
        _count_errors(self.errors, flow["errors"], self.most_errors)


@dataclass(slots=True)
class WorkloadCounters(FlowCounters):
    """The same sums with latencies; fetches that were answered without data have their own histogram."""

    most_errors: ClassVar[int] = ERRORS
    latency: Histogram = field(default_factory=Histogram)
    latency_empty: Histogram = field(default_factory=Histogram)

    def add(self, flow: FlowEvent) -> None:
        FlowCounters.add(self, flow)
        self.latency.add(flow["latency"])
        self.latency_empty.add(flow["latency_empty"])


@dataclass(slots=True)
class TopicCounters:
    """Sums over a topic's entries in `flow` events.

    since, ts: start of the first and end of the last interval with an entry, µs since epoch. used_us: time of the last
    use, as the sum of the agent's intervals until then.
    """

    topic_id: str | None = None
    since: int = 0
    ts: int = 0
    used_us: int = 0
    requests: int = 0
    records: int = 0
    bytes: int = 0
    uncounted_bytes: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, flow: FlowEvent, topic: FlowTopic) -> None:
        self.topic_id = topic["topic_id"] or self.topic_id
        self.since, self.ts = self.since or flow["since"], flow["ts"]
        self.requests += topic["requests"]
        self.records += topic["records"]
        self.bytes += topic["bytes"]
        self.uncounted_bytes += topic["uncounted_bytes"]
        _count_errors(self.errors, topic["errors"], ERRORS)


@dataclass(slots=True)
class CloseTotals:
    """Counts the connections that ended in one way."""

    count: int = 0


def _count_errors(names: Counter[str], codes: Mapping[str, int], most: int) -> None:
    for code, count in codes.items():
        name = ERROR_NAMES.get(int(code), "unknown")
        names[name if name in names or len(names) < most else OTHER] += count


class LabelTable(Generic[LabelRow]):
    """Holds rows by workload and further labels: at most `limit` rows, besides those of OTHER.

    Their labels have at most LABEL_BYTES on average, so a table of long labels has fewer rows.
    """

    def __init__(self, make: Callable[[], LabelRow], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._size = 0
        self._label_bytes = 0
        self._refused = False
        self._rows: dict[OwnerLabels, dict[Labels, LabelRow]] = {}
        self._others: dict[Labels, LabelRow] = defaultdict(make)

    def row(self, owner: OwnerLabels, labels: Labels, others: Labels) -> LabelRow:
        """Return the row of the labels; if the table is full, that of the workload OTHER with the labels `others`."""
        rows = self._rows.get(owner)
        if rows and (row := rows.get(labels)):
            return row
        label_bytes = self._label_bytes + _label_bytes(owner, labels)
        if self._size >= self._limit or label_bytes > self._limit * LABEL_BYTES:
            self._refused = True
            return self._others[owner.side, OTHER, OTHER, *others]
        if owner.workload == OTHER:
            return self._others[(*owner, *others)]
        self._size += 1
        self._label_bytes = label_bytes
        row = self._rows.setdefault(owner, {})[labels] = self._make()
        return row

    def forget(self, owner: OwnerLabels) -> None:
        for labels in self._rows.pop(owner, ()):
            self._drop(owner, labels)

    def keep(self, wanted: Callable[[LabelRow], bool]) -> None:
        """Drop all rows that are not wanted, except those of OTHER."""
        for owner, rows in list(self._rows.items()):
            kept = {labels: row for labels, row in rows.items() if wanted(row)}
            for labels in rows.keys() - kept:
                self._drop(owner, labels)
            if kept:
                self._rows[owner] = kept
            else:
                del self._rows[owner]

    @property
    def full(self) -> bool:
        """Return True if no row fits, or one did not since rows were dropped."""
        return self._size >= self._limit or self._refused

    @property
    def owners(self) -> AbstractSet[OwnerLabels]:
        """Return all workloads that have rows, except OTHER."""
        return self._rows.keys()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[Labels, LabelRow]]:
        for owner, rows in self._rows.items():
            yield from (((*owner, *labels), row) for labels, row in rows.items())
        yield from self._others.items()

    def _drop(self, owner: OwnerLabels, labels: Labels) -> None:
        self._refused = False
        self._size -= 1
        self._label_bytes -= _label_bytes(owner, labels)


class Traffic:
    """Sums of all events since the start, with at most `limit` label sets in each table.

    `agent` is the last `agent` event, empty before the first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.agent: Mapping[str, Any] = {}  # the last `agent` event, of which metrics are read by name
        self.apis: dict[Labels, FlowCounters] = {}  # by side and API
        self.workloads = LabelTable(WorkloadCounters, limit)  # by workload and API
        self.topics = LabelTable(TopicCounters, limit)  # by workload, API and topic
        self.closes = LabelTable(CloseTotals, limit)  # by workload, `how` and `closed_by`
        # From 0: if a counter's first sample is its first increase, Prometheus does not see that increase.
        self.internal_requests: Counter[Labels] = Counter({(side,): 0 for side in SIDES})
        self.opened: Counter[Labels] = Counter({(side,): 0 for side in SIDES})
        self.closed: Counter[Labels] = Counter({(side, *end): 0 for side in SIDES for end in ENDS})
        self.resets = 0
        self.open: Counter[OwnerLabels] = Counter()  # open connections now
        self._spoke: set[OwnerLabels] = set()  # workloads with events in this interval
        self._absent: dict[OwnerLabels, int] = {}  # `_passed_us` when the workload was first absent
        self._passed_us = 0  # sum of the agent's intervals, which steps of the wall clock do not change

    def add(self, events: Sequence[Event]) -> None:
        """Add events in their order; an `agent` event ends an interval."""
        for event in events:
            match event["kind"]:
                case "flow":
                    self._add_flow(event)
                case "close":
                    self._add_close(event)
                case "open":
                    first = event.get("still_open_ts") is None
                    self.opened[event["side"],] += first and event["found"] == "start"
                case "reset":
                    self.resets += 1
                case "agent":
                    self._end_interval(event)

    def _add_flow(self, flow: FlowEvent) -> None:
        if flow["internal"]:
            self.internal_requests[flow["side"],] += flow["requests"]
            return
        owner, api = _owner(flow), flow["api"] or "unknown"
        self._spoke.add(owner)
        self.apis.setdefault((owner.side, api), FlowCounters()).add(flow)
        self.workloads.row(owner, (api,), (api,)).add(flow)
        for topic in used_topics(flow):
            name = printable(topic["topic"] or topic["topic_id"] or OTHER)
            named = self.topics.row(owner, (api, name), (api, OTHER))
            named.add(flow, topic)
            named.used_us = self._passed_us

    def _add_close(self, close: CloseEvent) -> None:
        if is_internal(close["client"]["id"]):
            return
        owner, end = _owner(close), (close["how"], close["closed_by"])
        self._spoke.add(owner)
        self.closed[owner.side, *end] += 1
        self.closes.row(owner, end, end).count += 1

    def _end_interval(self, agent: AgentEvent) -> None:
        self.agent = agent
        self._add_other(agent["other"])
        open_now: Counter[OwnerLabels] = Counter()
        for entry in agent["open"]:
            open_now[_owner(entry)] += entry["count"]
        self._passed_us += agent["ts"] - agent["since"]
        self._forget_ended(open_now.keys() | self._spoke)
        if self.topics.full:
            self.topics.keep(lambda named: self._passed_us - named.used_us < UNUSED_US)
        self._spoke = set()
        self.open = _largest(open_now, self.limit)

    def _add_other(self, counts: Mapping[str, int]) -> None:
        """Add the counts of events that were not sent singly. Their keys have the form KIND/SIDE/HOW/CLOSED_BY."""
        for name, count in counts.items():
            kind, *which = name.split("/")
            match kind, which:
                case "close", [side, how, closed_by]:
                    self.closed[side, how, closed_by] += count
                    end = how, closed_by
                    self.closes.row(OwnerLabels(side, OTHER, OTHER), end, end).count += count
                case "open", [side]:
                    self.opened[side,] += count
                case "reset", []:
                    self.resets += count

    def _forget_ended(self, there: AbstractSet[OwnerLabels]) -> None:
        tables: Iterable[LabelTable[Any]] = (self.workloads, self.topics, self.closes)
        absent = set[OwnerLabels]().union(*(table.owners for table in tables)) - there
        self._absent = {owner: self._absent.get(owner, self._passed_us) for owner in absent}
        for owner, since_us in self._absent.items():
            if self._passed_us - since_us >= ENDED_US:
                for table in tables:
                    table.forget(owner)


def used_topics(flow: FlowEvent) -> Iterator[FlowTopic]:
    """Return the topics that were requested or transferred. A Metadata response may also contain all other topics."""
    return (topic for topic in flow["topics"] if topic["requests"] or topic["bytes"] or topic["errors"])


def _owner(event: FlowEvent | CloseEvent | OpenCountFacts) -> OwnerLabels:
    if event.get("conn_id", "") is None:
        return OwnerLabels(event["side"], OTHER, OTHER)
    workload = event["workload"]
    # The owner of a pod outlives the pod: a rollout makes no new label sets.
    if named := workload["owner_name"] or workload["pod"]:
        where = f"{printable(workload['namespace'])}/{printable(named)}"
    else:
        container = printable(workload["container_name"] or "") or (workload["container_id"] or "")[:_SHORT]
        where = container or printable(workload["unit"] or "")
    return OwnerLabels(event["side"], where, printable(workload["comm"] or ""))


def _label_bytes(owner: OwnerLabels, labels: Labels) -> int:
    return sum(len(label.encode()) for label in (*owner, *labels))


def _largest(counts: Counter[OwnerLabels], limit: int) -> Counter[OwnerLabels]:
    """Return the counts of the `limit` largest workloads, and the sum of all others as OTHER."""
    if len(counts) <= limit:
        return counts
    kept = counts.most_common()
    largest = Counter(dict(kept[:limit]))
    for owner, count in kept[limit:]:
        largest[OwnerLabels(owner.side, OTHER, OTHER)] += count
    return largest
