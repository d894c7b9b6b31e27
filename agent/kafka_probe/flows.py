"""Counts frames per interval by connection and shape; at the end of an interval, counts become `flow` events.

The facts of a shape are read once per interval and connection, so that a frame costs only its share of a few array
operations. This module never decodes frames. It changes its counts and the order in which topic names were used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Self

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.sample import NO_API
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.fetch_sessions import FETCHES, Topic
from kafka_probe.connections.frames_by_connection import FramesByConnection, Key
from kafka_probe.connections.last_produces import LastProduce
from kafka_probe.connections.refusals import Sums
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.events import BUCKETS_PER_DOUBLING, FlowEvent, Interval, codec_name
from kafka_probe.flow_events import INTERNAL, FlowSums, TopicSums, flow_event, other_events
from kafka_probe.memory import BORROWED_BYTES, DEFAULT, Bounds
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.error_codes import ERROR_CODES, ERROR_NAMES
from kafka_probe.protocol.facts import Facts, Measure, MeasureKind, SetStatus, Shape, TopicFacts, shape_bytes
from kafka_probe.protocol.schemas import apis
from kafka_probe.time_limit import ReportPart, TimeLimit

LOSSES = {
    "topics_shed": "flow events without their topics, because the capture thread took more CPU than `--cpu-limit`",
    "flow_limit": "frames and refusals counted by side and API only, because their connections exceed "
    "`--memory-limit`, or because more flows cannot be sent within their interval",
    "topic_limit": "topics of a flow summed in one entry without a name: an event has at most 4096, "
    "with 262,144 characters",
}
TOPICS, CHARACTERS = 4096, 1 << 18  # most topics that an event names, and most characters of their names
_SUMMED_AT_ONCE = 1000
_COUNT_BYTES = 800  # memory of a count without its shape
_MEASURE_BYTES = 8  # memory of each measure of the shape
_BUCKET_BYTES = 128  # memory of each latency bucket
_ASKED_TOPIC_BYTES, _ASKED_PARTITION_BYTES = 800, 80  # memory per topic and partition named to a session
_SESSION_SHAPE_BYTES = 256  # memory of the link between a shape of Fetch and its session
_REFUSED_TOPIC_BYTES = 800  # memory per topic of which records were refused


@dataclass(slots=True)
class _Count:
    """Counts the frames of one shape on one connection. kept: it counts in `flow` events of the connection."""

    connection: Connection
    shape: Shape
    values: npt.NDArray[np.int64]  # sums of the shape's measures
    frames: int = 0
    bytes: int = 0
    latency: Counter[int] = field(default_factory=Counter)
    refused: Sums = field(default_factory=dict)
    kept: bool = False

    @classmethod
    def of(cls, connection: Connection, shape: Shape) -> Self:
        """Return a count of no frames."""
        return cls(connection, shape, np.zeros(len(shape.measures), np.int64))


_Others = dict[tuple[str, int], FlowSums]
"""Sums by side and API of the frames without counts of their own."""


@dataclass(frozen=True, slots=True)
class SessionRequests:
    """Requests by fetch sessions in an interval, whose topics the sessions know and the requests may not name.

    asked: connection, API key and newest API version, to the number of requests by topic; shapes: those of requests
    whose topics are counted in `asked`.
    """

    asked: Mapping[tuple[int, int, int], Mapping[Topic, int]]
    shapes: AbstractSet[Key]


class Flows:
    """Counts the frames of the running interval, by connection and shape; beyond the memory budget by side and API.

    free: connections that are not open but have memory, which the counts of the first interval may use.
    """

    def __init__(self, names: TopicNames, free: int, bounds: Bounds = DEFAULT) -> None:
        self._names = names
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._limit_bytes = bounds.counts_bytes // 2  # the other half belongs to the interval being reported
        self._counts: dict[Key, _Count] = {}
        self._other: _Others = {}
        self._begin(free)

    def counts(self, key: Key) -> bool:
        """Return True if the shape has a count of its own on the connection in this interval."""
        return key in self._counts

    def refuse(self, connection: Connection, request: LastProduce) -> None:
        """Count a request as not written by the broker. It was counted as written when it was seen."""
        sums = request.sums()
        count = self._count(connection, request.key, request.shape, Counter())
        if count.kept and not self._take(connection, _REFUSED_TOPIC_BYTES * len(sums)):
            count = _Count.of(connection, request.shape)
        _add_refused(count, sums)
        if not count.kept:
            self.losses["flow_limit"] += 1
            self._sum_other(count, self._other)

    def add(self, grouped: FramesByConnection, refused: Mapping[int, Sums]) -> None:
        """Count frames of one shape on any number of connections.

        refused: what the frames say that brokers did not write, by the kernel's id of the connection.
        """
        frames, shape, order, starts = grouped.frames, grouped.frames.shape, grouped.order, grouped.starts
        sizes = np.add.reduceat(frames.column("frame_bytes")[order].astype(np.int64), starts).tolist()
        values = np.add.reduceat(frames.values[order], starts) if shape.measures else frames.values[starts]
        buckets = _buckets(frames.column("latency_us")[order]) if shape.facts.response else None
        no_latency = Counter[int]()
        for i, (key, connection, start, end) in enumerate(grouped.runs):
            if connection is None:
                continue
            latency = no_latency if buckets is None else Counter(buckets[start:end].tolist())
            count = self._count(connection, key, shape, latency)
            count.frames += end - start
            count.bytes += sizes[i]
            count.values += values[i]
            count.latency.update(latency)
            _add_refused(count, refused.get(key[0], {}))
            if not count.kept:
                self._sum_other(count, self._other)

    def _count(self, connection: Connection, key: Key, shape: Shape, latency: Counter[int]) -> _Count:
        """Return the count of a shape on a connection. A new one is not kept if the budget is exhausted."""
        known = self._counts.get(key)
        count = known or _Count.of(connection, shape)
        needed = _BUCKET_BYTES * len(latency.keys() - count.latency.keys())
        if known is None:
            needed += _count_bytes(shape) + (0 if key[1] in self._shapes else shape_bytes(shape))
        if needed and not self._take(connection, needed):
            return _Count.of(connection, shape)
        if known is None:
            count.kept = True
            self._shapes.add(key[1])
            self._counts[key] = count
        return count

    def _take(self, connection: Connection, needed: int) -> bool:
        """Take bytes for a count from the connection's peer; return False if they do not fit."""
        held = self._held_bytes
        fits = held + needed <= self._budget_bytes and self._shares.take(connection.sharing_peer, needed, held)
        self._held_bytes += needed * fits
        return fits

    def _sum_other(self, count: _Count, other: _Others) -> None:
        connection, facts = count.connection, count.shape.facts
        self.losses["flow_limit"] += count.frames
        api_key = INTERNAL if connection.internal else facts.api_key if facts.api_key in apis() else NO_API
        flow = other.setdefault((connection.side, api_key), FlowSums())
        self._sum_frames(flow, count)
        flow.errors = Counter({code if code in ERROR_NAMES else _UNKNOWN: n for code, n in flow.errors.items()})
        sums = [pair for pair in _measured(count) if pair[0].kind in _OF_TOPICS]
        if not connection.internal and (sums or facts.topics):
            topic = flow.topics.setdefault((None, None), TopicSums())
            topic.requests += 0 if facts.response else count.frames
            for measure, value in sums:
                topic.sums[measure.kind] += value
            for refused in count.refused.values():
                topic.refused.update(refused)

    def report(
        self,
        interval: Interval,
        sessions: SessionRequests,
        free: int,
        limit: TimeLimit,
        *,
        with_topics: bool,
    ) -> Iterator[tuple[Connection | None, FlowEvent] | None]:
        """Return the `flow` events of the interval with their connections, and begin a new interval.

        The iterator frees the counts of a connection when it reaches them. Those that it does not reach within the
        limit become sums by side and API; between parts of these it yields None, so that other work can be done.
        free: as at construction, for the new interval.
        """
        counts, self._counts = self._counts, {}
        other, self._other = self._other, {}
        self._begin(free)
        of_connections = self._flows(counts, sessions, interval, limit, with_topics=with_topics)

        def flows() -> Iterator[tuple[Connection | None, FlowEvent] | None]:
            yield from of_connections
            while counts:
                for _ in range(min(len(counts), _SUMMED_AT_ONCE)):
                    self._sum_other(counts.popitem()[1], other)
                yield None
            yield from ((None, event) for event in other_events(other, interval))

        return flows()

    def _begin(self, free: int) -> None:
        """Begin an interval without counts."""
        self._shapes: set[int] = set()  # numbers of the shapes of the counts
        self._held_bytes = 0
        self._budget_bytes = self._limit_bytes + max(free, 0) * BORROWED_BYTES
        self._shares = Shares(self._budget_bytes)

    def _flows(
        self,
        counts: dict[Key, _Count],
        sessions: SessionRequests,
        interval: Interval,
        limit: TimeLimit,
        *,
        with_topics: bool,
    ) -> Iterator[tuple[Connection, FlowEvent]]:
        """Yield the events within the limit, connection by connection."""
        for conn, keys in groupby(sorted(counts, key=itemgetter(0)), itemgetter(0)):
            if limit.is_over(ReportPart.FLOWS):
                return
            flows: dict[tuple[int, int], FlowSums] = {}
            for key in keys:
                count = counts.pop(key)
                connection, facts = count.connection, count.shape.facts
                api = (INTERNAL, 0) if connection.internal else (facts.api_key, facts.api_version)
                flow = flows.setdefault(api, FlowSums())
                self._sum_frames(flow, count)
                if not facts.response:
                    self._sum_request_facts(flow, facts)
                if with_topics and not connection.internal:
                    self._sum_topics(flow, count, by_session=key in sessions.shapes)
            for (api_key, api_version), flow in flows.items():
                by_session = sessions.asked.get((conn, api_key, api_version), {})
                for topic, times in by_session.items() if with_topics else ():
                    flow.topics[self._topic(flow, connection, TopicFacts(*topic, (), ()), 0)].requests += times
                self.losses["topics_shed"] += not with_topics
                group = connection.group(api_key, flow.groups)
                event = flow_event(connection.facts(), api_key, api_version, flow, group, interval)
                yield connection, event

    def _sum_frames(self, flow: FlowSums, count: _Count) -> None:
        facts = count.shape.facts
        if facts.response:
            flow.responses += count.frames
            flow.response_bytes += count.bytes
            if facts.api_key != NO_API:
                empty = facts.api_key in FETCHES and not facts.has_records
                (flow.latency_empty if empty else flow.latency).update(count.latency)
            for code, times in facts.errors:
                flow.errors[code] += times * count.frames
        else:
            flow.requests += count.frames
            flow.request_bytes += count.bytes
        throttled = (value for measure, value in _measured(count) if measure.kind is MeasureKind.THROTTLE_MS)
        flow.throttle_ms += max(0, sum(throttled))

    def _sum_request_facts(self, flow: FlowSums, facts: Facts) -> None:
        flow.groups.update(facts.groups)
        flow.transactional_ids.update(facts.transactional_ids)
        if facts.acks is not None:
            flow.acks.add(facts.acks)
        if facts.replica_id is not None:
            flow.replica_ids.add(facts.replica_id)

    def _sum_topics(self, flow: FlowSums, count: _Count, *, by_session: bool) -> None:
        """Add the sums by topic. by_session: the requests are counted by their fetch session."""
        facts = count.shape.facts
        keys = [self._topic(flow, count.connection, topic, count.frames) for topic in facts.topics]
        topics = [flow.topics[key] for key in keys]
        if not facts.response and not by_session:
            for key in set(keys):  # a frame may name one twice
                flow.topics[key].requests += count.frames
        for record_set in facts.record_sets:
            if count.frames and record_set.status != SetStatus.UNREADABLE:
                topics[record_set.topic].codecs[codec_name(record_set.codec)] += count.frames
        for measure, value in _measured(count):
            if measure.kind in _OF_TOPICS:
                topics[measure.topic].sums[measure.kind] += value
        by_name = {(named.name, named.topic_id): topic for named, topic in zip(facts.topics, topics, strict=True)}
        for named, refused in count.refused.items():
            by_name[named].refused.update(refused)

    def _topic(self, flow: FlowSums, connection: Connection, facts: TopicFacts, frames: int) -> Topic:
        """Add partitions and errors of a topic, and return its key in the flow. Beyond the limit it has no name."""
        named = self._names.resolve(facts, connection.cluster_id)
        if named not in flow.topics:
            characters = flow.characters + len(named[0] or "")
            if len(flow.topics) >= TOPICS or characters > CHARACTERS:
                self.losses["topic_limit"] += 1
                flow.topics.setdefault((None, None), TopicSums())
                return None, None
            flow.characters = characters
        topic = flow.topics.setdefault(named, TopicSums())
        topic.partitions.update(facts.partitions)
        for _, code in facts.errors:
            topic.errors[code] += frames
        return named


_UNKNOWN = ERROR_CODES["UNKNOWN_SERVER_ERROR"]
_OF_TOPICS = (
    MeasureKind.RECORDS,
    MeasureKind.BATCHES,
    MeasureKind.RECORD_BYTES,
    MeasureKind.UNCOUNTED_BYTES,
)
SUMMED = (*_OF_TOPICS, MeasureKind.THROTTLE_MS)


def _add_refused(count: _Count, sums: Sums) -> None:
    for topic, of_topic in sums.items():
        count.refused.setdefault(topic, Counter()).update(of_topic)


def _buckets(latency_us: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the bucket of each latency, as events.bucket_of does."""
    doublings = np.log2(np.maximum(latency_us, 1) / 1e6)
    buckets: npt.NDArray[np.int64] = np.ceil(doublings * BUCKETS_PER_DOUBLING).astype(np.int64) - 1
    return buckets


def _measured(count: _Count) -> list[tuple[Measure, int]]:
    return list(zip(count.shape.measures, count.values.tolist(), strict=True))


def _count_bytes(shape: Shape) -> int:
    """Return the memory of a count in bytes, without its shape and its latency buckets."""
    facts = shape.facts
    asked = (*facts.topics, *facts.forgotten) if facts.api_key in FETCHES else ()
    partitions = sum(len(topic.partitions) for topic in asked)
    of_session = _ASKED_TOPIC_BYTES * len(asked) + _ASKED_PARTITION_BYTES * partitions
    of_session += _SESSION_SHAPE_BYTES * (facts.api_key in FETCHES)
    refused = facts.topics if facts.response and facts.api_key == ApiKey.PRODUCE else ()
    of_refusals = _REFUSED_TOPIC_BYTES * sum(bool(topic.errors) for topic in refused)
    return _COUNT_BYTES + _MEASURE_BYTES * len(shape.measures) + of_session + of_refusals
