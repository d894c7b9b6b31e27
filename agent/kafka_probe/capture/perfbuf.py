"""Perf buffers, used instead of the ring buffer: one per CPU, read as arrays of samples and sorted by time.

Layout of the memory behind a perf event (include/uapi/linux/perf_event.h): a control page with the positions, then the
data, in which a sample can wrap around the end. The agent opens the buffers, not the loader process, because a buffer
exists only while it is mapped.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kafka_probe.capture import bpf
from kafka_probe.capture.sample import PERF_SAMPLE, SAMPLE, Samples, blocks

_PAGE = mmap.PAGESIZE
_LEAST_BYTES = 1 << 16
_SOFTWARE, _BPF_OUTPUT = 1, 10
_TIME_AND_RAW = 1 << 2 | 1 << 10
_USE_CLOCK_ID = 1 << 25
_SAMPLE_SAMPLE = 9
_HEAD_AT, _TAIL_AT = 1024, 1032
_HEADER = struct.Struct("<IHH")


class PerfBuffers:
    """The reading end of the buffers of all CPUs.

    Each has an equal share of `size_bytes`, rounded down to a power of two, but at least 64 KiB.
    """

    def __init__(self, size_bytes: int) -> None:
        cpus = _online_cpus()
        share = max(_LEAST_BYTES, 1 << (size_bytes // len(cpus)).bit_length() - 1)
        self._buffers = {cpu: _CpuBuffer(cpu, share) for cpu in cpus}
        self._held = np.empty(0, PERF_SAMPLE)
        self._ready = 0  # how many held samples can be returned, because no older one can follow
        self._poll = select.epoll()
        for buffer in self._buffers.values():
            self._poll.register(buffer.fd, select.EPOLLIN | select.EPOLLET)

    @property
    def descriptors(self) -> dict[int, int]:
        """Return the descriptor of each CPU's perf event."""
        return {cpu: buffer.fd for cpu, buffer in self._buffers.items()}

    def wait(self, timeout_s: float) -> bool:
        """Return True when a quarter of a buffer has been written, or False after `timeout_s`."""
        return bool(self._poll.poll(timeout_s))

    def take(self, most: int) -> Samples:
        """Return the oldest samples, at most `most`, as a new array of SAMPLE, and free their slots."""
        if self._ready < most:  # samples are not read earlier than needed: the buffers bound their number
            self._read()
        count = min(most, self._ready)
        samples: Samples = blocks(self._held["sample"][:count]).copy().view(SAMPLE)
        self._held, self._ready = self._held[count:], self._ready - count
        return samples

    def _read(self) -> None:
        # Samples written after this time wait for the next call: a buffer that was read before may hold older ones by
        # then.
        now = time.monotonic_ns()
        parts = [self._held, *(part for buffer in self._buffers.values() for part in buffer.take())]
        samples = np.concatenate([blocks(part) for part in parts]).view(PERF_SAMPLE)
        self._held = samples.take(np.argsort(samples["time"], kind="stable"))
        self._ready = int(np.searchsorted(self._held["time"], now, "right"))

    def close(self) -> None:
        self._poll.close()
        for buffer in self._buffers.values():
            buffer.close()


class _CpuBuffer:
    def __init__(self, cpu: int, size_bytes: int) -> None:
        self.fd = bpf.perf_event_open(
            _SOFTWARE,
            _BPF_OUTPUT,
            cpu=cpu,
            sample_type=_TIME_AND_RAW,
            flags=_USE_CLOCK_ID,
            wake_up_events=size_bytes // 4 // PERF_SAMPLE.itemsize,
            clock=time.CLOCK_MONOTONIC,
        )
        self._size = size_bytes
        self._memory = mmap.mmap(self.fd, _PAGE + size_bytes)
        self._head = np.frombuffer(self._memory, np.uint64, 1, _HEAD_AT)
        self._tail = np.frombuffer(self._memory, np.uint64, 1, _TAIL_AT)
        bpf.enable(self.fd)

    def take(self) -> list[npt.NDArray[np.void]]:
        """Return all samples of the buffer in order, in arrays of PERF_SAMPLE, and free their slots."""
        start, end = int(self._tail[0]), int(self._head[0])
        first, size = start % self._size, end - start
        data = self._memory[_PAGE + first : _PAGE + min(first + size, self._size)]
        data += self._memory[_PAGE : _PAGE + size - len(data)]
        self._tail[0] = end
        return _samples(data)

    def close(self) -> None:
        del self._head, self._tail
        self._memory.close()
        os.close(self.fd)


def _samples(data: bytes) -> list[npt.NDArray[np.void]]:
    """Return the runs of samples between other records, which report lost samples: the programs count those."""
    runs = []
    while data:
        samples = np.frombuffer(data, PERF_SAMPLE, len(data) // PERF_SAMPLE.itemsize)
        others = np.flatnonzero(samples["type"] != _SAMPLE_SAMPLE)
        run = samples[: others[0]] if len(others) else samples
        runs.append(run)
        data = data[len(run) * PERF_SAMPLE.itemsize :]
        if data:
            data = data[_HEADER.unpack_from(data)[2] :]
    return runs


def _online_cpus() -> list[int]:
    cpus: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().split(","):
        first, _, last = part.strip().partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
