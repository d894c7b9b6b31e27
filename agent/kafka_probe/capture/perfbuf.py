"""Perf buffers in the ring buffer's place: one per CPU, read as arrays of samples and put in order by their time.

Layout of the memory behind a perf event (include/uapi/linux/perf_event.h): a control page with the positions, then the
data, in which a sample can wrap around the end. Opened by the agent, because a buffer lives while it is mapped.
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
from kafka_probe.capture.ringbuf import Samples
from kafka_probe.capture.sample import PERF_SAMPLE

_PAGE = mmap.PAGESIZE
_LEAST_BYTES = 1 << 16
_SOFTWARE, _BPF_OUTPUT = 1, 10
_TIME_AND_RAW = 1 << 2 | 1 << 10
_USE_CLOCK_ID = 1 << 25
_SAMPLE_SAMPLE = 9
_HEAD_AT, _TAIL_AT = 1024, 1032
_HEADER = struct.Struct("<IHH")


class PerfBuffers:
    """The reading end of all CPUs' buffers, `size_bytes` together or a little more."""

    def __init__(self, size_bytes: int) -> None:
        cpus = _online_cpus()
        share = max(_LEAST_BYTES, 1 << (size_bytes // len(cpus)).bit_length() - 1)
        self._buffers = {cpu: _Buffer(cpu, share) for cpu in cpus}
        self._held = np.empty(0, PERF_SAMPLE)
        self._ready = 0  # of those that are held, how many have nothing older to wait for
        self._poll = select.epoll()
        for buffer in self._buffers.values():
            self._poll.register(buffer.fd, select.EPOLLIN | select.EPOLLET)

    @property
    def descriptors(self) -> dict[int, int]:
        """The perf event of each CPU."""
        return {cpu: buffer.fd for cpu, buffer in self._buffers.items()}

    def wait(self, timeout_s: float) -> bool:
        """Return True when a quarter of the buffer has been written, or False after the time."""
        return bool(self._poll.poll(timeout_s))

    def take(self, most: int) -> Samples:
        """The oldest samples, `most` at most, as an array of their own of SAMPLE; their places are free again."""
        if self._ready < most:  # else the rest stays in the buffers, where it has its bound
            self._read()
        count = min(most, self._ready)
        samples: Samples = self._held["sample"][:count].copy()
        self._held, self._ready = self._held[count:], self._ready - count
        return samples

    def _read(self) -> None:
        # What was written on one CPU while another one's buffer was read waits: something older may be there by now.
        now = time.monotonic_ns()
        samples = np.concatenate([self._held, *(part for buffer in self._buffers.values() for part in buffer.take())])
        self._held = samples[np.argsort(samples["time"], kind="stable")]
        self._ready = int(np.searchsorted(self._held["time"], now, "right"))

    def close(self) -> None:
        self._poll.close()
        for buffer in self._buffers.values():
            buffer.close()


class _Buffer:
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
        """All samples that are there, in their order, in arrays of PERF_SAMPLE."""
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
    """The runs of samples between other records, which tell of lost ones: these the programs count themselves."""
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
