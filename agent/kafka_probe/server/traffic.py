"""Sums of the agent's events for /metrics, by a bounded number of label sets. Only the server's thread uses them.

Sums by side and API are kept from the agent's start to its end. Tables of workloads, clients, topics and closes hold a
fixed number of label sets, see label_tables.py: the sums by side and API keep the counts of those that are dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

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
from kafka_probe.server.label_tables import OTHER, Labels, LabelTable
from kafka_probe.text import printable

_SHORT = 12  # characters of a container id, as container engines show it
ERRORS = 5
"""Most names of errors of a row in a table; further errors count as OTHER."""
SIDES = ("client", "server")
ENDS = tuple(
    (how, closed_by)
    for how in ("fin", "rst_sent", "rst_received", "timeout", "unknown")
    for closed_by in ("local", "peer", "unknown")
)
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class OwnerLabels(NamedTuple):
    """The labels of a workload."""

    side: str
    workload: str
    comm: str


class ClientLabels(NamedTuple):
    """The labels of a client and, for consumers, its group."""

    id: str
    library: str
    group: str


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
        count_errors(self.errors, flow["errors"], self.most_errors)


@dataclass(slots=True)
class ClientCounters(FlowCounters):
    """The same sums with few names of errors."""

    most_errors: ClassVar[int] = ERRORS


@dataclass(slots=True)
class WorkloadCounters(ClientCounters):
    """The same with latencies; fetches that were answered without data have their own histogram."""

    latency: Histogram = field(default_factory=Histogram)
    latency_empty: Histogram = field(default_factory=Histogram)

    def add(self, flow: FlowEvent) -> None:
        FlowCounters.add(self, flow)
        self.latency.add(flow["latency"])
        self.latency_empty.add(flow["latency_empty"])


@dataclass(slots=True)
class ClientTopicCounters:
    """Sums over a topic's entries in `flow` events of a client."""

    requests: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, topic: FlowTopic) -> None:
        self.requests += topic["requests"]
        self.records += topic["records"]
        self.bytes += topic["bytes"]


@dataclass(slots=True)
class TopicCounters:
    """Sums over a topic's entries in `flow` events of a workload.

    since, ts: start of the first and end of the last interval with an entry, µs since epoch.
    """

    topic_id: str | None = None
    since: int = 0
    ts: int = 0
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
        count_errors(self.errors, topic["errors"], ERRORS)


@dataclass(slots=True)
class CloseTotals:
    """Counts the connections that ended in one way."""

    count: int = 0


def count_errors(names: Counter[str], codes: Mapping[str, int], most: int) -> None:
    """Add the counts by error code to those by name; further ones than `most` names count as OTHER."""
    for code, count in codes.items():
        name = ERROR_NAMES.get(int(code), "unknown")
        names[name if name in names or len(names) < most else OTHER] += count


class Traffic:
    """Sums of all events since the start, with at most `limit` label sets in each table.

    `agent` is the last `agent` event, empty before the first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.agent: Mapping[str, Any] = {}  # the last `agent` event, of which metrics are read by name
        self.apis: dict[Labels, FlowCounters] = {}  # by side and API
        # By workload and API; by workload, API and topic; by client, library and group; by client, group, API and
        # topic; by workload, `how` and `closed_by`.
        self.workloads = LabelTable(WorkloadCounters, lambda of: (of[0], OTHER, OTHER, of[3]), limit)
        self.topics = LabelTable(TopicCounters, lambda of: (of[0], OTHER, OTHER, of[3], OTHER), limit)
        self.clients = LabelTable(ClientCounters, lambda of: (of[0], OTHER, OTHER, OTHER), limit)
        self.client_topics = LabelTable(ClientTopicCounters, lambda of: (of[0], OTHER, OTHER, of[3], OTHER), limit)
        self.closes = LabelTable(CloseTotals, lambda of: (of[0], OTHER, OTHER, *of[3:]), limit)
        # From 0: if a counter's first sample is its first increase, Prometheus does not see that increase.
        self.internal_requests: Counter[Labels] = Counter({(side,): 0 for side in SIDES})
        self.opened: Counter[Labels] = Counter({(side,): 0 for side in SIDES})
        self.closed: Counter[Labels] = Counter({(side, *end): 0 for side in SIDES for end in ENDS})
        self.resets = 0
        self.open: Counter[OwnerLabels] = Counter()  # open connections now

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

    @property
    def tables(self) -> dict[str, LabelTable[Any]]:
        """Return the tables of label sets by name."""
        return {
            "workloads": self.workloads,
            "topics": self.topics,
            "clients": self.clients,
            "client_topics": self.client_topics,
            "closes": self.closes,
        }

    def _add_flow(self, flow: FlowEvent) -> None:
        if flow["internal"]:
            self.internal_requests[flow["side"],] += flow["requests"]
            return
        owner, client, api = _owner(flow), _client(flow), flow["api"] or "unknown"
        self.apis.setdefault((owner.side, api), FlowCounters()).add(flow)
        self.workloads.row((*owner, api), flow["requests"]).add(flow)
        self.clients.row((owner.side, *client), flow["requests"]).add(flow)
        topics = [*used_topics(flow)]
        for topic in topics:
            name = printable(topic["topic"] or topic["topic_id"] or OTHER)
            weight = topic["requests"] / len(topics)  # a request that names many topics counts no more than others
            self.topics.row((*owner, api, name), weight).add(flow, topic)
            self.client_topics.row((owner.side, client.id, client.group, api, name), weight).add(topic)

    def _add_close(self, close: CloseEvent) -> None:
        if is_internal(close["client"]["id"]):
            return
        owner, end = _owner(close), (close["how"], close["closed_by"])
        self.closed[owner.side, *end] += 1
        self.closes.row((*owner, *end), 1).count += 1

    def _end_interval(self, agent: AgentEvent) -> None:
        self.agent = agent
        self._add_other(agent["other"])
        open_now: Counter[OwnerLabels] = Counter()
        for entry in agent["open"]:
            open_now[_owner(entry)] += entry["count"]
        for table in self.tables.values():  # by the agent's intervals, which steps of the wall clock do not change
            table.end_interval(agent["ts"] - agent["since"])
        self.open = _largest(open_now, self.limit)

    def _add_other(self, counts: Mapping[str, int]) -> None:
        """Add the counts of events that were not sent singly. Their keys have the form KIND/SIDE/HOW/CLOSED_BY."""
        for name, count in counts.items():
            kind, *which = name.split("/")
            match kind, which:
                case "close", [side, how, closed_by]:
                    self.closed[side, how, closed_by] += count
                    self.closes.row((side, OTHER, OTHER, how, closed_by), count).count += count
                case "open", [side]:
                    self.opened[side,] += count
                case "reset", []:
                    self.resets += count


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


def _client(flow: FlowEvent) -> ClientLabels:
    if flow["conn_id"] is None:
        return ClientLabels(OTHER, OTHER, OTHER)
    client = flow["client"]
    library = " ".join(filter(None, (client["software_name"], client["software_version"])))
    return ClientLabels(*map(printable, (client["id"] or "", library, flow["group"] or "")))


def _largest(counts: Counter[OwnerLabels], limit: int) -> Counter[OwnerLabels]:
    """Return the counts of the `limit` largest workloads, and the sum of all others as OTHER."""
    if len(counts) <= limit:
        return counts
    kept = counts.most_common()
    largest = Counter(dict(kept[:limit]))
    for owner, count in kept[limit:]:
        largest[OwnerLabels(owner.side, OTHER, OTHER)] += count
    return largest
