"""Records to frames: joins the records of long frames and finds each frame's shape, all frames of a batch at once.

A batch keeps NumPy columns; only frames that needed several records are put together one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.record import DATA_BYTES, RECORD, Flag
from kafka_probe.protocol.decoder import walks_for
from kafka_probe.protocol.facts import Kind, Shape, Status
from kafka_probe.protocol.long_shapes import LongShapes
from kafka_probe.protocol.shapes import ShapeTable, code_of, decode_code

Records = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

LOSSES = {
    "frame_incomplete": "frames that lost one of their records, and are not counted: see ring_full",
    "frame_truncated": "frames of which too little was copied for all their facts: counted, some topics may be missing",
    "frame_malformed": "frames whose bytes are not what Kafka defines: counted, what stands behind the flaw is missing",
}
# As plain numbers: an enum's own operators take longer than all that is done with a record.
_RESPONSE, _MORE, _CUT = int(Flag.RESPONSE), int(Flag.MORE), int(Flag.CUT)
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


@dataclass(slots=True)
class _Unfinished:
    first: bytes
    tcp_seq: int
    data: bytearray
    part: int


_Joined = tuple[bytes, Shape, Integers]
"""The first record of a frame that needed several, its shape, and its values, (1, measures)."""


class FrameReader:
    """Reads frames out of batches of frame records; remembers what a batch left unfinished."""

    def __init__(self, kinds: Iterable[Kind] = Kind) -> None:
        """kinds: the measures that anybody asks for. Others are not read: of most frames they are the most."""
        decode = partial(decode_code, walks=walks_for(kinds))
        self._table = ShapeTable(decode)
        self._long = LongShapes(decode)
        self._unfinished: dict[tuple[int, int], _Unfinished] = {}
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    @property
    def counters(self) -> dict[str, int]:
        """What was done since the start: how often the table of shapes was full and learned anew."""
        return {"shapes_reset": self._table.resets + self._long.resets}

    def read(self, records: Records) -> Iterator[Frames]:
        """The frames of a batch, grouped by shape; records: (n,) of RECORD, all of kind FRAME."""
        for frames in self._read(records):
            status = frames.shape.facts.status
            if status in _JUDGED:
                self.losses[_JUDGED[status]] += len(frames.index)
            yield frames

    def _read(self, records: Records) -> Iterator[Frames]:
        alone = (records["part"] == 0) & (records["flags"] & Flag.MORE == 0)
        if alone.all():
            yield from self._match(records)
            return
        yield from self._match(records[alone])
        yield from _grouped(self._join(records[~alone]))

    def _match(self, records: Records) -> Iterator[Frames]:
        flags = records["flags"].astype(np.uint64)
        codes = (
            (flags & Flag.RESPONSE) // Flag.RESPONSE * code_of(True, 0, 0, False)
            + (1 - (flags & Flag.CUT) // Flag.CUT) * code_of(False, 0, 0, True)
            + (records["api_key"].astype(np.uint64) << 16)
            + records["api_version"]
        )
        data = np.ascontiguousarray(records["data"])
        ids = self._table.match(codes, data, records["size"])
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        for members in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
            if len(members):
                shape_id = int(ids[members[0]])
                shape = self._table.shape(shape_id)
                values = self._table.values(shape_id, data[members]) if shape.measures else _no_values(len(members))
                yield Frames(shape, records, members, values)

    def _join(self, records: Records) -> Iterator[_Joined]:
        """The frames that these records complete."""
        columns = ("conn", "flags", "part", "tcp_seq", "size", "api_key", "api_version")
        data = np.ascontiguousarray(records["data"]).tobytes()
        rows = zip(*(records[name].tolist() for name in columns), strict=True)
        for place, (conn, flags, part, tcp_seq, size, api_key, api_version) in enumerate(rows):
            key = conn, flags & _RESPONSE
            unfinished = self._unfinished.pop(key, None)
            if unfinished and unfinished.tcp_seq != tcp_seq:
                # Its end was lost, and perhaps the beginning of this one.
                self.losses["frame_incomplete"] += 1
                unfinished = None
            if part == 0:
                unfinished = _Unfinished(records[place].tobytes(), tcp_seq, bytearray(), -1)
            if unfinished is None or part != unfinished.part + 1:
                # However many of its records are lost, the last one counts the frame.
                if not flags & _MORE:
                    self.losses["frame_incomplete"] += 1
                continue
            unfinished.data += data[place * DATA_BYTES : place * DATA_BYTES + size]
            unfinished.part = part
            if flags & _MORE:
                self._unfinished[key] = unfinished
                continue
            code = code_of(bool(key[1]), api_key, api_version, not flags & _CUT)
            yield unfinished.first, *self._long.find(code, bytes(unfinished.data))

    def forget(self, conn: int) -> None:
        """A connection ended: what it left unfinished is lost."""
        for direction in (0, _RESPONSE):
            if self._unfinished.pop((conn, direction), None):
                self.losses["frame_incomplete"] += 1


def _grouped(joined: Iterable[_Joined]) -> Iterator[Frames]:
    by_shape: dict[int, list[_Joined]] = {}
    for frame in joined:
        by_shape.setdefault(id(frame[1]), []).append(frame)
    for frames in by_shape.values():
        firsts, shapes, values = zip(*frames, strict=True)
        batch = np.frombuffer(b"".join(firsts), RECORD)
        yield Frames(shapes[0], batch, np.arange(len(frames)), np.concatenate(values))


def _no_values(frames: int) -> Integers:
    return np.empty((frames, 0), np.int64)


assert DATA_BYTES % 8 == 0  # ShapeTable looks at data as 64-bit words
