"""Decodes varints and skips tagged fields for compiled readers, and defines the layout of the kernel's stubs."""

from __future__ import annotations

_VARINT_BITS = 35  # of the longest varint, which has five bytes

# The fields of struct set_summary of bpf/sample.h by name: (offset, width), both in bytes.
STUB_BYTES = 40
STUB_FIELDS = {
    "records": (0, 4),
    "batches": (4, 4),
    "magic": (8, 1),
    "codec": (9, 1),
    "status": (10, 1),
    "flags": (11, 1),
    "producer_id": (12, 8),
    "producer_epoch": (20, 2),
    "first_offset": (24, 8),
    "last_offset": (32, 8),
}
STUB_MASK = b"\0" * 8 + b"\xff" * 4 + b"\0" * 28  # only magic, codec, status and flags are facts
WITH_PRODUCER = 2  # the first magic whose batches contain a producer id


def uvarint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the offset behind it.

    Raises IndexError if the data ends inside the varint, ValueError if the varint is longer than five bytes.
    """
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


def skip_tags(data: bytes, at: int, skipped: list[tuple[int, int]]) -> int:
    """Return the offset behind tagged fields. Append the ranges of their contents, which masks ignore, to `skipped`."""
    tags, at = uvarint(data, at)
    for _ in range(tags):
        _, at = uvarint(data, at)
        size, at = uvarint(data, at)
        if at + size > len(data):
            raise IndexError
        skipped.append((at, at + size))
        at += size
    return at
