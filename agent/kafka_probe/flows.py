"""Per interval and connection: frames of one shape are counted together; at the interval's end counts become events.

What a shape says is looked at once per interval, so that a frame costs only its share of a few array operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.record import NO_API, Flag
from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.frames import Frames
from kafka_probe.connections.sessions import FETCH, SHARE_FETCH, FetchSession, Group, Naming
from kafka_probe.connections.topics import TopicNames
from kafka_probe.connections.tracker import Connection, Tracker
from kafka_probe.events import GAMMA, codec_name
from kafka_probe.protocol.facts import Kind, SetStatus, Shape, TopicFacts
from kafka_probe.protocol.schemas import apis

Event = dict[str, object]

LOSSES = {"topics_shed": "flow events without their topics, because the agent took more CPU than `--cpu-limit`"}


@dataclass(slots=True)
class _Count:
    """Frames of one shape on one connection."""

    connection: Connection
    shape: Shape
    frames: int
    bytes: int
    values: npt.NDArray[np.int64]  # sums of the shape's measures
    latency: Counter[int]
    fetch: tuple[FetchSession, Naming] | None


@dataclass(slots=True, eq=False)
class _Topic:
    requests: int = 0
    partitions: set[int] = field(default_factory=set)
    sums: Counter[Kind] = field(default_factory=Counter)
    codecs: Counter[str] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Flow:
    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    throttle_ms: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    latency: Counter[int] = field(default_factory=Counter)
    latency_empty: Counter[int] = field(default_factory=Counter)
    acks: set[int] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    transactional_ids: set[str] = field(default_factory=set)
    replica_ids: set[int] = field(default_factory=set)
    topics: dict[tuple[str | None, str | None], _Topic] = field(default_factory=dict)


class Flows:
    """Counts of the running interval."""

    def __init__(self, tracker: Tracker, names: TopicNames, brokers: BrokerFiles) -> None:
        self._tracker = tracker
        self._names = names
        self._brokers = brokers
        self._counts: dict[tuple[int, int], _Count] = {}
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    def add(self, batch: Iterable[Frames]) -> None:
        """Count the frames of a batch. Their order matters only to what is learned from them."""
        fetches: dict[FetchSession, list[Group]] = {}
        for frames in sorted(batch, key=_first_seen):
            self._add(frames, fetches)
        for session, groups in fetches.items():
            session.see(groups)

    def _add(self, frames: Frames, fetches: dict[FetchSession, list[Group]]) -> None:
        """Count frames of one shape, of any number of connections."""
        shape, conns = frames.shape, frames.column("conn")
        order = np.argsort(conns, kind="stable")
        conns = conns[order]
        starts = np.concatenate(([0], np.flatnonzero(conns[1:] != conns[:-1]) + 1))
        ends = np.append(starts[1:], len(order)).tolist()
        sizes = np.add.reduceat(frames.column("frame_bytes")[order].astype(np.int64), starts).tolist()
        flags = frames.column("flags")[order]
        confirmed = np.logical_or.reduceat(flags & (Flag.RESYNC | Flag.UNPROVEN) == 0, starts).tolist()
        guessed = np.logical_or.reduceat(flags & Flag.RESYNC != 0, starts).tolist()
        values = np.add.reduceat(frames.values[order], starts) if shape.measures else frames.values[starts]
        buckets = _buckets(frames.column("latency_us")[order]) if shape.facts.response else None
        for i, start in enumerate(starts.tolist()):
            count = self._count(int(conns[start]), shape, ends[i] - start)
            if count is None:
                continue
            if count.frames == 0 or (confirmed[i] and not count.connection.confirmed):
                count.connection.confirmed |= confirmed[i]
                self._brokers.see(count.connection, shape.facts)
            count.connection.doubtful |= guessed[i]
            count.frames += ends[i] - start
            count.bytes += sizes[i]
            count.values += values[i]
            if count.fetch:
                session, said = count.fetch
                fetches.setdefault(session, []).append((said, frames, order[start : ends[i]]))
            if buckets is not None:
                count.latency.update(buckets[start : ends[i]].tolist())

    def _count(self, conn: int, shape: Shape, frames: int) -> _Count | None:
        count = self._counts.get((conn, id(shape)))
        if count is None:
            connection = self._tracker.get(conn)
            if connection is None:
                self._tracker.losses["connection_unknown"] += frames
                return None
            self._tracker.learn(connection, shape.facts)
            self._names.learn(shape.facts, connection.cluster_id)
            # The shape is kept by its count, so its id stays its own.
            sums = np.zeros(len(shape.measures), np.int64)
            count = _Count(connection, shape, 0, 0, sums, Counter(), connection.fetch(shape.facts))
            self._counts[conn, id(shape)] = count
        return count

    def report(self, *, with_topics: bool = True) -> Iterator[Event]:
        """The `flow` events of the interval, without their common times; a new interval begins at once.

        A connection that is not confirmed yet keeps its counts; they are lost if it ends so.
        """
        flows: dict[tuple[int, int, int], tuple[Connection, _Flow]] = {}
        kept = {}
        for key, count in self._counts.items():
            connection, facts = count.connection, count.shape.facts
            if not connection.confirmed:
                if self._tracker.get(key[0]):
                    kept[key] = count
                else:
                    self._tracker.losses["frame_unconfirmed"] += count.frames
                continue
            api = (_INTERNAL, 0) if connection.internal else (facts.api_key, facts.api_version)
            _, flow = flows.setdefault((key[0], *api), (connection, _Flow()))
            self._sum(flow, count, with_topics=with_topics and not connection.internal)
        self._counts = kept
        for (conn, api_key, _), (connection, _) in flows.items():
            if api_key in connection.sessions:
                for version, topic, times in connection.sessions[api_key].take():
                    if with_topics:
                        _, flow = flows[conn, api_key, version]
                        self._topic(flow, connection, TopicFacts(*topic, (), ()), 0).requests += times
        if not with_topics:
            self.losses["topics_shed"] += len(flows)
        return (_event(connection, key, version, flow) for (_, key, version), (connection, flow) in flows.items())

    def _sum(self, flow: _Flow, count: _Count, *, with_topics: bool) -> None:
        facts = count.shape.facts
        if facts.response:
            flow.responses += count.frames
            flow.response_bytes += count.bytes
            if facts.api_key != NO_API:
                empty = facts.api_key in (FETCH, SHARE_FETCH) and not facts.has_records
                (flow.latency_empty if empty else flow.latency).update(count.latency)
            for code, times in facts.errors:
                flow.errors[code] += times * count.frames
        else:
            flow.requests += count.frames
            flow.request_bytes += count.bytes
            flow.groups.update(facts.groups)
            flow.transactional_ids.update(facts.transactional_ids)
            if facts.acks is not None:
                flow.acks.add(facts.acks)
            if facts.replica_id is not None:
                flow.replica_ids.add(facts.replica_id)
        sums = list(zip(count.shape.measures, count.values.tolist(), strict=True))
        flow.throttle_ms += sum(value for measure, value in sums if measure.kind is Kind.THROTTLE_MS)
        if not with_topics:
            return
        topics = [self._topic(flow, count.connection, topic, count.frames) for topic in facts.topics]
        if not facts.response and not (count.fetch and count.fetch[1].by_session):
            for topic in set(topics):  # a frame may name one twice
                topic.requests += count.frames
        for record_set in facts.record_sets:
            if record_set.status != SetStatus.UNREADABLE:
                topics[record_set.topic].codecs[codec_name(record_set.codec)] += count.frames
        for measure, value in sums:
            if measure.kind in _OF_TOPICS:
                topics[measure.topic].sums[measure.kind] += value

    def _topic(self, flow: _Flow, connection: Connection, facts: TopicFacts, frames: int) -> _Topic:
        topic = flow.topics.setdefault(self._names.resolve(facts, connection.cluster_id), _Topic())
        topic.partitions.update(facts.partitions)
        for _, code in facts.errors:
            topic.errors[code] += frames
        return topic


_INTERNAL = -1
_OF_TOPICS = {
    Kind.RECORDS: "records",
    Kind.BATCHES: "batches",
    Kind.RECORD_BYTES: "bytes",
    Kind.UNCOUNTED_BYTES: "uncounted_bytes",
}
SUMMED = (*_OF_TOPICS, Kind.THROTTLE_MS)


def _first_seen(frames: Frames) -> int:
    return int(frames.batch["ts_ns"][frames.index[0]])


def _buckets(latency_us: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """events.bucket_of for an array."""
    buckets: npt.NDArray[np.int64] = (np.log(np.maximum(latency_us, 1)) / np.log(GAMMA)).astype(np.int64)
    return buckets


def _event(connection: Connection, api_key: int, api_version: int, flow: _Flow) -> Event:
    named = api_key not in (_INTERNAL, NO_API)
    api = apis().get(api_key)
    return {
        "kind": "flow",
        **connection.common(),
        "api": api.name if api else None,
        "api_key": api_key if named else None,
        "api_version": api_version if named else None,
        "internal": api_key == _INTERNAL,
        "requests": flow.requests,
        "responses": flow.responses,
        "request_bytes": flow.request_bytes,
        "response_bytes": flow.response_bytes,
        "errors": _counts(flow.errors),
        "latency": _counts(flow.latency),
        "latency_empty": _counts(flow.latency_empty),
        "throttle_ms": flow.throttle_ms,
        "acks": _only(flow.acks),
        "group": connection.group(api_key, flow.groups),
        "transactional_id": _only(flow.transactional_ids),
        "replica_id": _only(flow.replica_ids),
        "topics": [
            {
                "topic": name,
                "topic_id": topic_id,
                "requests": topic.requests,
                "partitions": len(topic.partitions),
                **{name: topic.sums[kind] for kind, name in _OF_TOPICS.items()},
                "codecs": dict(topic.codecs),
                "errors": _counts(topic.errors),
            }
            for (name, topic_id), topic in flow.topics.items()
        ],
    }


def _only(values: Collection[object]) -> object:
    return next(iter(values)) if len(values) == 1 else None


def _counts(counter: Counter[int]) -> dict[str, int]:
    return {str(key): count for key, count in sorted(counter.items())}
