"""What compiled walks call for what is rare or long: varints, tags that nobody asked for, the kernel's stubs."""

from __future__ import annotations

from struct import Struct

from kafka_probe.protocol.collector import Collector
from kafka_probe.protocol.facts import Encoding, Kind, Measure, RecordSet, SetStatus

_VARINT_MAX_BYTES = 5

# struct set_summary of bpf/record.h, its fields by name: (offset, width).
STUB = Struct(">IIBBBBqhxx")
STUB_FIELDS = {
    "records": (0, 4),
    "batches": (4, 4),
    "magic": (8, 1),
    "codec": (9, 1),
    "status": (10, 1),
    "flags": (11, 1),
    "producer_id": (12, 8),
    "producer_epoch": (20, 2),
}
STUB_MASK = b"\0" * 8 + b"\xff" * 4 + b"\0" * 12  # magic, codec, status and flags are facts
_COUNTS = (
    (Kind.RECORDS, *STUB_FIELDS["records"]),
    (Kind.BATCHES, *STUB_FIELDS["batches"]),
    (Kind.BATCH_PRODUCER_ID, *STUB_FIELDS["producer_id"]),
    (Kind.BATCH_PRODUCER_EPOCH, *STUB_FIELDS["producer_epoch"]),
)
_TRANSACTIONAL, _CONTROL = 1, 2
_COUNTED = (SetStatus.COUNTED, SetStatus.PARTIAL)
_WITH_PRODUCER = 2  # the first magic whose batches name their producer


def uvarint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint and where it ends. Raises IndexError if the data ends in it, ValueError if it does not end."""
    value = 0
    for place in range(_VARINT_MAX_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError


def compact(data: bytes, at: int) -> tuple[int, int]:
    """A compact length and where it ends, -1 for null."""
    value, at = uvarint(data, at)
    return value - 1, at


def skip_tags(data: bytes, at: int, since: int, tags: int, mask: bytearray) -> int:
    """Where so many tagged fields end; up to there everything but their contents is in the mask."""
    for _ in range(tags):
        _, at = uvarint(data, at)
        size, at = uvarint(data, at)
        if at + size > len(data):
            raise IndexError
        mask += b"\xff" * (at - since) + bytes(size)
        at = since = at + size
    return at


def record_set(
    data: bytes, start: int, at: int, is_compact: bool, topic: int, partition: int, found: Collector
) -> None:
    """A record set whose length stands at `start`, compact or of 4 bytes, and whose stub at `at`."""
    _, _, magic, codec, status, flags, _, _ = STUB.unpack_from(data, at)
    transactional, control = bool(flags & _TRANSACTIONAL), bool(flags & _CONTROL)
    found.record_sets.append(RecordSet(topic, partition, status, magic, codec, transactional, control))

    measure, encoding = found.measures.append, Encoding.COMPACT_LENGTH if is_compact else Encoding.SIGNED
    measure(Measure(Kind.RECORD_BYTES, topic, partition, start, at - start, encoding))
    if status not in _COUNTED:
        measure(Measure(Kind.UNCOUNTED_BYTES, topic, partition, start, at - start, encoding))
        return
    for kind, offset, width in _COUNTS if magic == _WITH_PRODUCER else _COUNTS[:2]:
        measure(Measure(kind, topic, partition, at + offset, width, Encoding.SIGNED))
