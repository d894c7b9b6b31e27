"""Makes a `request` event of a request and its response."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.events import MembershipFacts, RequestEvent, RequestParameters, RequestTopic, WallClock, codec_name
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.protocol.facts import Fact, Facts, Measure, MeasureKind, SetStatus, Shape, Status
from kafka_probe.protocol.membership import (
    HEARTBEATS,
    NAME_MEMBER,
    change_by_response,
    change_of_member,
    members_of,
    partitions_of,
    reason_of,
)
from kafka_probe.protocol.schemas import apis

LOSSES = {
    "request_topic_limit": "`request` events that contain only 4096 of their topics and partitions, or names with "
    "262,144 characters",
}
MOST_MEMBERS = 512  # of a request that names several members
ROWS, CHARACTERS = 4096, 1 << 18  # most entries of topics and partitions in an event, and most characters of names
_MeasureName = Literal["offset", "high_watermark", "records", "batches", "bytes", "producer_id"]
_MEASURED: dict[MeasureKind, _MeasureName] = {
    MeasureKind.OFFSET: "offset",
    MeasureKind.FETCH_OFFSET: "offset",
    MeasureKind.HIGH_WATERMARK: "high_watermark",
    MeasureKind.RECORDS: "records",
    MeasureKind.BATCHES: "batches",
    MeasureKind.RECORD_BYTES: "bytes",
    MeasureKind.BATCH_PRODUCER_ID: "producer_id",
}
MEASURED = (*_MEASURED, MeasureKind.SESSION_EPOCH, MeasureKind.THROTTLE_MS)
"""The measures of which events are made."""
# Facts and their fields in the event have the same names.
_PARAMETERS = {Fact[name.upper()]: name for name in RequestParameters.__annotations__}
_LEFT_TO_THE_BROKER = (None, "", 0, -1)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a batch. `values`: one for each measure of the shape."""

    shape: Shape
    ts_ns: int
    size_bytes: int
    latency_us: int
    values: list[int]


class Exchange(NamedTuple):
    """A request and its response; request: None of most heartbeats; response: None if none was seen."""

    connection: Connection
    correlation_id: int
    request: Frame | None
    response: Frame | None

    @property
    def first(self) -> Frame:
        """Return the request, or the response if there is no request."""
        frame = self.request or self.response
        assert frame
        return frame


class RequestEvents:
    """Makes events with the names of topics. losses: counts by the names of LOSSES."""

    def __init__(self, names: TopicNames, losses: Counter[str]) -> None:
        self._names = names
        self._losses = losses

    def event(self, exchange: Exchange, clock: WallClock, *, brief: bool = False) -> RequestEvent:
        """Return the event of an exchange. brief: without the topics of heartbeats."""
        connection, correlation_id, request, response = exchange
        facts = exchange.first.shape.facts
        answered = response.shape.facts if response else None
        api = apis().get(facts.api_key)
        no_topics = brief and facts.api_key in HEARTBEATS
        topics, cut = ([], False) if no_topics else self._topics(connection, request, response)
        return {
            "kind": "request",
            **connection.facts(),
            "api": api.name if api else None,
            "api_key": facts.api_key,
            "api_version": facts.api_version,
            "correlation_id": correlation_id,
            "request_bytes": request.size_bytes if request else None,
            "response_bytes": response.size_bytes if response else None,
            "latency_us": response.latency_us if response else None,
            "throttle_ms": _throttle_ms(response) if response else None,
            "group": connection.group(facts.api_key, facts.groups) if request else connection.member.group,
            **_parameters(exchange),
            **_membership(exchange),
            "status": Status.TRUNCATED.value if cut else _status(facts, answered),
            "stopped_at": facts.stopped_at or (answered.stopped_at if answered else None),
            "errors": {str(code): count for code, count in answered.errors} if answered else {},
            "error_names": {ERROR_NAMES.get(code, str(code)): n for code, n in answered.errors} if answered else {},
            "topics": topics,
            "ts": clock.epoch_us((response or exchange.first).ts_ns),
        }

    def _topics(
        self, connection: Connection, request: Frame | None, response: Frame | None
    ) -> tuple[list[RequestTopic], bool]:
        """Return one entry per topic and partition of both frames, and whether some are left out.

        Values of the response take precedence.
        """
        rows: dict[tuple[str | None, str | None, int | None], RequestTopic] = {}
        cut, characters = False, 0

        def row(name: str | None, topic_id: str | None, partition: int | None) -> RequestTopic:
            nonlocal cut, characters
            key = name, topic_id, partition
            if key in rows:
                return rows[key]
            new: RequestTopic = {"topic": name, "topic_id": topic_id, "partition": partition, "error": 0}
            characters += len(name or "")
            if len(rows) == ROWS or characters > CHARACTERS:
                cut = True
            else:
                rows[key] = new
            return new

        for frame in filter(None, (request, response)):
            facts = frame.shape.facts
            resolved = [self._names.resolve(topic, connection.cluster_id) for topic in facts.topics]
            for (name, topic_id), topic in zip(resolved, facts.topics, strict=True):
                for partition in topic.partitions or (None,):
                    row(name, topic_id, partition)
                for partition, code in topic.errors:
                    row(name, topic_id, partition if partition >= 0 else None)["error"] = code
            for measure, value in zip(frame.shape.measures, frame.values, strict=True):
                if measure.kind in _MEASURED and not (measure.kind is MeasureKind.BATCH_PRODUCER_ID and value < 0):
                    row(*resolved[measure.topic], measure.partition)[_MEASURED[measure.kind]] = value
            for record_set in facts.record_sets:
                if record_set.status != SetStatus.UNREADABLE:
                    sent = row(*resolved[record_set.topic], record_set.partition)
                    sent["codec"], sent["transactional"] = codec_name(record_set.codec), record_set.transactional
        self._losses["request_topic_limit"] += cut
        return list(rows.values()), cut


def _parameters(exchange: Exchange) -> RequestParameters:
    request, response = exchange.request, exchange.response
    asked, given = _values(request) if request else {}, _values(response) if response else {}
    values = {
        **given,
        **asked,
        **{fact: value for fact, value in given.items() if asked.get(fact) in _LEFT_TO_THE_BROKER},
    }
    if exchange.first.shape.facts.api_key in NAME_MEMBER:
        values.update(_member(exchange))
    known = {_PARAMETERS[fact]: value for fact, value in values.items() if fact in _PARAMETERS and value is not None}
    return cast("RequestParameters", known)


def _member(exchange: Exchange) -> dict[Fact, str | None]:
    """Return the ids of the one member that an exchange is of."""
    connection, _, request, response = exchange
    # A response to JoinGroup may list all members: the first id is that of the member itself.
    given = response.shape.facts.text(Fact.MEMBER_ID) if response else None
    if request is None:
        member = connection.member
        return {Fact.MEMBER_ID: given or member.member_id, Fact.INSTANCE_ID: member.instance_id}
    asked = request.shape.facts
    return {Fact.MEMBER_ID: asked.text(Fact.MEMBER_ID) or given, Fact.INSTANCE_ID: asked.text(Fact.INSTANCE_ID)}


def _values(frame: Frame) -> dict[Fact, str | int | None]:
    """Return the value of each fact of a frame, None for facts that have several values."""
    found: dict[Fact, str | int | None] = {}
    for fact, value in frame.shape.facts.values:
        found[fact] = value if found.get(fact, value) == value else None
    for measure, number in zip(frame.shape.measures, frame.values, strict=True):
        if measure.kind is MeasureKind.SESSION_EPOCH:
            found[Fact.SESSION_EPOCH] = number
    return found


def _throttle_ms(response: Frame) -> int:
    measures: tuple[Measure, ...] = response.shape.measures
    return sum(v for m, v in zip(measures, response.values, strict=True) if m.kind is MeasureKind.THROTTLE_MS)


def _status(request: Facts, response: Facts | None) -> str:
    statuses = [facts.status for facts in (request, response) if facts]
    worst = next((status for status in statuses if status not in (Status.COMPLETE, Status.HEADER_ONLY)), statuses[0])
    return worst.value


def _membership(exchange: Exchange) -> MembershipFacts:
    connection, _, request, response = exchange
    answered = response.shape.facts if response else None
    asked = request.shape.facts if request else None
    change = change_of_member(asked, answered) if asked else change_by_response(exchange.first.shape.facts)
    if not change:
        return {}
    found: MembershipFacts = {"membership": change}
    if answered and (partitions := partitions_of(answered)):
        found["partitions"] = partitions
    members = members_of(asked) if asked else []
    if len(members) > 1:
        found["members"] = [
            {"member_id": one.member_id, "instance_id": one.instance_id} for one in members[:MOST_MEMBERS]
        ]
    elif request and (reason := reason_of(request.shape.facts, connection.software_name, _reason_bytes(request))):
        found["reason"] = reason
    return found


def _reason_bytes(request: Frame) -> int:
    measured = zip(request.shape.measures, request.values, strict=True)
    return next((length for measure, length in measured if measure.kind is MeasureKind.REASON_BYTES), -1)
