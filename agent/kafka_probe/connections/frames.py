"""Records to frames: finds each frame's shape, all frames of a batch at once. A batch keeps NumPy columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.record import DATA_BYTES, Flag
from kafka_probe.connections import joining
from kafka_probe.connections.joining import Joined
from kafka_probe.protocol.decoder import walks_for
from kafka_probe.protocol.facts import Kind, Shape, Status
from kafka_probe.protocol.measures import Rows
from kafka_probe.protocol.shapes import (
    WORD_BYTES,
    Codes,
    Lengths,
    ShapeTable,
    code_of,
    decode_code,
    groups,
    keys_of,
)

Records = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

LOSSES = {
    **joining.LOSSES,
    "frame_truncated": "frames of which too little was copied for all their facts: counted, some topics may be missing",
    "frame_malformed": "frames whose bytes are not what Kafka defines: counted, what stands behind the flaw is missing",
}
_JUDGED = {Status.TRUNCATED: "frame_truncated", Status.MALFORMED: "frame_malformed"}


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of one shape, in the order of their records.

    index: (n,) places in `batch` of each frame's first record; values: (n, measures of the shape) int64. The batch is
    shared, because a record is long and most of it is needed by nobody here.
    """

    shape: Shape
    batch: Records
    index: Integers
    values: Integers

    def column(self, name: str) -> npt.NDArray[Any]:
        """One field of the frames' records, (n,)."""
        return self.batch[name][self.index]


class FrameReader:
    """Reads frames out of batches of frame records; remembers their shapes, and what a batch left unfinished."""

    def __init__(self, kinds: Iterable[Kind] = Kind) -> None:
        """kinds: the measures that anybody asks for. Others are not read: of most frames they are the most."""
        self._table = ShapeTable(partial(decode_code, walks=walks_for(kinds)))
        self._joiner = joining.Joiner()
        self._judged = Counter(dict.fromkeys(_JUDGED.values(), 0))

    def ask(self, kinds: Iterable[Kind] = Kind) -> None:
        """From now on read these measures."""
        self._table.start_anew(partial(decode_code, walks=walks_for(kinds)))

    @property
    def losses(self) -> dict[str, int]:
        """What was lost since the start, by the names of LOSSES."""
        return {**self._joiner.losses, **self._judged}

    @property
    def counters(self) -> dict[str, int]:
        """What was done since the start: how often the table of shapes was full and learned anew."""
        return {"shapes_reset": self._table.resets}

    def read(self, records: Records) -> Iterator[Frames]:
        """The frames of a batch, grouped by shape; records: (n,) of RECORD, all of kind FRAME."""
        for frames in self._read(records):
            status = frames.shape.facts.status
            if status in _JUDGED:
                self._judged[_JUDGED[status]] += len(frames.index)
            yield frames

    def forget(self, conn: int) -> None:
        """A connection ended: what it left unfinished is lost."""
        self._joiner.forget(conn)

    def _read(self, records: Records) -> Iterator[Frames]:
        alone = (records["part"] == 0) & (records["flags"] & Flag.MORE == 0)
        if alone.all():
            yield from self._short(records)
            return
        yield from self._short(records[alone])
        yield from self._long(self._joiner.join(records[~alone]))

    def _short(self, records: Records) -> Iterator[Frames]:
        """Frames of one record each."""
        data = np.ascontiguousarray(records["data"])
        yield from self._match(records, np.arange(len(records)), _codes(records), data, records["size"])

    def _long(self, joined: Joined) -> Iterator[Frames]:
        """Frames of several records each, those of one code and length together."""
        codes = _codes(joined.lasts)
        padded = np.append(joined.data, np.zeros(joined.lengths.max(initial=0) + WORD_BYTES, np.uint8))
        for members in groups(keys_of(codes, joined.lengths)):
            width = -(-int(joined.lengths[members[0]]) // WORD_BYTES) * WORD_BYTES
            rows = np.lib.stride_tricks.sliding_window_view(padded, width)[joined.starts[members]]
            yield from self._match(joined.firsts, members, codes[members], rows, joined.lengths[members])

    def _match(self, batch: Records, index: Integers, codes: Codes, data: Rows, lengths: Lengths) -> Iterator[Frames]:
        ids = self._table.match(codes, data, lengths)
        for members in groups(ids):
            shape_id = int(ids[members[0]])
            shape = self._table.shape(shape_id)
            rows = data if len(members) == len(data) else data[members]
            values = self._table.values(shape_id, rows) if shape.measures else _no_values(len(members))
            yield Frames(shape, batch, index[members], values)


def _codes(records: Records) -> Codes:
    """The code of each frame, (n,), by its last record."""
    flags = records["flags"].astype(np.uint64)
    codes: Codes = (
        (flags & Flag.RESPONSE) // Flag.RESPONSE * code_of(True, 0, 0, False)
        + (1 - (flags & Flag.CUT) // Flag.CUT) * code_of(False, 0, 0, True)
        + (records["api_key"].astype(np.uint64) << 16)
        + records["api_version"]
    )
    return codes


def _no_values(frames: int) -> Integers:
    return np.empty((frames, 0), np.int64)


assert DATA_BYTES % WORD_BYTES == 0
