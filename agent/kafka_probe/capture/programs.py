"""The loaded and attached programs, held by file descriptors, and the buffer that receives their samples.

BCC and its LLVM need 100 MB and some seconds, so they run in a separate process, the loader, which compiles, attaches,
sends the descriptors and ends. It does without BCC if the cache has the compiled programs. Programs stay attached while
the agent holds the descriptors: its end, even by a crash, detaches them. This module never decodes samples.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kafka_probe.capture import bpf, sample
from kafka_probe.capture.backends import BACKENDS
from kafka_probe.capture.btf import VMLINUX
from kafka_probe.capture.options import MAPS, KernelRule, Options
from kafka_probe.capture.perfbuf import PerfBuffers
from kafka_probe.capture.ringbuf import RingBuffer
from kafka_probe.errors import StartError

ORDER = tuple(BACKENDS)
LOSSES = {
    **sample.LOSSES,
    "program_skipped": "calls and closes without a run of their program, because another program ran on the same CPU",
}
_EVENTS, _COUNTERS, _CONNECTIONS = map(MAPS.index, ("events", "counters", "conns"))
_MOST_DESCRIPTORS = 32
_TIMEOUT_S = 600
_LOG_LINES = 5


class Programs:
    """The programs of one backend, attached until `detach`; the maps stay readable until `close`.

    backend: the name of the backend; refused: by name why those before it failed; instructions: how many the verifier
    processed, by program; cache_problems: why files of the cache were not used or written.

    descriptors: of the maps, then of the programs, then of as many links.
    """

    def __init__(self, answer: dict[str, Any], descriptors: list[int], buffer: RingBuffer | PerfBuffers) -> None:
        self.backend: str = answer["backend"]
        self.refused: dict[str, str] = answer["refused"]
        self.instructions: dict[str, int] = answer["instructions"]
        self.cache_problems: list[str] = answer["cache_problems"]
        self.buffer = buffer
        self._maps, rest = descriptors[: len(MAPS)], descriptors[len(MAPS) :]
        self._programs, self._links = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        self._statistics: list[int] = []  # descriptors that make the kernel measure run times
        self._per_cpu = ctypes.create_string_buffer(8 * _possible_cpus())

    @classmethod
    def load(
        cls, backend: str, buffer: str, options: Options, rules: Iterable[KernelRule], cache_dir: Path | None = None
    ) -> Self:
        """Compile and attach the programs of a backend; auto: of the first that works.

        buffer: ring, perf, or auto: ring if the kernel supports it. cache_dir: see cache.py.

        Raises:
            StartError: no backend works; the text gives the reason for each.
        """
        if not uses_ring_buffer(buffer):
            with ExitStack() as unless_loaded:
                perf = PerfBuffers(options.ring_bytes)
                unless_loaded.callback(perf.close)
                answer, descriptors = _attach(
                    backend, replace(options, perf_buffers=perf.descriptors), rules, cache_dir
                )
                unless_loaded.pop_all()
            return cls(answer, descriptors, perf)
        answer, descriptors = _attach(backend, options, rules, cache_dir)
        return cls(answer, descriptors, RingBuffer(descriptors[_EVENTS], options.ring_bytes))

    def counters(self) -> dict[str, int]:
        """Return all kernel counters by name, summed over the CPUs."""
        in_map = {name: self._counter(index) for index, name in enumerate((*sample.COUNTERS, *sample.LOSSES))}
        return {**in_map, "program_skipped": self._statistic("recursion_misses")}

    def followed(self) -> set[int]:
        """Return the kernel's ids of the connections that it follows.

        Those that begin or end meanwhile may be missing.
        """
        return {conn for heads in self._connection_heads() for conn in heads["conn"].tolist()}

    def heads_of(self, conns: Collection[int]) -> npt.NDArray[Any]:
        """Return what the kernel keeps of connections, by its ids, (n,) CONNECTION_HEAD. Some may be missing.

        The kernel's table is read as a whole, a value of about 900 bytes per connection: 50 ms for 100,000.
        """
        wanted = np.fromiter(conns, np.uint64, len(conns))
        found = [heads[np.isin(heads["conn"], wanted)] for heads in self._connection_heads()] if len(wanted) else []
        return np.concatenate([np.empty(0, sample.CONNECTION_HEAD), *found])

    def _connection_heads(self) -> Iterator[npt.NDArray[Any]]:
        return bpf.value_heads(self._maps[_CONNECTIONS], sample.CONNECTION_HEAD)

    def measure(self) -> str:
        """Make the kernel measure run times until `close`. Return the reason if it refuses, else an empty string."""
        try:
            self._statistics.append(bpf.enable_run_time())
        except OSError as error:
            return str(error.strerror)
        return ""

    def run_time_ns(self) -> int | None:
        """Return the measured run time of all programs; None if neither `measure` nor the host enabled measuring."""
        return self._statistic("run_time_ns") if self._statistics or bpf.run_time_is_measured() else None

    def detach(self) -> None:
        """Detach all programs."""
        while self._links:
            os.close(self._links.pop())

    def close(self) -> None:
        """Detach all programs and close all descriptors and the buffer."""
        self.detach()
        self.buffer.close()
        for held in (self._maps, self._programs, self._statistics):
            while held:
                os.close(held.pop())

    def _statistic(self, name: str) -> int:
        return sum(bpf.statistic(program, name) for program in self._programs)

    def _counter(self, index: int) -> int:
        bpf.read_map(self._maps[_COUNTERS], struct.pack("<I", index), self._per_cpu)
        return int(np.frombuffer(self._per_cpu.raw, np.uint64).sum())


def compile_into_cache(backend: str, buffer: str, options: Options, cache_dir: Path) -> list[str]:
    """Put the programs that `Programs.load` may use into the cache. Return the problems with files of the cache.

    Raises:
        StartError: no backend is supported, or the cache is not complete now.
    """
    buffers = {} if uses_ring_buffer(buffer) else {0: 0}  # their descriptors are not compiled in
    answer, _ = _attach(backend, replace(options, perf_buffers=buffers), [], cache_dir, only_compile=True)
    problems: list[str] = answer["cache_problems"]
    if not answer["complete"]:
        raise StartError(" ".join(problems) or "The sources have changed while they were compiled: repeat the command.")
    return problems


def _attach(
    backend: str,
    options: Options,
    rules: Iterable[KernelRule],
    cache_dir: Path | None,
    *,
    only_compile: bool = False,
) -> tuple[dict[str, Any], list[int]]:
    """Run the loader process; return its answer and the descriptors of maps, programs and links.

    Raises:
        StartError: the loader failed, or did not end within _TIMEOUT_S.
    """
    request = {
        "backends": ORDER if backend == "auto" else (backend,),
        "options": asdict(options),
        "rules": [asdict(rule) for rule in rules],
        "cache_dir": cache_dir and str(cache_dir),
        "only_compile": only_compile,
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            loader = subprocess.run(
                # -P: no module is imported from the working directory, which may be another user's.
                [sys.executable, "-P", "-m", "kafka_probe.capture.loader", str(theirs.fileno())],
                input=json.dumps(request).encode(),
                pass_fds=[theirs.fileno(), *options.perf_buffers.values()],
                capture_output=True,
                timeout=_TIMEOUT_S,
                start_new_session=True,  # Ctrl-C in the terminal signals the agent only
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StartError(f"the programs were not loaded in {_TIMEOUT_S} s: this host has too little CPU") from None
        theirs.close()
        message, descriptors, _, _ = socket.recv_fds(ours, 1 << 16, _MOST_DESCRIPTORS)
    if loader.returncode == 0:
        answer = json.loads(message)
        _drop_from_page_cache(answer["libraries"])
        return answer, descriptors
    log_lines = loader.stderr.decode(errors="replace").strip().splitlines()[-_LOG_LINES:]
    reason = message.decode() or f"the loader ended with status {loader.returncode}"
    raise StartError(reason if not log_lines else f"{reason} ({' / '.join(log_lines)})")


def _drop_from_page_cache(files: Iterable[str]) -> None:
    """Drop files from the page cache, except those that a process has mapped.

    For BCC and LLVM these are 200 MB, which the kernel charges to the cgroup that read them first, the agent's.
    """
    for file in files:
        with suppress(OSError), Path(file).open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def uses_ring_buffer(buffer: str) -> bool:
    """Return True if samples go through a ring buffer with this setting."""
    return buffer == "ring" or (buffer == "auto" and has_ring_buffer())


def has_ring_buffer() -> bool:
    """Return True if this kernel has the BPF ring buffer (5.8, or a backport)."""
    return b"BPF_MAP_TYPE_RINGBUF" in VMLINUX.read_bytes()


def _possible_cpus() -> int:
    """Return the number of possible CPUs: a per-CPU map has one value for each, also for CPUs that are offline."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return max(int(number) for number in re.findall(r"\d+", text)) + 1
