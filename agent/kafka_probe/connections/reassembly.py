"""Reassembly of long frames, which the kernel copies in several samples, for all frames of a batch at once.

Mostly a frame's samples follow one another. Frames whose samples do not, because connections interleave or a batch ends
in between, are joined one by one and may wait for their last sample. Every frame that is lost here is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kafka_probe.capture.sample import DATA_BYTES, SAMPLE, Flag, SampleKind, Samples
from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.measures import Bytes, Integers

LOSSES = {
    "frame_incomplete": "frames of which a sample was lost; not counted: see ring_full",
    "frame_limit": "unfinished frames that exceed `--memory-limit`, the oldest first; not counted",
}
_BEGUN_BYTES = 768  # memory of an unfinished frame besides its data

# Plain ints: the operators of an enum take longer than all other work on a sample.
_RESPONSE, _MORE = int(Flag.RESPONSE), int(Flag.MORE)
_STREAM = 2**64 - 1  # mask: stream numbers in arrays have 64 bits, without the highest bit of `conn`
_OFFSETS = np.arange(DATA_BYTES, dtype=np.uint16)  # same type as `size`: a comparison converts nothing


@dataclass(frozen=True, slots=True)
class Reassembled:
    """Whole frames, in the order in which they were completed.

    firsts, lasts: (n,) of SAMPLE, the first and the last sample of each frame; data: uint8, the bytes of all frames;
    starts, lengths: (n,), position and number of each frame's bytes in `data`.
    """

    firsts: Samples
    lasts: Samples
    data: Bytes
    starts: Integers
    lengths: Integers


@dataclass(slots=True)
class _Unfinished:
    """A frame so far: its first sample, the part number of the last one, and the data of all."""

    first: Any
    part: int
    data: bytes


def portions(samples: Samples, most_bytes: int) -> Iterator[Samples]:
    """Yield the samples in portions, in order; frames that end in a portion have at most `most_bytes` plus one frame.

    Connections may hold back the last samples of long frames: without portions many such frames could be decoded at
    once. Portions are of about equal size: to process a small one takes almost as long as a large one.
    """
    sizes = np.multiply(samples["part"], DATA_BYTES, dtype=np.int64) + samples["size"]
    sizes[(samples["kind"] != SampleKind.FRAME) | (samples["flags"] & _MORE > 0)] = 0
    read_bytes = sizes.cumsum()
    total_bytes = int(read_bytes[-1])
    number = -(-total_bytes // most_bytes)
    cuts = np.unique(read_bytes.searchsorted(np.arange(1, number) * total_bytes // number, "right"))
    yield from np.split(samples, cuts[cuts > 0]) if number > 1 else (samples,)


class Reassembler:
    """Joins the samples of frames, batch after batch. Keeps unfinished frames between batches, up to `limit_bytes`."""

    def __init__(self, limit_bytes: int = DEFAULT.unfinished_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._begun: dict[int, _Unfinished] = {}  # by stream: connection and direction
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    def forget(self, conn: int) -> None:
        """Drop the unfinished frames of a connection that has ended, and count them as lost."""
        for direction in (0, _RESPONSE):
            if self._take(conn << 1 & _STREAM | direction):
                self.losses["frame_incomplete"] += 1

    def unfinished(self) -> set[int]:
        """Return the streams that have an unfinished frame."""
        return set(self._begun)

    def keep(self, streams: Collection[int], conns: Iterable[int]) -> None:
        """Drop the unfinished frames of these streams, except those of the given connections."""
        followed = {conn << 1 & _STREAM | direction for conn in conns for direction in (0, _RESPONSE)}
        for stream in streams:
            if stream not in followed and self._take(stream):
                self.losses["frame_incomplete"] += 1

    def join(self, samples: Samples) -> Reassembled:
        """Return the frames that these samples complete; samples: (n,), at least one."""
        size = samples["size"]
        data = samples["data"][size[:, np.newaxis] > _OFFSETS]
        ends = size.cumsum(dtype=np.int64)
        first, last = _runs(samples)
        starts, stops = ends[first] - size[first], ends[last]
        whole = (samples["part"][first] == 0) & (samples["flags"][last] & _MORE == 0)
        streams = samples["conn"][first] << np.uint64(1) | samples["flags"][first] & _RESPONSE
        if self._begun or not whole.all():
            # Join streams with an unfinished frame, before or after this batch, run by run: their order shows losses.
            whole &= ~np.isin(streams, np.append(streams[~whole], np.array([*self._begun], np.uint64)))
        firsts, lasts = samples.take(first[whole]), samples.take(last[whole])
        at_once = Reassembled(firsts, lasts, data, starts[whole], (stops - starts)[whole])
        if whole.all():
            return at_once
        completed = []
        for run in np.flatnonzero(~whole).tolist():
            piece = data[starts[run] : stops[run]].tobytes()
            begun = self._complete(int(streams[run]), samples[first[run]], samples[last[run]], piece)
            if begun:
                completed.append((run, begun.first.tobytes(), samples[last[run]].tobytes(), begun.data))
        return _merged(at_once, np.flatnonzero(whole), completed) if completed else at_once

    def _complete(self, stream: int, first: Any, last: Any, data: bytes) -> _Unfinished | None:
        """Return the frame that a run of samples completes, None if it completes none.

        first, last: first and last sample of the run; data: the data of all its samples.
        """
        more = last["flags"] & _MORE
        begun = self._take(stream)
        if begun and begun.first["tcp_seq"] != last["tcp_seq"]:
            # The end of the older frame was lost, and perhaps the start of this one.
            self.losses["frame_incomplete"] += 1
            begun = None
        if first["part"] == 0:
            begun = _Unfinished(first.copy(), -1, b"")  # a view would keep the whole batch in memory
        if begun is None or first["part"] != begun.part + 1:
            # Count a lost frame once, at its last sample, however many of its samples were lost.
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

    def _take(self, stream: int) -> _Unfinished | None:
        begun = self._begun.pop(stream, None)
        if begun:
            self._held_bytes -= _BEGUN_BYTES + len(begun.data)
        return begun


def _runs(samples: Samples) -> tuple[Integers, Integers]:
    """Return the indices of the first and of the last sample of each run, successive samples of one frame."""
    part, flags = samples["part"], samples["flags"]
    goes_on = (part[1:] == part[:-1] + 1) & (flags[:-1] & _MORE > 0)
    for same in (samples["conn"], samples["tcp_seq"], flags & _RESPONSE):
        goes_on &= same[1:] == same[:-1]
    first = np.flatnonzero(np.append(True, ~goes_on))
    return first, np.append(first[1:], len(samples)) - 1


def _merged(at_once: Reassembled, runs: Integers, completed: list[tuple[int, bytes, bytes, bytes]]) -> Reassembled:
    """Return the frames of `runs` and those that other runs completed, in the order of the runs."""
    others, firsts, lasts, data = zip(*completed, strict=True)
    order = np.argsort(np.append(runs, others))
    lengths = np.array([len(each) for each in data])
    starts = len(at_once.data) + lengths.cumsum() - lengths
    return Reassembled(
        np.append(at_once.firsts, np.frombuffer(b"".join(firsts), SAMPLE))[order],
        np.append(at_once.lasts, np.frombuffer(b"".join(lasts), SAMPLE))[order],
        np.append(at_once.data, np.frombuffer(b"".join(data), np.uint8)),
        np.append(at_once.starts, starts)[order],
        np.append(at_once.lengths, lengths)[order],
    )
