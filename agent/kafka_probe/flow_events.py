"""Makes `flow` events of sums: of a connection, API and version, or of one side and API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafka_probe.capture.sample import NO_API
from kafka_probe.events import ConnectionFacts, FlowEvent, FlowTopic, Interval
from kafka_probe.protocol.facts import MeasureKind
from kafka_probe.protocol.schemas import apis
from kafka_probe.workloads import NOBODY

INTERNAL = -1
"""In place of the API key: all traffic of a kafka-probe agent."""
MOST_THROTTLE_MS = 1 << 40  # the pipeline refuses events with a sum above 2^48

_Value = TypeVar("_Value")


@dataclass(slots=True)
class TopicSums:
    """The sums of one topic in a flow. refused: RECORDS and RECORD_BYTES that the broker did not write."""

    requests: int = 0
    partitions: set[int] = field(default_factory=set)
    sums: Counter[MeasureKind] = field(default_factory=Counter)
    refused: Counter[MeasureKind] = field(default_factory=Counter)
    codecs: Counter[str] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class FlowSums:
    """The sums of one connection, API and version, or of one side and API."""

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
    topics: dict[tuple[str | None, str | None], TopicSums] = field(default_factory=dict)
    characters: int = 0  # of the topics' names


def flow_event(
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


def other_events(flows: Mapping[tuple[str, int], FlowSums], interval: Interval) -> Iterator[FlowEvent]:
    """Yield the events of frames beyond the budget, by side and API; fields of connections, as `conn_id`, are null."""
    for (side, api_key), flow in flows.items():
        connections: ConnectionFacts = {
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
        yield flow_event(connections, api_key, None, flow, None, interval)


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
