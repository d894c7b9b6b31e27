"""The recorder: keeps the newest frames of all connections, and the last frame of each connection in each direction.

The newest frames stay in the arrays in which they were read, so keeping them costs no copy. When an array makes way for
newer ones, the last request and the last response of each connection in it are kept separately. So a connection that
was silent for hours still has its last exchange, until all these take more than half of the bound.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.sample import DATA_AT, DATA_BYTES, SAMPLE, Flag, SampleKind, Samples, blocks
from kafka_probe.protocol.measures import Integers

LOSSES = {
    "recorder_evicted": "last frames of open connections that exceed half of `--recorder-bytes`, the oldest first",
}
_ARRAY_SAMPLES = 4096
_ARRAY_BYTES = 512  # memory of an array besides its samples and their keys
_KEPT_PARTS = 32  # most samples of a kept frame, so that few long frames do not displace all others
_KEPT_BYTES = 320  # memory of a kept frame besides its data
_SLOT_BYTES = 256  # of the bound for each slot of the tables, which take 16 of them
_HEADER = np.dtype(SAMPLE.descr[:-1])  # a sample without its data
_TCP_SEQ = slice(16, 20)  # where a sample has it; the same in all samples of a frame
_RESPONSE = int(Flag.RESPONSE)
_STREAM = 2**64 - 1  # mask: streams in arrays have 64 bits, without the highest bit of `conn`
_NO_STREAM = np.uint64(_STREAM)
_HASH = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: Knuth's multiplicative hash

KeyArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Array:
    """Samples as they were read; of each the stream, _NO_STREAM if it is no frame, and the stream's slot."""

    number: int
    samples: Samples
    streams: KeyArray
    slots: npt.NDArray[np.uint32]

    @property
    def size_bytes(self) -> int:
        return self.samples.nbytes + self.streams.nbytes + self.slots.nbytes + _ARRAY_BYTES

    def followed_by(self, samples: Samples, streams: KeyArray, slots: npt.NDArray[np.uint32]) -> _Array:
        """Return an array of the same number with these samples at its end."""
        return _Array(
            self.number,
            np.concatenate([blocks(self.samples), blocks(samples)]).view(SAMPLE),
            np.concatenate([self.streams, streams]),
            np.concatenate([self.slots, slots]),
        )


class Recorder:
    """Keeps frames within `limit_bytes`. is_needed: returns False for a connection of which no close will follow."""

    def __init__(self, limit_bytes: int, is_needed: Callable[[int], bool]) -> None:
        self._is_needed = is_needed
        self._arrays: deque[_Array] = deque()
        self._array_bytes = self._kept_bytes = self._added = 0
        # By stream: the samples of its last frame, if they are in no array. A plain dict takes long to drop its oldest.
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        slot_bits = max(8, (limit_bytes // _SLOT_BYTES).bit_length() - 1)
        self._shift = np.uint64(64 - slot_bits)
        # By slot: the stream that began a frame last, the number of the array with it, and a scratch table of indices.
        self._seen = np.full(1 << slot_bits, _NO_STREAM)
        self._seen_in = np.zeros(1 << slot_bits, np.int32)
        self._last = np.zeros(1 << slot_bits, np.int32)
        self._limit_bytes = limit_bytes - sum(table.nbytes for table in (self._seen, self._seen_in, self._last))
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    @property
    def used_bytes(self) -> int:
        """Return the approximate memory of all that is kept, without the tables."""
        return self._array_bytes + self._kept_bytes

    def add(self, samples: Samples) -> None:
        """Keep an array of samples, which must not change any more; samples that are no frames are ignored."""
        streams = _streams(samples)
        slots = (streams * _HASH >> self._shift).astype(np.uint32)
        begin = samples["part"] == 0
        if self._arrays and len(self._arrays[-1].samples) + len(samples) <= _ARRAY_SAMPLES:
            # One array for several of few samples: a lookup takes as long for a small array as for a large one.
            last = self._arrays.pop()
            self._array_bytes -= last.size_bytes
            array = last.followed_by(samples, streams, slots)
        else:
            self._added += 1
            array = _Array(self._added, samples, streams, slots)
        self._seen[slots[begin]], self._seen_in[slots[begin]] = streams[begin], array.number
        self._arrays.append(array)
        self._array_bytes += array.size_bytes
        while self.used_bytes > self._limit_bytes and self._arrays:
            oldest = self._arrays.popleft()
            self._array_bytes -= oldest.size_bytes
            self._keep_last(oldest)

    def frames_of(self, conns: Iterable[int], most: int) -> Samples:
        """Return the newest frames of connections, sorted by connection, then by time.

        Of each direction these are the last frame, and those before it as long as all have at most `most` samples.
        """
        streams = [_stream(conn, response) for conn in conns for response in (0, _RESPONSE)]
        wanted = np.sort(np.array(streams, np.uint64))
        kept = _unpacked(self._kept.get(stream, b"") for stream in streams)
        recent = [(one.samples, one.streams, np.flatnonzero(_isin(one.streams, wanted))) for one in self._arrays]
        found = _newest([(kept, _streams(kept), np.arange(len(kept))), *recent], most)
        order = np.lexsort((found["part"], found["flags"] & _RESPONSE, found["ts_ns"], found["conn"]))
        in_order: Samples = found[order]
        return in_order

    def exchanges(self, keys: KeyArray) -> Samples:
        """Return the last request and the last response with each of these keys, see `exchange_keys`."""
        matches = []
        wanted = np.unique(keys)
        for array in self._arrays if len(wanted) else ():
            found = exchange_keys(array.samples)
            index = np.flatnonzero(_isin(found, wanted) & (array.streams != _NO_STREAM))
            matches.append((array.samples, found << np.uint64(1) | array.streams & np.uint64(_RESPONSE), index))
        return _newest(matches, 0)

    def forget(self, conn: int) -> None:
        """Drop the last frames of a connection that has ended. Arrays keep its frames until they make way."""
        for response in (0, _RESPONSE):
            self._drop(_stream(conn, response))

    def _keep_last(self, array: _Array) -> None:
        """Keep the samples of the last frame of each stream, unless a newer array has a newer one."""
        newer = (self._seen[array.slots] == array.streams) & (self._seen_in[array.slots] > array.number)
        index = np.flatnonzero(~newer & (array.streams != _NO_STREAM))
        while len(index):
            frames, streams, slots = array.samples[index], array.streams[index], array.slots[index]
            self._last[slots] = np.arange(len(index))  # of several samples in one slot, the last remains
            last = self._last[slots]
            same = streams[last] == streams
            chosen = same & (frames["tcp_seq"][last] == frames["tcp_seq"])
            self._keep(frames[chosen], streams[chosen].tolist())
            index = index[~same]  # streams that shared their slot with another
        while self._kept and self._kept_bytes > self._limit_bytes // 2:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped) + _KEPT_BYTES
            self.losses["recorder_evicted"] += 1

    def _keep(self, samples: Samples, streams: Sequence[int]) -> None:
        sizes, parts, conns = samples["size"].tolist(), samples["part"].tolist(), samples["conn"].tolist()
        packed = memoryview(samples.tobytes())
        for at, (stream, conn, size, part) in enumerate(zip(streams, conns, sizes, parts, strict=True)):
            if part < _KEPT_PARTS and self._is_needed(conn):
                start = at * SAMPLE.itemsize
                sample = bytes(packed[start : start + DATA_AT + size])
                begun = self._drop(stream)
                self._kept[stream] = begun + sample if part and begun[_TCP_SEQ] == sample[_TCP_SEQ] else sample
                self._kept_bytes += len(self._kept[stream]) + _KEPT_BYTES

    def _drop(self, stream: int) -> bytes:
        kept = self._kept.pop(stream, b"")
        if kept:
            self._kept_bytes -= len(kept) + _KEPT_BYTES
        return kept


def exchange_keys(samples: Samples) -> KeyArray:
    """Return a key of each sample's exchange: a hash of connection and correlation id, (n,)."""
    keys: KeyArray = samples["conn"] * _HASH ^ samples["correlation_id"].astype(np.uint64)
    return keys


def _stream(conn: int, response: int) -> int:
    return conn << 1 & _STREAM | response


def _streams(samples: Samples) -> KeyArray:
    conns: KeyArray = samples["conn"]
    responses: KeyArray = (samples["flags"] & _RESPONSE).astype(np.uint64)
    streams = conns << np.uint64(1) | responses
    is_frame = samples["kind"] == SampleKind.FRAME
    if not is_frame.all():
        streams[~is_frame] = _NO_STREAM
    return streams


def _isin(values: KeyArray, wanted: KeyArray) -> npt.NDArray[np.bool_]:
    """Return which values are among the wanted ones, which are sorted. Unlike np.isin it does not sort the values."""
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    at = np.searchsorted(wanted, values)
    at[at == len(wanted)] = 0
    found: npt.NDArray[np.bool_] = wanted[at] == values
    return found


def _newest(matches: Sequence[tuple[Samples, KeyArray, Integers]], most: int) -> Samples:
    """Return the newest frames of each group, see `_of_newest`, in the order of the matches.

    matches: samples, the group of each, and the indices of those that count; later ones are newer.
    """
    if not matches:
        return np.empty(0, SAMPLE)
    groups = np.concatenate([groups[index] for _, groups, index in matches])
    parts = np.concatenate([samples["part"][index] for samples, _, index in matches])
    ends = np.cumsum([len(index) for *_, index in matches])[:-1]
    chosen = np.split(_of_newest(groups, parts, most), ends)
    newest: Samples = np.concatenate(
        [samples[index[mask]] for (samples, _, index), mask in zip(matches, chosen, strict=True)]
    )
    return newest


def _of_newest(groups: KeyArray, parts: npt.NDArray[np.uint16], most: int) -> npt.NDArray[np.bool_]:
    """Return which samples are of the newest frames of their group, (n,). Frames without their start are none."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    # Of each sample: where its frame starts, how many samples its group has from there on, and its group's last sample.
    first = np.maximum.accumulate(np.where(parts[order] == 0, np.arange(len(order)), -1))
    ends: Integers = np.searchsorted(ordered, ordered, "right").astype(np.int64)
    is_whole = (first >= 0) & (ordered[first] == ordered)
    newest = np.empty(len(order), np.bool_)
    newest[order] = is_whole & ((ends - first <= most) | (first == first[ends - 1]))
    return newest


def _unpacked(kept: Iterator[bytes]) -> Samples:
    """Return kept samples, which lack the unused bytes of their data, as an array of SAMPLE."""
    padded = bytearray()
    for packed in kept:
        at = 0
        while at < len(packed):
            header = np.frombuffer(packed, _HEADER, 1, at)[0]
            end = at + DATA_AT + int(header["size"])
            padded += packed[at:end] + bytes(DATA_BYTES - int(header["size"]))
            at = end
    samples: Samples = np.frombuffer(padded, SAMPLE)
    return samples
