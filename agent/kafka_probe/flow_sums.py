"""Defines the counts of an interval, and the sums of counts that become `flow` events.

A count is of one shape on one connection. Flows makes counts and hands them over at the end of the interval, FlowEvents
sums them. This module never decides which frames have a count of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.sample import NO_API
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.fetch_sessions import FETCHES, Topic
from kafka_probe.connections.frames_by_connection import Key
from kafka_probe.connections.refusals import Sums
from kafka_probe.protocol.error_codes import ERROR_CODES, ERROR_NAMES
from kafka_probe.protocol.facts import Facts, Measure, MeasureKind, Shape
from kafka_probe.protocol.schemas import apis

LOSSES = {
    "flow_limit": "frames and refusals counted by side and API only, because their connections exceed "
    "`--memory-limit`, or because more flows cannot be sent within their interval",
}
INTERNAL = -1
"""In place of the API key: all traffic of a kafka-probe agent."""
OF_TOPICS = (
    MeasureKind.RECORDS,
    MeasureKind.BATCHES,
    MeasureKind.RECORD_BYTES,
    MeasureKind.UNCOUNTED_BYTES,
)
SUMMED = (*OF_TOPICS, MeasureKind.THROTTLE_MS)
_UNKNOWN = ERROR_CODES["UNKNOWN_SERVER_ERROR"]


@dataclass(slots=True)
class Count:
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

    def add_refused(self, sums: Sums) -> None:
        """Add records that the broker did not write."""
        for topic, of_topic in sums.items():
            self.refused.setdefault(topic, Counter()).update(of_topic)

    def measured(self) -> list[tuple[Measure, int]]:
        """Return the measures of the shape with their sums."""
        return list(zip(self.shape.measures, self.values.tolist(), strict=True))


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
    topics: dict[Topic, TopicSums] = field(default_factory=dict)
    characters: int = 0  # of the topics' names

    def add_frames(self, count: Count) -> None:
        """Add a count without its topics and without the facts of requests."""
        facts = count.shape.facts
        if facts.response:
            self.responses += count.frames
            self.response_bytes += count.bytes
            if facts.api_key != NO_API:
                empty = facts.api_key in FETCHES and not facts.has_records
                (self.latency_empty if empty else self.latency).update(count.latency)
            for code, times in facts.errors:
                self.errors[code] += times * count.frames
        else:
            self.requests += count.frames
            self.request_bytes += count.bytes
        throttled = (value for measure, value in count.measured() if measure.kind is MeasureKind.THROTTLE_MS)
        self.throttle_ms += max(0, sum(throttled))

    def add_request_facts(self, facts: Facts) -> None:
        """Add the groups, transactional ids, acks and replica id of a request."""
        self.groups.update(facts.groups)
        self.transactional_ids.update(facts.transactional_ids)
        if facts.acks is not None:
            self.acks.add(facts.acks)
        if facts.replica_id is not None:
            self.replica_ids.add(facts.replica_id)


class OtherSums:
    """The sums by side and API of frames that are in no flow of their connection.

    by_api: the sums by side and API key; losses: counts these frames and refusals as `flow_limit`, and only this class
    changes it.
    """

    def __init__(self, losses: Counter[str]) -> None:
        self.by_api: dict[tuple[str, int], FlowSums] = {}
        self._losses = losses

    def add(self, count: Count, *, refusals: int = 0) -> None:
        """Add a count. refusals: number of its refused requests whose frames were counted before."""
        self._losses["flow_limit"] += count.frames + refusals
        connection, facts = count.connection, count.shape.facts
        api_key = INTERNAL if connection.internal else facts.api_key if facts.api_key in apis() else NO_API
        flow = self.by_api.setdefault((connection.side, api_key), FlowSums())
        flow.add_frames(count)
        for code in [code for code in flow.errors if code not in ERROR_NAMES]:
            flow.errors[_UNKNOWN] += flow.errors.pop(code)
        sums = [pair for pair in count.measured() if pair[0].kind in OF_TOPICS]
        if not connection.internal and (sums or facts.topics):
            topic = flow.topics.setdefault((None, None), TopicSums())
            topic.requests += 0 if facts.response else count.frames
            for measure, value in sums:
                topic.sums[measure.kind] += value
            for refused in count.refused.values():
                topic.refused.update(refused)


@dataclass(frozen=True, slots=True)
class IntervalCounts:
    """The counts of an interval by connection and shape, and the sums of all other frames."""

    by_shape: dict[Key, Count]
    other: OtherSums
