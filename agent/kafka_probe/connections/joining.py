"""Long frames leave the kernel in several records: here they are put together, all of a batch at once.

Mostly a frame's records follow one another. What does not, because connections interleave or a batch ends in between,
is put together one by one and may wait for its end. No frame is lost here without being counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.record import DATA_BYTES, RECORD, Flag, Kind
from kafka_probe.memory import DEFAULT

Records = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LOSSES = {
    "frame_incomplete": "frames that lost one of their records, and are not counted: see ring_full",
    "frame_limit": "unfinished frames that `--memory-limit` has no place for, the oldest first; not counted",
}
_BEGUN_BYTES = 768  # what an unfinished frame takes besides its data

# As plain numbers: an enum's own operators take longer than all that is done with a record.
_RESPONSE, _MORE = int(Flag.RESPONSE), int(Flag.MORE)
_STREAM = 2**64 - 1  # a stream's number is as wide in arrays, and has lost the first bit of its connection's
_PLACES = np.arange(DATA_BYTES, dtype=np.uint16)  # as wide as a size: compared as they are


@dataclass(frozen=True, slots=True)
class Joined:
    """Whole frames, in the order in which they were completed.

    firsts, lasts: (n,) of RECORD, the first and the last record of each; data: uint8, in which the data of each stands
    from `starts` on, (n,), in a length of `lengths`, (n,).
    """

    firsts: Records
    lasts: Records
    data: Bytes
    starts: Integers
    lengths: Integers


@dataclass(slots=True)
class _Begun:
    """A frame of which some records are there; the first of them, the number of the last, and their data."""

    first: Any
    part: int
    data: bytes


def portions(records: Records, most_bytes: int) -> Iterator[Records]:
    """Cut records, in their order, so that the frames that end in a portion have about so many bytes together.

    A connection may hold back the last record of a long frame: without this those of many could be decoded at once.
    """
    ends = (records["kind"] == Kind.FRAME) & (records["flags"] & _MORE == 0)
    sizes = np.where(ends, records["part"].astype(np.int64) * DATA_BYTES + records["size"], 0)
    cuts = np.flatnonzero(np.diff(sizes.cumsum() // most_bytes)) + 1
    yield from np.split(records, cuts) if len(cuts) else (records,)


class Joiner:
    """Joins batch after batch; remembers what a batch left unfinished, up to `limit_bytes`."""

    def __init__(self, limit_bytes: int = DEFAULT.unfinished_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._begun: dict[int, _Begun] = {}  # by stream: connection and direction
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    def forget(self, conn: int) -> None:
        """A connection ended: what it left unfinished is lost."""
        for direction in (0, _RESPONSE):
            if self._take(conn << 1 & _STREAM | direction):
                self.losses["frame_incomplete"] += 1

    def unfinished(self) -> set[int]:
        """Return the streams that have an unfinished frame."""
        return set(self._begun)

    def keep(self, streams: Collection[int], conns: Iterable[int]) -> None:
        """Forget what these streams left unfinished, unless they are of one of the connections."""
        followed = {conn << 1 & _STREAM | direction for conn in conns for direction in (0, _RESPONSE)}
        for stream in streams:
            if stream not in followed and self._take(stream):
                self.losses["frame_incomplete"] += 1

    def join(self, records: Records) -> Joined:
        """The frames that these records complete; records: (n,), at least one."""
        size = records["size"]
        data = records["data"][size[:, np.newaxis] > _PLACES]
        ends = size.cumsum(dtype=np.int64)
        first, last = _runs(records)
        starts, stops = ends[first] - size[first], ends[last]
        whole = (records["part"][first] == 0) & (records["flags"][last] & _MORE == 0)
        streams = records["conn"][first] << np.uint64(1) | records["flags"][first] & _RESPONSE
        if self._begun or not whole.all():
            # Where something is unfinished, or will be, the order of a stream's records tells what was lost.
            whole &= ~np.isin(streams, np.append(streams[~whole], np.array([*self._begun], np.uint64)))
        firsts, lasts = records.take(first[whole]), records.take(last[whole])
        at_once = Joined(firsts, lasts, data, starts[whole], (stops - starts)[whole])
        if whole.all():
            return at_once
        completed = []
        for run in np.flatnonzero(~whole).tolist():
            piece = data[starts[run] : stops[run]].tobytes()
            begun = self._complete(int(streams[run]), records[first[run]], records[last[run]], piece)
            if begun:
                completed.append((run, begun.first.tobytes(), records[last[run]].tobytes(), begun.data))
        return _merged(at_once, np.flatnonzero(whole), completed) if completed else at_once

    def _complete(self, stream: int, first: Any, last: Any, data: bytes) -> _Begun | None:
        """The frame that a run of records completes, by its first and its last record and the data of all."""
        more = last["flags"] & _MORE
        begun = self._take(stream)
        if begun and begun.first["tcp_seq"] != last["tcp_seq"]:
            # Its end was lost, and perhaps the beginning of this one.
            self.losses["frame_incomplete"] += 1
            begun = None
        if first["part"] == 0:
            begun = _Begun(first.copy(), -1, b"")  # a view would keep its whole batch
        if begun is None or first["part"] != begun.part + 1:
            # However many of its records are lost, the last one counts the frame.
            self.losses["frame_incomplete"] += not more
            return None
        begun.data += data
        begun.part = int(last["part"])
        if more:
            self._begun[stream] = begun
            self._held_bytes += _BEGUN_BYTES + len(begun.data)
            while self._held_bytes > self._limit_bytes:
                self._take(next(iter(self._begun)))
                self.losses["frame_limit"] += 1
            return None
        return begun

    def _take(self, stream: int) -> _Begun | None:
        begun = self._begun.pop(stream, None)
        if begun:
            self._held_bytes -= _BEGUN_BYTES + len(begun.data)
        return begun


def _runs(records: Records) -> tuple[Integers, Integers]:
    """Where records of one frame follow one another: the places of the first and of the last of each such run."""
    part, flags = records["part"], records["flags"]
    goes_on = (part[1:] == part[:-1] + 1) & (flags[:-1] & _MORE > 0)
    for same in (records["conn"], records["tcp_seq"], flags & _RESPONSE):
        goes_on &= same[1:] == same[:-1]
    first = np.flatnonzero(np.append(True, ~goes_on))
    return first, np.append(first[1:], len(records)) - 1


def _merged(at_once: Joined, runs: Integers, completed: list[tuple[int, bytes, bytes, bytes]]) -> Joined:
    """The frames of `runs` and those completed by others, in the order of the runs."""
    others, firsts, lasts, data = zip(*completed, strict=True)
    order = np.argsort(np.append(runs, others))
    lengths = np.array([len(each) for each in data])
    starts = len(at_once.data) + lengths.cumsum() - lengths
    return Joined(
        np.append(at_once.firsts, np.frombuffer(b"".join(firsts), RECORD))[order],
        np.append(at_once.lasts, np.frombuffer(b"".join(lasts), RECORD))[order],
        np.append(at_once.data, np.frombuffer(b"".join(data), np.uint8)),
        np.append(at_once.starts, starts)[order],
        np.append(at_once.lengths, lengths)[order],
    )
