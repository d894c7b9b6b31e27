"""What a walk over one frame finds, as plain tuples, and the shape that it adds up to.

Tuples are given their class by `tuple.__new__`: that takes a third of the time that the classes themselves take.
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
    """Measures that stand together, as those of a record set do: what the first one counts and how it stands in the
    data, and the kind, the offset from its end and the width of each behind it."""

    kind: MeasureKind
    encoding: Encoding
    behind: tuple[tuple[MeasureKind, int, int], ...] = ()


Located = tuple[Block, int, int, int, int]
"""A block, its topic and partition (see Measure), and where its first measure starts and ends."""
Skipped = tuple[int, int]
"""Where bytes that do not decide start and end."""

_new = tuple.__new__
# To look up an enum's member takes longer than what is done with it.
_SIGNED, _RECORD_BYTES = Encoding.SIGNED, MeasureKind.RECORD_BYTES


class Decoded(NamedTuple):
    """One frame: what it says, `used_bytes` of its data being walked over for that, and where its measures are."""

    facts: Facts
    data_bytes: int
    used_bytes: int
    located: list[Located]
    skipped: list[Skipped]

    def shape(self) -> Shape:
        """What others have in common with the frame."""
        mask = bytearray(b"\xff" * self.data_bytes)
        for start, end in self.skipped:
            mask[start:end] = bytes(end - start)
        measures: list[Measure] = []
        for (kind, encoding, behind), topic, partition, start, end in self.located:
            measures.append(_new(Measure, (kind, topic, partition, start, end - start, encoding)))
            measures += [
                _new(Measure, (other, topic, partition, end + at, size, _SIGNED)) for other, at, size in behind
            ]
            # A varint's own width decides.
            mask[start:end] = (b"\0" if encoding is _SIGNED else b"\x80") * (end - start)
            if kind is _RECORD_BYTES:
                mask[end : end + STUB_BYTES] = STUB_MASK
        return _new(Shape, (self.facts, bytes(mask), tuple(measures), self.used_bytes))
