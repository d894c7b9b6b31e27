"""The event schema: one typed dictionary per kind of event, from which the documented schema derives.

An event is one JSON object on one line; a Kafka record contains many lines, and its key is the agent's id, so that one
agent's events stay in order. An event is complete when it is made, but for its origin, and is never changed. This
package never reads the wire and does not depend on sinks. The pipeline may import only this package, `text` and
`errors`.
"""

from __future__ import annotations

from typing import get_args

from kafka_probe.events.agent_event import AgentEvent, OpenCountFacts
from kafka_probe.events.codecs import CODECS, codec_name
from kafka_probe.events.fields import (
    Counts,
    Field,
    FieldType,
    ListOf,
    Scalar,
    Strings,
    Struct,
    fields_of,
    value_of,
)
from kafka_probe.events.flow import FlowEvent, FlowTopic
from kafka_probe.events.frames import FrameSamples, FramesEnd, FramesEvent
from kafka_probe.events.latency import BUCKETS_PER_DOUBLING, bucket_middle_us, bucket_of
from kafka_probe.events.lifecycle import (
    ActivityFacts,
    ActivityTopic,
    CloseEvent,
    CloseFacts,
    Nat,
    OpenEvent,
    RepeatedFacts,
    ResetEvent,
    SilenceFacts,
)
from kafka_probe.events.offsets import GroupPosition, OffsetsEvent, PartitionEnd
from kafka_probe.events.request import MembershipFacts, RequestEvent, RequestParameters, RequestTopic
from kafka_probe.events.shared_fields import (
    INTERNAL_CLIENT,
    OWNER_NAMES,
    SCHEMA_VERSION,
    ClientFacts,
    ConnectionFacts,
    Origin,
    PodNames,
    ProcessFacts,
    WorkloadFacts,
    is_internal,
    owner_names,
)
from kafka_probe.events.times import Interval, WallClock
from kafka_probe.events.topics import NamedTopic, TopicsEvent

__all__ = [
    "BUCKETS_PER_DOUBLING",
    "CODECS",
    "COMMON",
    "CONNECTION",
    "FRAMES",
    "INTERNAL_CLIENT",
    "KINDS",
    "OWNER_NAMES",
    "SCHEMA_VERSION",
    "ActivityFacts",
    "ActivityTopic",
    "AgentEvent",
    "ClientFacts",
    "CloseEvent",
    "CloseFacts",
    "ConnectionFacts",
    "Counts",
    "Event",
    "Field",
    "FieldType",
    "FlowEvent",
    "FlowTopic",
    "FrameSamples",
    "FramesEnd",
    "FramesEvent",
    "GroupPosition",
    "Interval",
    "ListOf",
    "MembershipFacts",
    "NamedTopic",
    "Nat",
    "OffsetsEvent",
    "OpenCountFacts",
    "OpenEvent",
    "Origin",
    "PartitionEnd",
    "PodNames",
    "ProcessFacts",
    "RepeatedFacts",
    "RequestEvent",
    "RequestParameters",
    "RequestTopic",
    "ResetEvent",
    "Scalar",
    "SilenceFacts",
    "Strings",
    "Struct",
    "TopicsEvent",
    "WallClock",
    "WorkloadFacts",
    "bucket_middle_us",
    "bucket_of",
    "codec_name",
    "fields_of",
    "is_internal",
    "own_fields",
    "owner_names",
]

_OfEventsTopic = (
    FlowEvent | RequestEvent | OpenEvent | CloseEvent | ResetEvent | TopicsEvent | OffsetsEvent | AgentEvent
)
Event = _OfEventsTopic | FramesEvent

KINDS: dict[str, tuple[Field, ...]] = {value_of(event, "kind"): fields_of(event) for event in get_args(_OfEventsTopic)}
"""All fields of each kind of event in the topic of events."""
FRAMES = fields_of(FramesEvent)
"""All fields of `frames` events, which have a topic of their own."""
COMMON = tuple(field for field in KINDS["flow"] if all(field in fields for fields in KINDS.values()))
"""The fields of all events."""
CONNECTION = tuple(field for field in fields_of(ConnectionFacts) if field not in COMMON)
"""The further fields of all events about a connection."""


def own_fields(kind: str) -> tuple[Field, ...]:
    """Return the fields of a kind of event without those that all events, or all about a connection, have."""
    return tuple(field for field in KINDS[kind] if field not in COMMON + CONNECTION)
