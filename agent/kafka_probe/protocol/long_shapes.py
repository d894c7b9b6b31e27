"""Shapes of frames that come one at a time and may be long: the data as one integer, masked, is a dictionary's key.

For what does not fit the rows of ShapeTable: frames of many partitions, each of which takes milliseconds to decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafka_probe.protocol.facts import POSITIVE, Shape
from kafka_probe.protocol.measures import Integers, MeasureReader
from kafka_probe.protocol.shapes import decode_code

if TYPE_CHECKING:
    from collections.abc import Callable

_LAYOUTS_PER_GROUP = 64


@dataclass(frozen=True, slots=True)
class _Known:
    shape: Shape
    reader: MeasureReader
    positive: list[int]  # columns of the measures that must be above 0


class LongShapes:
    """Shapes by code (see `shapes.code_of`), length and masked data. Starts anew, counted in `resets`, when the frames
    that it learned from pass `limit_bytes`; it holds a few times as much."""

    def __init__(self, decode: Callable[[int, bytes], Shape] = decode_code, limit_bytes: int = 4 << 20) -> None:
        self._decode = decode
        self._limit_bytes = limit_bytes
        self._learned_bytes = 0
        # Per code and length: mask to masked data to shape.
        self._groups: dict[tuple[int, int], dict[int, dict[int, _Known]]] = {}
        self.resets = 0

    def find(self, code: int, data: bytes) -> tuple[Shape, Integers]:
        """The shape of a frame, equal to what decoding it gives, and its measures as (1, measures) int64."""
        number = int.from_bytes(data, "little")
        row = np.frombuffer(data, np.uint8)[np.newaxis]
        for mask, known_shapes in self._groups.get((code, len(data)), {}).items():
            known = known_shapes.get(number & mask)
            if known:
                values = known.reader.read(row)
                if (values[0, known.positive] > 0).all():
                    return known.shape, values
        known = self._learn(code, data, number)
        return known.shape, known.reader.read(row)

    def _learn(self, code: int, data: bytes, number: int) -> _Known:
        shape = self._decode(code, data)
        columns = [column for column, measure in enumerate(shape.measures) if measure.kind in POSITIVE]
        known = _Known(shape, MeasureReader(shape.measures), columns)
        self._learned_bytes += len(data)
        if self._learned_bytes > self._limit_bytes:
            self._groups.clear()
            self._learned_bytes = len(data)
            self.resets += 1
        layouts = self._groups.setdefault((code, len(data)), {})
        mask = int.from_bytes(shape.mask, "little")
        layouts.setdefault(mask, {})[number & mask] = known
        if len(layouts) > _LAYOUTS_PER_GROUP:
            del layouts[next(iter(layouts))]
        return known
