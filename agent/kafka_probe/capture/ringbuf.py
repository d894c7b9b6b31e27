"""The kernel's ring buffer as an array of samples, read without a call per sample.

Layout of the memory behind the map (kernel/bpf/ringbuf.c): a page with the reader's position, which the reader may
write, then a page with the writers' position, then the data, mapped twice in a row so that a read never wraps. All
samples have the same size.
"""

from __future__ import annotations

import mmap
import select

import numpy as np

from kafka_probe.capture.sample import SAMPLE, SLOT, Samples, blocks

_BUSY = np.uint32(1 << 31)
_DISCARDED = np.uint32(1 << 30)
_PAGE = mmap.PAGESIZE


class RingBuffer:
    """The reading end of a ring buffer. `size_bytes`: the map's size, a power of two. Same interface as PerfBuffers."""

    def __init__(self, map_fd: int, size_bytes: int) -> None:
        self._size = size_bytes
        self._reader = mmap.mmap(map_fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._writers = mmap.mmap(map_fd, _PAGE + 2 * size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        self._read = np.frombuffer(self._reader, np.uint64, 1)
        self._written = np.frombuffer(self._writers, np.uint64, 1)
        self._slots = np.frombuffer(self._writers, SLOT, 2 * size_bytes // SLOT.itemsize, _PAGE)
        self._poll = select.epoll()
        # Edge-triggered: else samples that arrived meanwhile would end every wait at once, and batches would be small.
        self._poll.register(map_fd, select.EPOLLIN | select.EPOLLET)

    def wait(self, timeout_s: float) -> bool:
        """Return True when a quarter of the buffer has been written, or False after `timeout_s`."""
        return bool(self._poll.poll(timeout_s))

    def take(self, most: int) -> Samples:
        """Return the oldest samples, at most `most`, as a new array of SAMPLE, and free their slots."""
        start, end = int(self._read[0]), int(self._written[0])
        first, count = start % self._size // SLOT.itemsize, (end - start) // SLOT.itemsize
        slots = self._slots[first : first + min(count, most)]
        busy = np.flatnonzero(slots["length"] & _BUSY)  # still being written; later samples wait, to keep the order
        if len(busy):
            slots = slots[: busy[0]]
        kept = slots["length"] & _DISCARDED == 0
        samples: Samples = blocks(slots["sample"])[kept].view(SAMPLE)
        self._read[0] = start + len(slots) * SLOT.itemsize
        return samples

    def close(self) -> None:
        self._poll.close()
        del self._read, self._written, self._slots
        self._reader.close()
        self._writers.close()
