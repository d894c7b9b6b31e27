"""What compiled walks call for what is rare or long: varints, tags that nobody asked for, the kernel's stubs."""

from __future__ import annotations

from kafka_probe.protocol.collector import Collector
from kafka_probe.protocol.facts import Encoding, Kind, SetStatus

_VARINT_BITS = 35  # as many as five bytes hold

# struct set_summary of bpf/record.h, its fields by name: (offset, width).
STUB_BYTES = 24
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
_AT_MAGIC, _AT_BATCHES, _AT_PRODUCER_ID, _AT_PRODUCER_EPOCH = (
    STUB_FIELDS[name][0] for name in ("magic", "batches", "producer_id", "producer_epoch")
)
STUB_MASK = b"\0" * 8 + b"\xff" * 4 + b"\0" * 12  # magic, codec, status and flags are facts
_TRANSACTIONAL, _CONTROL = 1, 2
_COUNTED = (SetStatus.COUNTED, SetStatus.PARTIAL)
# By names of their own: to look up a member of an enum takes as long as a measure.
_SIGNED, _COMPACT = Encoding.SIGNED, Encoding.COMPACT_LENGTH
_RECORD_BYTES, _UNCOUNTED_BYTES, _RECORDS, _BATCHES = (
    Kind.RECORD_BYTES,
    Kind.UNCOUNTED_BYTES,
    Kind.RECORDS,
    Kind.BATCHES,
)
_PRODUCER_ID, _PRODUCER_EPOCH = Kind.BATCH_PRODUCER_ID, Kind.BATCH_PRODUCER_EPOCH
_WITH_PRODUCER = 2  # the first magic whose batches name their producer


def uvarint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint and where it ends. Raises IndexError if the data ends in it, ValueError if it does not end."""
    byte = data[at]
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        if shift == _VARINT_BITS:
            raise ValueError
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1


def skip_tags(data: bytes, at: int, since: int, mask: bytearray) -> int:
    """Where tagged fields end; up to there everything but their contents is in the mask."""
    tags, at = uvarint(data, at)
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
    magic, codec, status, flags = data[at + _AT_MAGIC : at + _AT_MAGIC + 4]
    found.record_sets.append((topic, partition, status, magic, codec, flags & _TRANSACTIONAL > 0, flags & _CONTROL > 0))
    size = (topic, partition, start, at - start, _COMPACT if is_compact else _SIGNED)
    if status not in _COUNTED:
        found.measures += ((_RECORD_BYTES, *size), (_UNCOUNTED_BYTES, *size))
        return
    found.measures += (
        (_RECORD_BYTES, *size),
        (_RECORDS, topic, partition, at, 4, _SIGNED),
        (_BATCHES, topic, partition, at + _AT_BATCHES, 4, _SIGNED),
    )
    if magic == _WITH_PRODUCER:
        found.measures += (
            (_PRODUCER_ID, topic, partition, at + _AT_PRODUCER_ID, 8, _SIGNED),
            (_PRODUCER_EPOCH, topic, partition, at + _AT_PRODUCER_EPOCH, 2, _SIGNED),
        )
