"""Counts the requests, records and bytes per topic on a broker's port from a packet capture.

The oracle of the end-to-end test: it shares nothing with the product. Whole frames are cut from the reassembled streams
and their bodies read by kio's codecs.
"""

from __future__ import annotations

import struct
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.static.protocol import RequestPayload, ResponsePayload

from kafka_probe.protocol.api_keys import ApiKey
from tests.lab.tcpdump import Address, Stream, segments
from tests.lab.times import Times

_PRODUCE, _FETCH, _METADATA, _API_VERSIONS, _SHARE_FETCH = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.SHARE_FETCH,
)
OF_GROUP_MEMBERS = (
    *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT),
    *(ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT),
)
_NO_SESSION = -1
_PARTITION_INDEX = ("partition", "partition_index", "index")
_CONTROL = 0x20  # of a batch's attributes
_NO_PRODUCER = b"\xff" * 8
_HEADER_BYTES = 8  # size, and correlation id of an answer: what a program must have seen to report a frame
_BATCH_OVERHEAD = 12  # base offset and length, before the bytes that the length counts
_Topic = str | uuid.UUID


@dataclass(slots=True)
class TopicTraffic:
    """The requests of one client about one topic, and the record sets that it sent or received.

    A request counts if it names the topic or if its fetch session contains the topic. Record sets are received by Fetch
    and ShareFetch.

    `again`: records that were transferred again. A consumer may drop what it fetched before a rebalance, and a producer
    sends again what the broker refused.
    `markers`: the markers by which a broker ends a transaction. Clients do not return markers to the application.
    """

    requests: int = 0
    records: int = 0
    bytes: int = 0
    again: int = field(default=0, compare=False)
    markers: int = field(default=0, compare=False)


@dataclass(slots=True)
class Walk:
    """The counts of a capture, in which topics are names."""

    requests: Counter[tuple[str, int, str | None]] = field(default_factory=Counter)  # by API, version and client id
    topics: dict[tuple[str | None, str, str], TopicTraffic] = field(default_factory=dict)  # by client id, API and topic
    software: dict[str | None, tuple[str, str]] = field(default_factory=dict)  # by client id: library and version
    groups: dict[str | None, set[str]] = field(default_factory=lambda: defaultdict(set))  # by client id: its own
    errors: Counter[tuple[str | None, int]] = field(
        default_factory=Counter
    )  # by client id and code, of Fetch as a whole
    times: Times = field(default_factory=Times)

    @property
    def by_api(self) -> dict[tuple[str, int], int]:
        """Return the requests by API and version."""
        counts: Counter[tuple[str, int]] = Counter()
        for (api, version, _), count in self.requests.items():
            counts[api, version] += count
        return dict(counts)


class _Request(NamedTuple):
    key: int
    version: int
    correlation_id: int
    client_id: str | None


class Frames:
    """Cuts one direction of a connection into frames without their length prefix."""

    def __init__(self) -> None:
        self.stream = Stream()
        self._buffer = bytearray()
        self._fed_us = 0

    @property
    def broken_off(self) -> list[int]:
        """Return the time of the last bytes of an incomplete frame, if there is one."""
        return [self._fed_us] if len(self._buffer) >= _HEADER_BYTES else []

    def feed(self, data: bytes, time_us: int = 0) -> Iterator[bytes]:
        """Yield the frames that `data`, captured at that time, completes."""
        self._fed_us = time_us if data else self._fed_us
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= (end := 4 + int.from_bytes(self._buffer[:4], "big")):
            yield bytes(self._buffer[4:end])
            del self._buffer[:end]


def walk(pcap: Path, port: int) -> Walk:
    """Count the traffic in a capture of the broker's port. Its Metadata responses map topic ids to names."""
    counts, times = _Counts(), Times()
    frames: dict[tuple[Address, Address], Frames] = defaultdict(Frames)
    waiting: dict[tuple[Address, Address], deque[_Request]] = defaultdict(deque)
    for segment in segments(pcap):
        way, asks = (segment.source, segment.target), segment.target[1] == port
        times.see(segment, asks=asks)
        if segment.restarts:
            times.broken_off += frames.pop(way, Frames()).broken_off
            waiting.pop(way, None)
        for frame in frames[way].feed(frames[way].stream.feed(segment), segment.time_us):
            times.add(segment, frame, asks=asks)
            if asks:
                if (request := counts.add_request(way, frame)) is not None:
                    waiting[way].append(request)
            else:
                counts.add_response(frame, waiting[segment.target, segment.source].popleft())
    times.broken_off += [us for each in frames.values() for us in each.broken_off]
    return replace(counts.result(), times=times)


class _Session:
    """The topics of a connection's fetch session: an incremental fetch names only changes (KIP-227, KIP-932)."""

    def __init__(self) -> None:
        self._held: set[tuple[_Topic, int]] = set()

    def ask(self, body: Any) -> set[_Topic]:
        """Return the topics of a request, named or from its session."""
        named = {(_topic(topic, "topic"), _index(each)) for topic in body.topics for each in topic.partitions}
        epoch = getattr(body, "share_session_epoch", getattr(body, "session_epoch", _NO_SESSION))
        if epoch <= 0:
            self._held = set()
        if epoch >= 0:
            self._held |= named
        gone = getattr(body, "forgotten_topics_data", ())
        self._held -= {(_topic(topic, "topic"), _index(each)) for topic in gone for each in topic.partitions}
        return {topic for topic, _ in self._held | named}


class _Counts:
    """The counts before topic ids are resolved to names."""

    def __init__(self) -> None:
        self._walk = Walk()
        self._names: dict[uuid.UUID, str] = {}
        self._topics: dict[tuple[str | None, str, _Topic], TopicTraffic] = defaultdict(TopicTraffic)
        self._seen: set[tuple[str | None, str, _Topic, int, bytes]] = set()
        self._sessions: dict[tuple[object, int], _Session] = defaultdict(_Session)

    def result(self) -> Walk:
        for (client_id, api, topic), count in self._topics.items():
            name = self._names[topic] if isinstance(topic, uuid.UUID) else topic
            total = self._walk.topics.setdefault((client_id, api, name), TopicTraffic())
            total.requests += count.requests
            total.records += count.records
            total.bytes += count.bytes
            total.again += count.again
            total.markers += count.markers
        return self._walk

    def add_request(self, connection: object, frame: bytes) -> _Request | None:
        """Count a request; return it if it will be answered."""
        key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        client_id = frame[10 : 10 + length].decode() if length >= 0 else None
        schema = load_request_schema(key, version)
        api = schema.__name__.removesuffix("Request")
        self._walk.requests[api, version, client_id] += 1
        if key == _API_VERSIONS and version >= 3:
            body = _body(schema, frame)
            self._walk.software[client_id] = body.client_software_name, body.client_software_version
        elif key == _PRODUCE:
            body = _body(schema, frame)
            for name in {_topic(topic, "name") for topic in body.topic_data}:
                self._topics[client_id, api, name].requests += 1
            for topic in body.topic_data:
                self._add(client_id, api, _topic(topic, "name"), topic.partition_data)
            if body.acks == 0:
                return None
        elif key in (_FETCH, _SHARE_FETCH):
            for name in self._sessions[connection, key].ask(_body(schema, frame)):
                self._topics[client_id, api, name].requests += 1
        elif key in OF_GROUP_MEMBERS:
            self._walk.groups[client_id] |= _groups(_body(schema, frame))
        return _Request(key, version, correlation_id, client_id)

    def add_response(self, frame: bytes, request: _Request) -> None:
        """Count the record sets of a response to Fetch or ShareFetch, and learn topic names from one to Metadata."""
        assert int.from_bytes(frame[:4], "big", signed=True) == request.correlation_id
        if request.key not in (_FETCH, _METADATA, _SHARE_FETCH):
            return
        schema = load_response_schema(request.key, request.version)
        body = _body(schema, frame)
        if request.key == _METADATA:
            self._names.update(
                {topic.topic_id: topic.name for topic in body.topics if getattr(topic, "topic_id", None)}
            )
            return
        api = schema.__name__.removesuffix("Response")
        if error := getattr(body, "error_code", 0):
            self._walk.errors[request.client_id, int(error)] += 1
        for topic in body.responses:
            name = _topic(topic, "topic")
            self._add(request.client_id, api, name, topic.partitions)

    def _add(self, client_id: str | None, api: str, topic: _Topic, partitions: Any) -> None:
        """Add the record sets of partitions."""
        count = self._topics[client_id, api, topic]
        for partition in partitions:
            count.bytes += len(partition.records or b"")
            for batch in _batches(partition):
                count.records += batch.records
                count.markers += batch.records if batch.control else 0
                if mark := batch.producer if api == "Produce" else batch.offset:
                    place = client_id, api, topic, _index(partition), mark
                    count.again += batch.records if place in self._seen and not batch.control else 0
                    self._seen.add(place)


def _body(schema: type[RequestPayload | ResponsePayload], frame: bytes) -> Any:
    _, start = entity_reader(schema.__header_schema__)(frame, 0)
    body, size = entity_reader(schema)(frame, start)
    assert start + size == len(frame), (
        f"{schema.__name__} v{schema.__version__}: {len(frame) - start - size} bytes left"
    )
    return body


def _topic(entity: Any, name_field: str) -> _Topic:
    name: _Topic = entity.topic_id if hasattr(entity, "topic_id") else getattr(entity, name_field)
    return name


def _index(partition: Any) -> int:
    """Return a partition's index; a partition that a fetch session drops is only its index."""
    if isinstance(partition, int):
        return partition
    return int(next(getattr(partition, name) for name in _PARTITION_INDEX if hasattr(partition, name)))


def _groups(body: Any) -> set[str]:
    """Return the group ids of a request: OffsetFetch 8 and newer may have many."""
    return {group.group_id for group in body.groups} if hasattr(body, "groups") else {body.group_id}


class _Batch(NamedTuple):
    """A record batch. `producer`: its producer's id, epoch and sequence; empty if it has none."""

    records: int
    control: bool
    offset: bytes
    producer: bytes


def _batches(partition: Any) -> Iterator[_Batch]:
    """Yield the complete batches of a record set: the last one may be cut."""
    record_set = bytes(partition.records or b"")
    start = 0
    while start + _BATCH_OVERHEAD <= len(record_set):
        end = start + _BATCH_OVERHEAD + int.from_bytes(record_set[start + 8 : start + 12], "big")
        if end > len(record_set):
            return
        assert record_set[start + 16] == 2, f"record batch of magic {record_set[start + 16]}"
        batch = record_set[start:end]
        producer = b"" if batch[43:51] == _NO_PRODUCER else batch[43:57]
        yield _Batch(int.from_bytes(batch[57:61], "big"), bool(batch[22] & _CONTROL), batch[:8], producer)
        start = end
