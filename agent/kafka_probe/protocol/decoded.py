"""Holds the result of decoding one frame as plain tuples, and derives the frame's shape from it.

`tuple.__new__` creates the named tuples: it takes a third of the time that calling their classes takes.
"""

from __future__ import annotations

from typing import NamedTuple

from kafka_probe.protocol.facts import Encoding, Fact, Facts, Measure, MeasureKind, RecordSet, Shape, TopicFacts
from kafka_probe.protocol.wire import STUB_BYTES, STUB_MASK

Contents = tuple[
    tuple[tuple[Fact, str | int], ...],
    tuple[tuple[int, int], ...],
    tuple[TopicFacts, ...],
    tuple[TopicFacts, ...],
    tuple[RecordSet, ...],
]
"""The fields of Facts from `values` on."""


class Block(NamedTuple):
    """Neighboring measures, such as those of a record set: kind and encoding of the first, and all that follow it.

    Each entry of `behind` has the kind of a further measure, its offset from the end of the first, and its width in
    bytes. A block without a kind is no measure; the shape's mask ignores its value.
    """

    kind: MeasureKind | None
    encoding: Encoding
    behind: tuple[tuple[MeasureKind, int, int], ...] = ()


Located = tuple[Block, int, int, int, int]
"""A block, its topic and partition (see Measure), and the start and end offsets of its first measure."""
Skipped = tuple[int, int]
"""Start and end offsets of bytes that the shape's mask ignores."""

_new = tuple.__new__
# Looking up an enum member takes longer than the code that uses it.
_SIGNED, _RECORD_BYTES = Encoding.SIGNED, MeasureKind.RECORD_BYTES


class Decoded(NamedTuple):
    """The result for one frame: its facts, the location of its measures, and the ranges that its mask ignores.

    Decoding read the first `used_bytes` of the `data_bytes`.
    """

    facts: Facts
    data_bytes: int
    used_bytes: int
    located: list[Located]
    skipped: list[Skipped]

    def shape(self) -> Shape:
        """Return the shape of the frame, which other frames may share."""
        mask = bytearray(b"\xff" * self.data_bytes)
        for start, end in self.skipped:
            mask[start:end] = bytes(end - start)
        measures: list[Measure] = []
        for (kind, encoding, behind), topic, partition, start, end in self.located:
            if kind is not None:
                measures.append(_new(Measure, (kind, topic, partition, start, end - start, encoding)))
            measures += [
                _new(Measure, (other, topic, partition, end + at, size, _SIGNED)) for other, at, size in behind
            ]
            # The mask keeps the top bits of a varint: they determine its width.
            mask[start:end] = (b"\0" if encoding is _SIGNED else b"\x80") * (end - start)
            if kind is _RECORD_BYTES:
                mask[end : end + STUB_BYTES] = STUB_MASK
        return _new(Shape, (self.facts, bytes(mask), tuple(measures), self.used_bytes))
