"""Reads the measures of many frames of any shapes at once, and the rows of bytes that this requires."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.protocol.facts import Encoding, Measure

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

WORD_BYTES = 8
# Masks of a varint's value bits by its width in bytes: 7 bits of each byte.
_SEVENS = np.array([0x7F7F7F7F7F & (1 << 8 * width) - 1 for width in range(6)])
# Most numbers read in one step: for larger arrays, page faults take as long as reading the numbers.
_AT_ONCE = 1 << 14


def windows(data: Bytes, starts: Integers, width: int) -> Words:
    """Return `width` bytes of the data, a multiple of 8, from each start on: (k,) to (k, width / 8)."""
    items: npt.NDArray[np.void] = np.ndarray(len(data) - width + 1, f"V{width}", data, strides=(1,))
    return items[starts].view(np.uint64).reshape(-1, width // WORD_BYTES)


class Numbers:
    """Holds offset, width and encoding of measures, or of some of them, per shape; shapes are numbered from 0."""

    def __init__(self) -> None:
        self._firsts, self._counts = array("q"), array("q")  # of each shape
        self._offsets, self._widths, self._compact = array("q"), array("b"), array("b")  # of each measure

    def add(self, measures: Iterable[Measure]) -> None:
        """Add the measures of the next shape."""
        self._firsts.append(len(self._offsets))
        for measure in measures:
            self._offsets.append(measure.offset)
            self._widths.append(measure.width)
            self._compact.append(measure.encoding is Encoding.COMPACT_LENGTH)
        self._counts.append(len(self._offsets) - self._firsts[-1])

    def counts(self, shapes: Integers) -> Integers:
        """Return the number of measures of each frame, by its shape, (k,)."""
        counts: Integers = np.asarray(self._counts)[shapes]
        return counts

    def read(self, shapes: Integers, data: Bytes, starts: Integers) -> Integers:
        """Return the measures of frames, all of one frame before those of the next.

        shapes: the shape of each frame, (k,); data: at least 7 bytes longer than the frames; starts: the offset of each
        frame in the data, (k,).
        """
        counts = self.counts(shapes)
        total = counts.sum()
        if total > _AT_ONCE and len(shapes) > 1:
            halves = np.array_split(shapes, 2), np.array_split(starts, 2)
            return np.concatenate([self.read(some, data, begin) for some, begin in zip(*halves, strict=True)])
        if total == 0:
            return np.empty(0, np.int64)
        which = (np.asarray(self._firsts)[shapes] - counts.cumsum() + counts).repeat(counts)
        which += np.arange(total)
        positions = starts.repeat(counts)
        positions += np.asarray(self._offsets)[which]
        words = windows(data, positions, WORD_BYTES)[:, 0]
        widths: npt.NDArray[Any] = np.asarray(self._widths)[which]
        values: Integers = words.view(">i8") >> 8 * (WORD_BYTES - widths)
        compact = np.flatnonzero(np.asarray(self._compact)[which])
        if len(compact):
            widths = widths[compact]
            sevens = words[compact].view("<i8") & _SEVENS[widths]
            values[compact] = sum(sevens >> index & 0x7F << 7 * index for index in range(widths.max())) - 1
        return values
