"""Makes `flow` events of an interval's counts: of a connection, API and version, or of one side and API.

The events are made one by one, so that other work can be done between them. This module never counts frames. It removes
counts that are in events, and changes the order in which topic names were used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from kafka_probe.capture.sample import NO_API
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.fetch_sessions import Topic
from kafka_probe.connections.frames_by_connection import Key
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.events import ConnectionFacts, FlowEvent, FlowTopic, Interval, codec_name
from kafka_probe.flow_sums import INTERNAL, OF_TOPICS, Count, FlowSums, IntervalCounts, TopicSums
from kafka_probe.protocol.facts import MeasureKind, SetStatus, TopicFacts
from kafka_probe.protocol.schemas import apis
from kafka_probe.time_limit import ReportPart, TimeLimit
from kafka_probe.workloads import NOBODY

LOSSES = {
    "topics_shed": "flow events without their topics, because the capture thread took more CPU than `--cpu-limit`",
    "topic_limit": "topics of a flow summed in one entry without a name: an event has at most 4096, "
    "with 262,144 characters",
}
TOPICS, CHARACTERS = 4096, 1 << 18  # most topics that an event names, and most characters of their names
MOST_THROTTLE_MS = 1 << 40  # the pipeline refuses events with a sum above 2^48
_SUMMED_AT_ONCE = 1000

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SessionRequests:
    """Requests by fetch sessions in an interval, whose topics the sessions know and the requests may not name.

    asked: connection, API key and newest API version, to the number of requests by topic; shapes: those of requests
    whose topics are counted in `asked`.
    """

    asked: Mapping[tuple[int, int, int], Mapping[Topic, int]]
    shapes: AbstractSet[Key]


class FlowEvents:
    """Makes the `flow` events of intervals from their counts. `losses` counts by the names of LOSSES."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    def report(
        self,
        counts: IntervalCounts,
        sessions: SessionRequests,
        interval: Interval,
        limit: TimeLimit,
        *,
        with_topics: bool,
    ) -> Iterator[tuple[Connection | None, FlowEvent] | None]:
        """Yield the `flow` events of the interval with their connections.

        The iterator frees the counts of a connection when it reaches them. Those that it does not reach within the
        limit become sums by side and API; between parts of these it yields None, so that other work can be done.
        """
        yield from self._of_connections(counts.by_shape, sessions, interval, limit, with_topics=with_topics)
        while counts.by_shape:
            for _ in range(min(len(counts.by_shape), _SUMMED_AT_ONCE)):
                counts.other.add(counts.by_shape.popitem()[1])
            yield None
        for (side, api_key), flow in counts.other.by_api.items():
            yield None, _flow_event(_any_connection(side), api_key, None, flow, None, interval)

    def _of_connections(
        self,
        counts: dict[Key, Count],
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
                flow.add_frames(count)
                if not facts.response:
                    flow.add_request_facts(facts)
                if with_topics and not connection.internal:
                    self._sum_topics(flow, count, by_session=key in sessions.shapes)
            for (api_key, api_version), flow in flows.items():
                by_session = sessions.asked.get((conn, api_key, api_version), {})
                for topic, times in by_session.items() if with_topics else ():
                    flow.topics[self._topic(flow, connection, TopicFacts(*topic, (), ()), 0)].requests += times
                self.losses["topics_shed"] += not with_topics
                group = connection.group(api_key, flow.groups)
                yield connection, _flow_event(connection.facts(), api_key, api_version, flow, group, interval)

    def _sum_topics(self, flow: FlowSums, count: Count, *, by_session: bool) -> None:
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
        for measure, value in count.measured():
            if measure.kind in OF_TOPICS:
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


def _any_connection(side: str) -> ConnectionFacts:
    """Return the facts of all connections of a side: fields of one connection, as `conn_id`, are null."""
    return {
        "side": side,
        "flow_id": None,
        "conn_id": None,
        "local": None,
        "peer": None,
        "netns": None,
        "cluster_id": None,
        "workload": NOBODY.named(),
        "client": {"id": None, "software_name": None, "software_version": None},
        "opaque": None,
    }


def _flow_event(
    connection: ConnectionFacts,
    api_key: int,
    api_version: int | None,
    flow: FlowSums,
    group: str | None,
    interval: Interval,
) -> FlowEvent:
    named = api_key not in (INTERNAL, NO_API)
    api = apis().get(api_key)
    return {
        "kind": "flow",
        **connection,
        "api": api.name if api else None,
        "api_key": api_key if named else None,
        "api_version": api_version if named else None,
        "internal": api_key == INTERNAL,
        "requests": flow.requests,
        "responses": flow.responses,
        "request_bytes": flow.request_bytes,
        "response_bytes": flow.response_bytes,
        "errors": _counts(flow.errors),
        "latency": _counts(flow.latency),
        "latency_empty": _counts(flow.latency_empty),
        "throttle_ms": min(flow.throttle_ms, MOST_THROTTLE_MS),
        "acks": _only(flow.acks),
        "transactional_id": _only(flow.transactional_ids),
        "replica_id": _only(flow.replica_ids),
        "topics": [_event_topic(name, topic_id, topic) for (name, topic_id), topic in flow.topics.items()],
        "group": group,
        "since": interval.since_us,
        "ts": interval.until_us,
    }


def _event_topic(name: str | None, topic_id: str | None, topic: TopicSums) -> FlowTopic:
    event: FlowTopic = {
        "topic": name,
        "topic_id": topic_id,
        "requests": topic.requests,
        "partitions": len(topic.partitions),
        "records": topic.sums[MeasureKind.RECORDS],
        "batches": topic.sums[MeasureKind.BATCHES],
        "bytes": topic.sums[MeasureKind.RECORD_BYTES],
        "uncounted_bytes": topic.sums[MeasureKind.UNCOUNTED_BYTES],
        "codecs": dict(topic.codecs),
        "errors": _counts(topic.errors),
    }
    if topic.refused:
        event["refused_records"] = topic.refused[MeasureKind.RECORDS]
        event["refused_bytes"] = topic.refused[MeasureKind.RECORD_BYTES]
    return event


def _only(values: Collection[_Value]) -> _Value | None:
    return next(iter(values)) if len(values) == 1 else None


def _counts(counter: Counter[int]) -> dict[str, int]:
    return {str(key): count for key, count in sorted(counter.items())}
