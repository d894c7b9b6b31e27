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
from kafka_probe.protocol.measures import Rows
from kafka_probe.protocol.shapes import Codes, Lengths, ShapeTable, code_of, decode_code

Records = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

LOSSES = {
    "frame_incomplete": "frames that lost one of their records, and are not counted: see ring_full",
    "frame_truncated": "frames of which too little was copied for all their facts: counted, some topics may be missing",
    "frame_malformed": "frames whose bytes are not what Kafka defines: counted, what stands behind the flaw is missing",
}
_WORD = 8  # ShapeTable looks at data as 64-bit words
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
    data: bytes
    part: int


_Joined = tuple[bytes, int, bytes]
"""The first record of a frame that needed several, its code, and its data."""


class FrameReader:
    """Reads frames out of batches of frame records; remembers what a batch left unfinished."""

    def __init__(self, kinds: Iterable[Kind] = Kind) -> None:
        """kinds: the measures that anybody asks for. Others are not read: of most frames they are the most."""
        self._table = ShapeTable(partial(decode_code, walks=walks_for(kinds)))
        self._unfinished: dict[tuple[int, int], _Unfinished] = {}
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    @property
    def counters(self) -> dict[str, int]:
        """What was done since the start: how often the table of shapes was full and learned anew."""
        return {"shapes_reset": self._table.resets}

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
            yield from self._whole(records)
            return
        yield from self._whole(records[alone])
        yield from self._long(self._join(records[~alone]))

    def _whole(self, records: Records) -> Iterator[Frames]:
        """Frames of one record each."""
        flags = records["flags"].astype(np.uint64)
        codes = (
            (flags & Flag.RESPONSE) // Flag.RESPONSE * code_of(True, 0, 0, False)
            + (1 - (flags & Flag.CUT) // Flag.CUT) * code_of(False, 0, 0, True)
            + (records["api_key"].astype(np.uint64) << 16)
            + records["api_version"]
        )
        yield from self._match(records, codes, np.ascontiguousarray(records["data"]), records["size"])

    def _long(self, joined: Iterable[_Joined]) -> Iterator[Frames]:
        """Frames of several records, those of one code and length together."""
        groups: dict[tuple[int, int], list[_Joined]] = {}
        for frame in joined:
            groups.setdefault((frame[1], len(frame[2])), []).append(frame)
        for (code, length), frames in groups.items():
            width = -(-length // _WORD) * _WORD
            rows = np.frombuffer(b"".join(data.ljust(width, b"\0") for *_, data in frames), np.uint8)
            firsts = np.frombuffer(b"".join(first for first, *_ in frames), RECORD)
            codes, lengths = np.full(len(frames), code, np.uint64), np.full(len(frames), length, np.uint32)
            yield from self._match(firsts, codes, rows.reshape(len(frames), width), lengths)

    def _match(self, records: Records, codes: Codes, data: Rows, lengths: Lengths) -> Iterator[Frames]:
        ids = self._table.match(codes, data, lengths)
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
        for place, data, part_from, part_to, flags, conn, tcp_seq, api_key, api_version in _runs(records):
            more = flags & _MORE
            key = conn, flags & _RESPONSE
            unfinished = self._unfinished.pop(key, None)
            if unfinished and unfinished.tcp_seq != tcp_seq:
                # Its end was lost, and perhaps the beginning of this one.
                self.losses["frame_incomplete"] += 1
                unfinished = None
            if part_from == 0:
                unfinished = _Unfinished(records[place].tobytes(), tcp_seq, b"", -1)
            if unfinished is None or part_from != unfinished.part + 1:
                # However many of its records are lost, the last one counts the frame.
                if not more:
                    self.losses["frame_incomplete"] += 1
                continue
            unfinished.data += data
            unfinished.part = part_to
            if more:
                self._unfinished[key] = unfinished
                continue
            yield unfinished.first, code_of(bool(key[1]), api_key, api_version, not flags & _CUT), unfinished.data

    def forget(self, conn: int) -> None:
        """A connection ended: what it left unfinished is lost."""
        for direction in (0, _RESPONSE):
            if self._unfinished.pop((conn, direction), None):
                self.losses["frame_incomplete"] += 1


def _runs(records: Records) -> Iterator[tuple[Any, ...]]:
    """Records of a frame that follow one another, as one: the place of the first, the data of all, the first part and
    the last, flags of the last, and what they share. Mostly these are all records of the frame."""
    size, part, flags = records["size"], records["part"], records["flags"]
    goes_on = (part[1:] == part[:-1] + 1) & (flags[:-1] & _MORE > 0)
    for same in (records["conn"], records["tcp_seq"], flags & _RESPONSE):
        goes_on &= same[1:] == same[:-1]
    first = np.flatnonzero(np.append(True, ~goes_on))
    last = np.append(first[1:], len(records)) - 1
    ends = size.cumsum(dtype=np.int64)
    places = zip((ends[first] - size[first]).tolist(), ends[last].tolist(), strict=True)
    data = records["data"][np.arange(DATA_BYTES) < size[:, np.newaxis]].tobytes()
    shared = (records[name][last].tolist() for name in ("conn", "tcp_seq", "api_key", "api_version"))
    yield from zip(
        first.tolist(),
        (data[start:end] for start, end in places),
        part[first].tolist(),
        part[last].tolist(),
        flags[last].tolist(),
        *shared,
        strict=True,
    )


def _no_values(frames: int) -> Integers:
    return np.empty((frames, 0), np.int64)


assert DATA_BYTES % _WORD == 0
