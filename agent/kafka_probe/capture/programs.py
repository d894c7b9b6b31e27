"""The loaded and attached programs, held by file descriptors.

BCC and its LLVM need 100 MB and some seconds: they live in a process of their own, which compiles, attaches, hands the
descriptors over and ends. What is attached lasts as long as the agent holds them, so its end, in any way, detaches.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np

from kafka_probe.capture.options import Options, Rule
from kafka_probe.capture.record import COUNTERS, LOSSES
from kafka_probe.errors import StartError

_MAPS = 3  # ring, counters, continuations
_MOST_DESCRIPTORS = 32
_SYS_BPF = 321  # x86-64
_BPF_MAP_LOOKUP_ELEM = 1
_TIMEOUT_S = 120
_LOG_LINES = 5


class _MapElement(ctypes.Structure):
    """union bpf_attr of the map element commands (include/uapi/linux/bpf.h)."""

    _fields_ = (
        ("map_fd", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class Programs:
    """Attached until `detach`; the maps stay readable until `close`."""

    def __init__(self, maps: list[int], links: list[int]) -> None:
        self.ring_fd, self._counters_fd, _ = self._maps = maps
        self._links = links
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._per_cpu = np.zeros(_possible_cpus(), np.uint64)

    @classmethod
    def load(cls, backend: str, options: Options, rules: Iterable[Rule]) -> Self:
        """Compile and attach the programs of a backend; StartError says why that did not work."""
        request = {"backend": backend, "options": asdict(options), "rules": [asdict(rule) for rule in rules]}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            loader = subprocess.run(
                [sys.executable, "-m", "kafka_probe.capture.loader", str(theirs.fileno())],
                input=json.dumps(request).encode(),
                pass_fds=[theirs.fileno()],
                capture_output=True,
                timeout=_TIMEOUT_S,
                start_new_session=True,  # a Ctrl-C in the terminal is the agent's to handle
                check=False,
            )
            theirs.close()
            message, descriptors, _, _ = socket.recv_fds(ours, 1 << 16, _MOST_DESCRIPTORS)
        if loader.returncode == 0:
            return cls(descriptors[:_MAPS], descriptors[_MAPS:])
        said = loader.stderr.decode(errors="replace").strip().splitlines()[-_LOG_LINES:]
        reason = message.decode() or f"the loader ended with status {loader.returncode}"
        raise StartError(reason if not said else f"{reason} ({' / '.join(said)})")

    def counters(self) -> dict[str, int]:
        """All kernel counters by name, summed over the CPUs."""
        return {name: self._counter(index) for index, name in enumerate((*COUNTERS, *LOSSES))}

    def detach(self) -> None:
        """Stop capturing."""
        while self._links:
            os.close(self._links.pop())

    def close(self) -> None:
        """Detach and free everything."""
        self.detach()
        while self._maps:
            os.close(self._maps.pop())

    def _counter(self, index: int) -> int:
        key = ctypes.c_uint32(index)
        element = _MapElement(self._counters_fd, ctypes.addressof(key), self._per_cpu.ctypes.data, 0)
        if self._libc.syscall(_SYS_BPF, _BPF_MAP_LOOKUP_ELEM, ctypes.byref(element), ctypes.sizeof(element)):
            raise OSError(ctypes.get_errno(), f"cannot read the kernel counter {index}")
        return int(self._per_cpu.sum())


def _possible_cpus() -> int:
    """Values of a per-CPU map: one for each CPU that the kernel could ever have."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return max(int(number) for number in re.findall(r"\d+", text)) + 1
