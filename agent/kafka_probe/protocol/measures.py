"""Reads the measures of a shape out of many frames at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kafka_probe.protocol.facts import Encoding, Measure

Rows = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

_LOW_7_BITS = np.arange(256) & 0x7F


class MeasureReader:
    """Reads all measures of one width and encoding together."""

    def __init__(self, measures: tuple[Measure, ...]) -> None:
        self._count = len(measures)
        columns: dict[tuple[int, Encoding], list[int]] = {}
        for column, measure in enumerate(measures):
            columns.setdefault((measure.width, measure.encoding), []).append(column)
        self._blocks = []
        for (width, encoding), block in columns.items():
            offsets = np.array([measures[column].offset for column in block])
            # A big-endian integer is read as it stands; of a varint each byte gives 7 bits, the lowest first.
            reading = np.dtype(f">i{width}") if encoding is Encoding.SIGNED else 1 << 7 * np.arange(width)
            self._blocks.append((_as_slice(block), offsets[:, np.newaxis] + np.arange(width), reading))

    def read(self, rows: Rows) -> Integers:
        """(k, W) uint8 rows of data to (k, measures) int64."""
        values = np.empty((len(rows), self._count), np.int64)
        for columns, places, reading in self._blocks:
            raw = rows.take(places, axis=1)
            if isinstance(reading, np.dtype):
                values[:, columns] = raw.view(reading)[..., 0]
            else:
                values[:, columns] = _LOW_7_BITS.take(raw) @ reading - 1
        return values


def _as_slice(columns: list[int]) -> slice | list[int]:
    """Evenly spaced columns as a slice, which NumPy assigns to several times faster: most measures come in a rhythm."""
    step = columns[1] - columns[0] if len(columns) > 1 else 1
    evenly = range(columns[0], columns[-1] + 1, step)
    return slice(evenly.start, evenly.stop, evenly.step) if list(evenly) == columns else columns
