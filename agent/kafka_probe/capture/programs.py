"""The loaded and attached programs, held by file descriptors, and the buffer by which their samples come.

BCC and its LLVM need 100 MB and some seconds: they live in a process of their own, which compiles, attaches, hands the
descriptors over and ends. What is attached lasts as long as the agent holds them, so its end, in any way, detaches.
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
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from kafka_probe.capture import bpf, sample
from kafka_probe.capture.backends import BACKENDS
from kafka_probe.capture.btf import VMLINUX
from kafka_probe.capture.options import Options, Rule
from kafka_probe.capture.perfbuf import PerfBuffers
from kafka_probe.capture.ringbuf import RingBuffer
from kafka_probe.errors import StartError

ORDER = tuple(BACKENDS)
LOSSES = {
    **sample.LOSSES,
    "program_skipped": "calls or ends that the kernel did not show, for it was showing another on the same CPU",
}
_MAPS = 3  # events, counters, conns
_COUNTERS, _CONNECTIONS = 1, 2
_MOST_DESCRIPTORS = 32
_TIMEOUT_S = 600
_LOG_LINES = 5


class Programs:
    """Attached until `detach`; the maps stay readable until `close`.

    backend: which one was taken; refused: why not those before it; instructions: what the verifier went through.
    """

    def __init__(self, answer: dict[str, Any], descriptors: list[int], buffer: RingBuffer | PerfBuffers) -> None:
        """descriptors: the maps, then the programs, then as many links."""
        self.backend: str = answer["backend"]
        self.refused: dict[str, str] = answer["refused"]
        self.instructions: dict[str, int] = answer["instructions"]
        self.buffer = buffer
        self._maps, rest = descriptors[:_MAPS], descriptors[_MAPS:]
        self._programs, self._links = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        self._statistics: list[int] = []  # what makes the kernel measure, if anything does
        self._per_cpu = ctypes.create_string_buffer(8 * _possible_cpus())

    @classmethod
    def load(cls, backend: str, buffer: str, options: Options, rules: Iterable[Rule], kept: Path | None = None) -> Self:
        """Compile and attach the programs of a backend; auto: of the first that works. StartError says why none does.

        buffer: ring, perf, or auto: a ring where the kernel has it. kept: a folder that keeps compiled programs.
        """
        if buffer == "perf" or (buffer == "auto" and not has_ring_buffer()):
            with ExitStack() as unless_loaded:
                perf = PerfBuffers(options.ring_bytes)
                unless_loaded.callback(perf.close)
                answer, descriptors = _attach(backend, replace(options, perf_buffers=perf.descriptors), rules, kept)
                unless_loaded.pop_all()
            return cls(answer, descriptors, perf)
        answer, descriptors = _attach(backend, options, rules, kept)
        return cls(answer, descriptors, RingBuffer(descriptors[0], options.ring_bytes))

    def counters(self) -> dict[str, int]:
        """All kernel counters by name, summed over the CPUs."""
        in_map = {name: self._counter(index) for index, name in enumerate((*sample.COUNTERS, *sample.LOSSES))}
        return {**in_map, "program_skipped": self._statistic("recursion_misses")}

    def followed(self) -> set[int]:
        """The connections that the kernel follows, by its ids; of those that come or go meanwhile some, or none."""
        return set(bpf.first_words(self._maps[_CONNECTIONS]))

    def measure(self) -> str:
        """From now on, until `close`, the kernel measures the run time. Returns why not, empty if it does."""
        try:
            self._statistics.append(bpf.enable_run_time())
        except OSError as error:
            return str(error.strerror)
        return ""

    def run_time_ns(self) -> int | None:
        """How long all programs ran while that was measured; None if neither `measure` nor the host does."""
        return self._statistic("run_time_ns") if self._statistics or bpf.run_time_is_measured() else None

    def detach(self) -> None:
        """Stop capturing."""
        while self._links:
            os.close(self._links.pop())

    def close(self) -> None:
        """Detach and free everything."""
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


def _attach(
    backend: str, options: Options, rules: Iterable[Rule], kept: Path | None
) -> tuple[dict[str, Any], list[int]]:
    """What the loader's process answers, and the descriptors of maps, programs and links."""
    backends = ORDER if backend == "auto" else (backend,)
    request = {
        "backends": backends,
        "options": asdict(options),
        "rules": [asdict(rule) for rule in rules],
        "kept": kept and str(kept),
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            loader = subprocess.run(
                [sys.executable, "-m", "kafka_probe.capture.loader", str(theirs.fileno())],
                input=json.dumps(request).encode(),
                pass_fds=[theirs.fileno(), *options.perf_buffers.values()],
                capture_output=True,
                timeout=_TIMEOUT_S,
                start_new_session=True,  # a Ctrl-C in the terminal is the agent's to handle
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
    said = loader.stderr.decode(errors="replace").strip().splitlines()[-_LOG_LINES:]
    reason = message.decode() or f"the loader ended with status {loader.returncode}"
    raise StartError(reason if not said else f"{reason} ({' / '.join(said)})")


def _drop_from_page_cache(files: Iterable[str]) -> None:
    """Let the kernel forget what it has read of files, unless a process has them mapped.

    Of BCC and LLVM that is 200 MB, which count for the cgroup that has read them, the agent's.
    """
    for file in files:
        with suppress(OSError), Path(file).open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def has_ring_buffer() -> bool:
    """Whether this kernel knows the BPF ring buffer (5.8, or ported back)."""
    return b"BPF_MAP_TYPE_RINGBUF" in VMLINUX.read_bytes()


def _possible_cpus() -> int:
    """Values of a per-CPU map: one for each CPU that the kernel could ever have."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return max(int(number) for number in re.findall(r"\d+", text)) + 1
