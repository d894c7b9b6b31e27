"""Frames as they stand on the wire, each with what the capture must say of it.

Encoded by kafka-python; frames without record sets are the messages of the decoder's own tests. Records hold MARKER,
which must never leave the kernel.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from kafka_probe.protocol.facts import Facts, Kind, Status, TopicFacts
from tests.unit.protocol.messages import CLIENT_ID, case

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib.resources.read_text
    from kafka.protocol.consumer import FetchResponse
    from kafka.protocol.producer import ProduceRequest
    from kafka.record import MemoryRecordsBuilder

MARKER = b"do-not-let-me-out"
PRODUCE, FETCH, METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 0, 1, 3, 17, 18, 36


@dataclass(frozen=True, slots=True)
class Seen:
    """A frame as the capture tells it. values: (kind, topic, partition, value); unsure: found in mid-stream."""

    facts: Facts
    correlation_id: int
    frame_bytes: int
    values: tuple[tuple[Kind, int, int, int], ...] = ()
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The bytes of a frame and what must be seen of them."""

    wire: bytes
    seen: Seen

    def __len__(self) -> int:
        return len(self.wire)


def request(api_key: int, version: int, correlation_id: int = 1) -> Frame:
    """A request of the decoder's tests: client id CLIENT_ID."""
    found = case(api_key, version, response=False)
    wire = framed(struct.pack(">hhi", api_key, version, correlation_id) + found.data)
    return Frame(wire, Seen(found.facts, correlation_id, len(wire), tuple(found.values)))


def response(api_key: int, version: int, correlation_id: int = 1) -> Frame:
    """A response of the decoder's tests."""
    found = case(api_key, version, response=True)
    wire = framed(struct.pack(">i", correlation_id) + found.data)
    return Frame(wire, Seen(found.facts, correlation_id, len(wire), tuple(found.values)))


def header_only(api_key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool = False) -> Frame:
    """A request of which nothing but its header may leave."""
    client_id = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode() + b"\0" * flexible
    wire = framed(struct.pack(">hhi", api_key, version, correlation_id) + client_id + body)
    facts = Facts(False, api_key, version, Status.HEADER_ONLY, client_id=CLIENT_ID)
    return Frame(wire, Seen(facts, correlation_id, len(wire)))


def answer(api_key: int, version: int, correlation_id: int, body: bytes) -> Frame:
    """A response of which nothing but its header may leave."""
    wire = framed(struct.pack(">i", correlation_id) + body)
    return Frame(wire, Seen(Facts(True, api_key, version, Status.HEADER_ONLY), correlation_id, len(wire)))


def batch(records: int, *, magic: int = 2, codec: int = 0, value: bytes = MARKER) -> bytes:
    """One record batch of magic 2, or a message set of magic 0 or 1; every record has MARKER wherever it can."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 24)
    for _ in range(records):
        builder.append(1_700_000_000_000, MARKER, value, [(MARKER.decode(), MARKER)] if magic == 2 else [])
    builder.close()
    return bytes(builder.buffer())


@dataclass(frozen=True, slots=True)
class Set:
    """A record set and how many records the kernel can count in it; None: it cannot."""

    data: bytes
    records: int | None


def records_of(*counts: int, magic: int = 2) -> Set:
    """A set of one batch per count."""
    return Set(b"".join(batch(count, magic=magic) for count in counts), sum(counts))


def some_records(version: int) -> Set:
    """What a Produce request of this version carries: message sets before version 3."""
    return records_of(3, 2, magic=2 if version >= 3 else 1)


Topics = Mapping[str, Mapping[int, Set | None]]


def produce(version: int, topics: Topics, *, correlation_id: int = 1, acks: int = 1) -> Frame:
    """A Produce request by topic and partition."""
    topic_class = ProduceRequest.TopicProduceData
    data = [
        topic_class(
            name=name,
            topic_id=topic_id(name),
            partition_data=[
                topic_class.PartitionProduceData(index=index, records=records and records.data)
                for index, records in partitions.items()
            ],
        )
        for name, partitions in topics.items()
    ]
    message = ProduceRequest(transactional_id="till", acks=acks, timeout_ms=1000, topic_data=data)
    facts = replace(_facts(False, PRODUCE, version, topics), client_id=CLIENT_ID, acks=acks)
    return _encoded(message, facts, correlation_id, topics)


def fetched(version: int, topics: Topics, *, correlation_id: int = 1, aborted: int = 0) -> Frame:
    """A Fetch response by topic and partition, every partition with so many aborted transactions."""
    topic_class = FetchResponse.FetchableTopicResponse
    partition_class = topic_class.PartitionData
    transactions = [partition_class.AbortedTransaction(producer_id=5, first_offset=n) for n in range(aborted)]
    responses = [
        topic_class(
            topic=name,
            topic_id=topic_id(name),
            partitions=[
                partition_class(
                    partition_index=index, aborted_transactions=transactions, records=records and records.data
                )
                for index, records in partitions.items()
            ],
        )
        for name, partitions in topics.items()
    ]
    message = FetchResponse(throttle_time_ms=0, error_code=0, session_id=7, responses=responses)
    throttle = ((Kind.THROTTLE_MS, -1, -1, 0),) if version >= 1 else ()
    return _encoded(message, _facts(True, FETCH, version, topics), correlation_id, topics, throttle)


def values_of(topics: Topics) -> list[tuple[Kind, int, int, int]]:
    """What is measured of the record sets."""
    values = []
    for place, partitions in enumerate(topics.values()):
        for index, records in partitions.items():
            if records and records.data:
                size, count = len(records.data), records.records
                measured = (Kind.UNCOUNTED_BYTES, size) if count is None else (Kind.RECORDS, count)
                values += [(Kind.RECORD_BYTES, place, index, size), (measured[0], place, index, measured[1])]
    return values


def topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


def joined(frames: Sequence[Frame]) -> bytes:
    return b"".join(frame.wire for frame in frames)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _facts(is_response: bool, api_key: int, version: int, topics: Topics) -> Facts:
    by_id = version >= 13  # Produce and Fetch alike
    named = tuple(
        TopicFacts(None if by_id else name, topic_id(name).hex if by_id else None, tuple(partitions), ())
        for name, partitions in topics.items()
    )
    filled = any(records and records.data for partitions in topics.values() for records in partitions.values())
    return Facts(is_response, api_key, version, Status.COMPLETE, topics=named, has_records=filled)


def _encoded(
    message: Any, facts: Facts, correlation_id: int, topics: Topics, before: tuple[tuple[Kind, int, int, int], ...] = ()
) -> Frame:
    message.API_VERSION = facts.api_version
    message.with_header(correlation_id, *(() if facts.response else (CLIENT_ID,)))
    wire = bytes(message.encode(header=True, framed=True))
    return Frame(wire, Seen(facts, correlation_id, len(wire), (*before, *values_of(topics))))
