"""Pairs requests with their responses, for `request` events.

Without `--requests` it pairs only requests that change the cluster, see `pair_all`. Anybody can send these, so they
have a limit.

Kafka answers the requests of a connection in order. The kernel has matched each response to its request, so the
correlation id finds the request here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, cast

from kafka_probe.capture.sample import NO_API
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.frame_reader import Frames
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import RequestEvent, RequestParameters, RequestTopic, WallClock, codec_name
from kafka_probe.memory import DEFAULT
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.administration import ADMINISTRATION
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.protocol.facts import Fact, Facts, Measure, MeasureKind, SetStatus, Shape, Status, shape_bytes
from kafka_probe.protocol.schemas import apis

LOSSES = {
    "request_limit": "`request` events without their response, because requests in flight exceed `--memory-limit`",
    "request_topic_limit": "`request` events that contain only 4096 of their topics and partitions, or names with "
    "262,144 characters",
    "administration_limit": "requests that changed the cluster and have no event, because all peers, or one peer, sent "
    "too many in an interval: look for a client that sends very many",
}
ROWS, CHARACTERS = 4096, 1 << 18  # most entries of topics and partitions in an event, and most characters of names
MOST_ADMINISTRATION = 4096  # entries in an interval, if only requests of administration are paired
EVENT_ENTRIES = 4  # memory of an event without topics, in entries
# Entries as which a request counts at most: the share of a peer, so that one that names very many is paired, too.
MOST_REQUEST_ENTRIES = MOST_ADMINISTRATION // 8
_WAITING_BYTES = 512  # memory of a waiting request besides its shape
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


_Exchange = tuple[Connection, int, Frame, Frame | None]
"""Connection, correlation id, request and response; None: no response was seen."""
_MAY_BE_CHOSEN = ADMINISTRATION | {NO_API}  # responses whose API is not known belong to any request


class Exchanges:
    """Pairs requests with responses. Only requests in flight wait: a response also ends the requests before it.

    Beyond `limit_bytes` the requests of the connection that has had waiting requests for the longest time end without
    a response. internal: pair kafka-probe's own requests as well; those of administration are paired in any case.
    """

    def __init__(
        self,
        tracker: Tracker,
        names: TopicNames,
        limit_bytes: int = DEFAULT.exchanges_bytes,
        *,
        internal: bool = False,
    ) -> None:
        self._internal = internal
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self.pairs_all = True
        self._paired: list[_Exchange] = []
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self.begin_interval()
        self._tracker = tracker
        self._names = names
        self._waiting: dict[int, dict[int, Frame]] = {}

    def pair_all(self, *, pair_all: bool) -> None:
        """Pair all requests, or only those of administration, within MOST_ADMINISTRATION entries per interval."""
        self.pairs_all = pair_all
        if not pair_all:
            for conn, waiting in [*self._waiting.items()]:
                for correlation_id, request in [*waiting.items()]:
                    if request.shape.facts.api_key not in ADMINISTRATION:
                        self._take_out(conn, correlation_id)

    def begin_interval(self) -> None:
        """Begin an interval of the limit for requests of administration."""
        self._entries, self._shares = 0, Shares(MOST_ADMINISTRATION)

    def chosen(self, batch: list[Frames]) -> list[Frames]:
        """Return the frames of a batch that may be of exchanges to pair: all, or those of administration."""
        return batch if self.pairs_all else [frames for frames in batch if frames.shape.facts.api_key in _MAY_BE_CHOSEN]

    def pair(self, batch: list[Frames]) -> None:
        """Pair a batch of frames, in the order of the frames. `take_events` returns what it completes."""
        frames = [
            (
                sample,
                Frame(part.shape, int(sample["ts_ns"]), int(sample["frame_bytes"]), int(sample["latency_us"]), row),
            )
            for part in batch
            for sample, row in zip(part.batch[part.index], part.values.tolist(), strict=True)
        ]
        # A response comes after its request, also if both have the same time.
        frames.sort(key=lambda pair: (pair[1].ts_ns, pair[1].shape.facts.response))
        for sample, frame in frames:
            connection = self._tracker.get(int(sample["conn"]))
            if connection and (
                self._internal or not connection.internal or frame.shape.facts.api_key in ADMINISTRATION
            ):
                self._paired.extend(self._take(connection, int(sample["correlation_id"]), frame))

    def take_events(self, clock: WallClock) -> Iterator[RequestEvent]:
        """Return an event for each exchange that is complete and was not returned before; each is made when reached."""
        paired, self._paired = self._paired, []
        return (self._event(*exchange, clock) for exchange in paired)

    def forget_connection(self, connection: Connection) -> None:
        """Complete the requests of a connection that ended without their responses."""
        for correlation_id, request in self._forget(connection.identity.conn).items():
            self._paired.append((connection, correlation_id, request, None))

    def finish(self) -> None:
        """Complete the requests of administration that wait for their responses when the agent ends."""
        self.pair_all(pair_all=False)
        for conn in [*self._waiting]:
            if connection := self._tracker.get(conn):
                self.forget_connection(connection)

    def _take(self, connection: Connection, correlation_id: int, frame: Frame) -> Iterator[_Exchange]:
        """Yield the exchanges that a frame completes."""
        facts = frame.shape.facts
        conn = connection.identity.conn
        waiting = self._waiting.get(conn, {})
        if facts.response:
            if correlation_id in waiting:
                # Earlier requests that still wait have lost their responses.
                for passed in list(takewhile(lambda asked: asked != correlation_id, waiting)):
                    yield connection, passed, self._take_out(conn, passed), None
                yield connection, correlation_id, self._take_out(conn, correlation_id), frame
        elif facts.api_key == ApiKey.PRODUCE and facts.acks == 0:
            yield connection, correlation_id, frame, None
        else:
            if correlation_id in waiting:  # a client may use an id again, and only one can have the response
                yield connection, correlation_id, self._take_out(conn, correlation_id), None
            if self._admits(connection, facts):
                self._waiting.setdefault(conn, {})[correlation_id] = frame
                self._held_bytes += _size(frame)
            while self._held_bytes > self._limit_bytes:
                yield from self._evict(next(iter(self._waiting)))

    def _admits(self, connection: Connection, facts: Facts) -> bool:
        """Return True if a request is paired; count one of administration beyond the limit or the share of its peer."""
        if self.pairs_all:
            return True
        named = sum(max(len(topic.partitions), 1) for topic in facts.topics)
        entries = min(EVENT_ENTRIES + named, MOST_REQUEST_ENTRIES)
        used = self._entries + entries
        fits = used <= MOST_ADMINISTRATION and self._shares.take(connection.sharing_peer, entries, used)
        self._entries += entries * fits
        self.losses["administration_limit"] += not fits
        return fits

    def _evict(self, conn: int) -> Iterator[_Exchange]:
        connection = self._tracker.get(conn)
        for correlation_id, request in self._forget(conn).items():
            self.losses["request_limit"] += 1
            if connection:
                yield connection, correlation_id, request, None

    def _take_out(self, conn: int, correlation_id: int) -> Frame:
        request = self._waiting[conn].pop(correlation_id)
        self._held_bytes -= _size(request)
        if not self._waiting[conn]:
            del self._waiting[conn]
        return request

    def _forget(self, conn: int) -> dict[int, Frame]:
        waiting = self._waiting.pop(conn, {})
        self._held_bytes -= sum(map(_size, waiting.values()))
        return waiting

    def _event(
        self, connection: Connection, correlation_id: int, request: Frame, response: Frame | None, clock: WallClock
    ) -> RequestEvent:
        facts = request.shape.facts
        answered = response.shape.facts if response else None
        api = apis().get(facts.api_key)
        topics, cut = self._topics(connection, request, response)
        return {
            "kind": "request",
            **connection.facts(),
            "api": api.name if api else None,
            "api_key": facts.api_key,
            "api_version": facts.api_version,
            "correlation_id": correlation_id,
            "request_bytes": request.size_bytes,
            "response_bytes": response.size_bytes if response else None,
            "latency_us": response.latency_us if response else None,
            "throttle_ms": _throttle_ms(response) if response else None,
            "group": connection.group(facts.api_key, facts.groups),
            **_parameters(request, response),
            "status": Status.TRUNCATED.value if cut else _status(facts, answered),
            "stopped_at": facts.stopped_at or (answered.stopped_at if answered else None),
            "errors": {str(code): count for code, count in answered.errors} if answered else {},
            "error_names": {ERROR_NAMES.get(code, str(code)): n for code, n in answered.errors} if answered else {},
            "topics": topics,
            "ts": clock.epoch_us((response or request).ts_ns),
        }

    def _topics(
        self, connection: Connection, request: Frame, response: Frame | None
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

        for frame in (request, response) if response else (request,):
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
        self.losses["request_topic_limit"] += cut
        return list(rows.values()), cut


def _size(frame: Frame) -> int:
    return _WAITING_BYTES + shape_bytes(frame.shape)


def _parameters(request: Frame, response: Frame | None) -> RequestParameters:
    asked, given = _values(request), _values(response) if response else {}
    values = {
        **given,
        **asked,
        **{fact: value for fact, value in given.items() if asked.get(fact) in _LEFT_TO_THE_BROKER},
    }
    known = {_PARAMETERS[fact]: value for fact, value in values.items() if fact in _PARAMETERS and value is not None}
    return cast("RequestParameters", known)


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
