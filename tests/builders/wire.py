"""Builds frames as they are on the wire, each with the facts that the capture must report.

Frames without record sets are the messages of the decoder's own tests. Records, which kafka-python makes, hold MARKER,
which must never leave the kernel.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import NAMESPACE_OID, UUID, uuid5

from kafka_probe.capture.sample import NO_API
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, MeasureKind, SetStatus, Status
from tests.builders.expected import expected
from tests.builders.messages import CLIENT_ID, case
from tests.builders.trees import Message, Records, Tree, message_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib.resources.read_text
    from kafka.record import MemoryRecordsBuilder

MARKER = b"do-not-let-me-out"
# What the kernel reads in the headers of batches.
OFFSETS = MeasureKind.BATCH_FIRST_OFFSET, MeasureKind.BATCH_LAST_OFFSET
OF_BATCHES = (
    *(MeasureKind.RECORDS, MeasureKind.BATCHES, *OFFSETS),
    *(MeasureKind.BATCH_PRODUCER_ID, MeasureKind.BATCH_PRODUCER_EPOCH),
)
PRODUCE, FETCH, LIST_OFFSETS, METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.API_VERSIONS,
    ApiKey.SASL_AUTHENTICATE,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A frame as the capture reports it. values: (kind, topic, partition, value)."""

    facts: Facts
    correlation_id: int
    frame_bytes: int
    values: tuple[tuple[MeasureKind, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """The bytes of a frame and the facts that must be reported."""

    wire: bytes
    seen: Seen

    def __len__(self) -> int:
        return len(self.wire)


def request(api_key: int, version: int, correlation_id: int = 1) -> Frame:
    """Return a request of the decoder's tests, with client id CLIENT_ID."""
    found = case(api_key, version, response=False)
    wire = framed(struct.pack(">hhi", api_key, version, correlation_id) + found.wire)
    return Frame(wire, Seen(found.facts, correlation_id, len(wire), tuple(found.values)))


def response(api_key: int, version: int, correlation_id: int = 1) -> Frame:
    """Return a response of the decoder's tests."""
    found = case(api_key, version, response=True)
    wire = framed(struct.pack(">i", correlation_id) + found.wire)
    return Frame(wire, Seen(found.facts, correlation_id, len(wire), tuple(found.values)))


def header_only(api_key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool = False) -> Frame:
    """Return a request of which only the header may leave the kernel."""
    client_id = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode() + b"\0" * flexible
    wire = framed(struct.pack(">hhi", api_key, version, correlation_id) + client_id + body)
    facts = Facts(False, api_key, version, Status.HEADER_ONLY, values=((Fact.CLIENT_ID, CLIENT_ID),))
    return Frame(wire, Seen(facts, correlation_id, len(wire)))


def answer(api_key: int, version: int, correlation_id: int, body: bytes) -> Frame:
    """Return a response of which only the header may leave the kernel."""
    wire = framed(struct.pack(">i", correlation_id) + body)
    return Frame(wire, Seen(Facts(True, api_key, version, Status.HEADER_ONLY), correlation_id, len(wire)))


def unmatched(correlation_id: int, body: bytes = bytes(6)) -> Frame:
    """Return a response to a request that was not seen; it is as long as that to ApiVersions version 0."""
    wire = framed(struct.pack(">i", correlation_id) + body)
    return Frame(wire, Seen(Facts(True, NO_API, 0, Status.UNKNOWN_API), correlation_id, len(wire)))


TRANSACTIONAL, CONTROL = 0x10, 0x20  # of a batch's attributes


def batch(records: int, *, magic: int = 2, codec: int = 0, value: bytes = MARKER, attributes: int = 0) -> bytes:
    """Return a record batch of magic 2, or a message set of magic 0 or 1.

    Every record contains MARKER wherever it can.
    """
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 24)
    for _ in range(records):
        builder.append(1_700_000_000_000, MARKER, value, [(MARKER.decode(), MARKER)] if magic == 2 else [])
    builder.close()
    built = bytearray(builder.buffer())
    built[22] |= attributes
    return bytes(built)


def _offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


@dataclass(frozen=True, slots=True)
class Set:
    """A record set and how many records the kernel can count in it; None: it cannot."""

    data: bytes
    records: int | None

    @property
    def stub(self) -> Records:
        """Return the stub that the kernel must write for it."""
        if not self.data:
            return Records(b"")
        batches = list(self._batches())
        first, magic = batches[0], self.data[16]
        status = SetStatus.WRAPPER if self.records is None else SetStatus.COUNTED
        if magic < 2:
            codec, offsets = first[17] & 7, (_offset(first), _offset(batches[-1]))
            return Records(self.data, self.records or 0, len(batches), magic, codec, status, 0, -1, -1, *offsets)
        if sum(map(len, batches)) < len(self.data):
            status = SetStatus.PARTIAL
        attributes = [batch[22] for batch in batches]
        flags = any(each & TRANSACTIONAL for each in attributes) | any(each & CONTROL for each in attributes) << 1
        codec = first[22] & 7
        last_offset = _offset(batches[-1]) + int.from_bytes(batches[-1][23:27], "big")
        ids = *struct.unpack(">qh", first[43:53]), _offset(first), last_offset
        return Records(self.data, self.records or 0, len(batches), magic, codec, status, flags, *ids)

    def _batches(self) -> Iterator[bytes]:
        """Return the complete batches or messages."""
        at = 0
        while at + 12 <= len(self.data):
            size = 12 + int.from_bytes(self.data[at + 8 : at + 12], "big")
            if at + size <= len(self.data):
                yield self.data[at : at + size]
            at += size


def records_of(*counts: int, magic: int = 2) -> Set:
    """Return a record set of one batch per count."""
    return Set(b"".join(batch(count, magic=magic) for count in counts), sum(counts))


def some_records(version: int) -> Set:
    """Return records as in a Produce request of this version: message sets before version 3."""
    return records_of(3, 2, magic=2 if version >= 3 else 1)


Topics = Mapping[str, Mapping[int, Set | None]]


def produce(version: int, topics: Topics, *, correlation_id: int = 1, acks: int = 1) -> Frame:
    """Return a Produce request with these record sets, by topic and partition."""
    data = [
        {
            **_named(name),
            "PartitionData": [{"Index": index, "Records": _stub(records)} for index, records in of.items()],
        }
        for name, of in topics.items()
    ]
    tree = {"TransactionalId": "till", "Acks": acks, "TimeoutMs": 1000, "TopicData": data}
    return frame_of(message_of("Produce", False, version, tree), correlation_id)


def fetched(version: int, topics: Topics, *, correlation_id: int = 1, aborted: int = 0) -> Frame:
    """Return a Fetch response with these record sets, and `aborted` aborted transactions per partition."""
    transactions = [{"ProducerId": 5, "FirstOffset": n} for n in range(aborted)]
    responses = [
        {
            **_named(name),
            "Partitions": [
                {"PartitionIndex": index, "AbortedTransactions": transactions, "Records": _stub(records)}
                for index, records in of.items()
            ],
        }
        for name, of in topics.items()
    ]
    return frame_of(message_of("Fetch", True, version, {"SessionId": 7, "Responses": responses}), correlation_id)


def share_fetch(version: int, correlation_id: int = 1) -> Frame:
    """Return a ShareFetch request of an open session."""
    partitions = [{"PartitionIndex": index} for index in (0, 4)]
    topics = [{**_named("orders"), "Partitions": partitions}]
    tree = {"GroupId": "tills", "MemberId": "me", "ShareSessionEpoch": 2, "Topics": topics}
    return frame_of(message_of("ShareFetch", False, version, tree), correlation_id)


def shared(
    version: int, topics: Topics, *, correlation_id: int = 1, acquired: int = 1, error: str | None = None
) -> Frame:
    """Return a ShareFetch response, each of whose partitions has so many acquired ranges and this error."""
    partition = {
        "ErrorCode": 29 if error else 0,
        "ErrorMessage": error,
        "CurrentLeader": {"LeaderId": 1, "LeaderEpoch": 2},
        "AcquiredRecords": [{"FirstOffset": n, "LastOffset": n + 5, "DeliveryCount": 1} for n in range(acquired)],
    }
    responses = [
        {
            **_named(name),
            "Partitions": [
                {**partition, "PartitionIndex": index, "Records": _stub(records)} for index, records in of.items()
            ],
        }
        for name, of in topics.items()
    ]
    tree = {"ThrottleTimeMs": 17, "AcquisitionLockTimeoutMs": 30_000, "Responses": responses}
    return frame_of(message_of("ShareFetch", True, version, tree), correlation_id)


def uncounted(seen: Seen, *partitions: int) -> Seen:
    """Return the same frame for an end where its record sets, or those of some partitions, are in no buffer."""
    values: list[tuple[MeasureKind, int, int, int]] = []
    for value in seen.values:
        if partitions and value[2] not in partitions:
            values.append(value)
        elif value[0] is MeasureKind.RECORD_BYTES:
            unknown = ((kind, *value[1:3], -1) for kind in OFFSETS)
            values += [value, *unknown, (MeasureKind.UNCOUNTED_BYTES, *value[1:])]
        elif value[0] not in OF_BATCHES:
            values.append(value)
    sets = tuple(
        found
        if partitions and found.partition not in partitions
        else found._replace(status=SetStatus.UNREADABLE, magic=0, codec=0, transactional=False, control=False)
        for found in seen.facts.record_sets
    )
    return replace(seen, facts=seen.facts._replace(record_sets=sets), values=tuple(values))


def topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


def joined(frames: Sequence[Frame]) -> bytes:
    return b"".join(frame.wire for frame in frames)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _named(name: str) -> Tree:
    return {"Name": name, "Topic": name, "TopicId": topic_id(name).bytes}


def _stub(records: Set | None) -> Records | None:
    return None if records is None else records.stub


def frame_of(message: Message, correlation_id: int) -> Frame:
    """Return a message of the decoder's tests."""
    wire, found = message.frame(correlation_id), expected(message)
    return Frame(wire, Seen(found.facts(message), correlation_id, len(wire), tuple(found.measured)))


FIFTY_RECORDS = produce(9, {"orders": {0: records_of(50)}})
