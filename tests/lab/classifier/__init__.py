"""Runs the kernel's C code in user space: conversations pass through its frame cursor, which classifies them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.compiler import HOP_RUNS, HOPS, RUNS, STEPS, sources
from kafka_probe.capture.options import PROGRAM_OPS, RULES, map_contents
from kafka_probe.capture.sample import COUNTERS, LOSSES, SAMPLE
from kafka_probe.startup import rules

_HERE = Path(__file__).parent
# The functions that make conversations, in their order, and those of other protocols than Kafka's.
_PROTOCOLS = re.findall(r"\w+", (_HERE / "protocols.h").read_text().rpartition("PROTOCOLS[])(void) = {")[2])
OTHERS = [protocol for protocol in _PROTOCOLS if protocol != "kafka"]
_WARNINGS = ("-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Werror")


class Direction(IntEnum):
    """The directions of enum direction in bpf/sock.h."""

    SEND = 0
    RECEIVE = 1


class Classifier:
    """A classifier of one connection at a time. `any_port`: the connection's port is not among the watched ones."""

    def __init__(self, folder: Path, *, any_port: bool) -> None:
        self.any_port = any_port
        library = folder / f"classifier-{any_port:d}.so"
        limits = {"RUNS": RUNS, "STEPS": STEPS, "HOP_RUNS": HOP_RUNS, "HOPS": HOPS}
        defines = {"ANY_PORT": int(any_port), "RULES": RULES, "PROGRAM_OPS": PROGRAM_OPS, **limits}
        subprocess.run(
            [
                *("gcc", "-O2", "-shared", "-fPIC", "-ffreestanding", "-nostdlib", "-Wl,-Bsymbolic", *_WARNINGS),
                *(f"-I{sources()}", f"-I{sources() / 'include'}"),
                *(f"-D{name}={value}" for name, value in defines.items()),
                *("-o", library, _HERE / "harness.c"),
            ],
            check=True,
        )
        self._library = ctypes.CDLL(str(library))
        self._library.taken_for_kafka.restype = ctypes.c_uint64
        self._library.counted.restype = ctypes.c_uint64
        self._library.next_number.restype = ctypes.c_uint32
        for name, index, value in map_contents(rules()):
            self._library[f"set_{name}"](index, value)

    def taken_for_kafka(self, protocol: str, seed: int, count: int, *, late_one_in: int = 4) -> int:
        """Return how many of `count` conversations are taken for Kafka. late_one_in: one in so many began unseen."""
        number = ctypes.c_uint32(_PROTOCOLS.index(protocol))
        return int(self._library.taken_for_kafka(number, ctypes.c_uint64(seed), ctypes.c_uint64(count), late_one_in))

    def connect(self, *, server_side: bool, seen: int = 0) -> None:
        """Begin a new connection, watched at one end; `seen`: bytes that went each way before."""
        self._library.new_connection(int(server_side), seen)

    def begin_elsewhere(self, *, meanwhile: bool) -> None:
        """Insert the entry of the new connection, as a program of another CPU that has not filled it yet.

        meanwhile: after the next call has found no entry, and before it inserts one; else now.
        """
        self._library.begin_elsewhere(int(meanwhile))

    @property
    def is_untouched(self) -> bool:
        """Return True if no program has written to that entry, except for its first state."""
        return bool(self._library.is_untouched())

    def change_state(self, before: int, after: int) -> None:
        """Change the connection's TCP state, as enum of include/net/tcp_states.h."""
        self._library.change_state(before, after)

    @property
    def first_state(self) -> int:
        """Return the TCP state that followed ESTABLISHED, 0 if none is known."""
        return int(self._library.first_state())

    def move(self, direction: Direction, data: bytes, piece: int) -> None:
        """Pass the bytes in calls of at most `piece` bytes."""
        if direction is Direction.RECEIVE:
            self._library.arrive(len(data))
        for at in range(0, len(data), piece):
            self._library.move(direction, data[at : at + piece], len(data[at : at + piece]))

    def samples(self) -> npt.NDArray[Any]:
        """Return the samples of the connection, (n,) of SAMPLE."""
        at = ctypes.c_void_p()
        count = self._library.samples_left(ctypes.byref(at))
        return np.frombuffer(ctypes.string_at(at, count * SAMPLE.itemsize), SAMPLE)

    def pass_numbers(self, requests: int, *, matched: bool) -> None:
        """Advance the numbers of the connection as if so many requests had been answered, by matched answers or not."""
        self._library.pass_numbers(requests, int(matched))

    def next_number(self) -> int:
        """Return the number of the next request, modulo 2^32."""
        return int(self._library.next_number())

    def losses(self) -> dict[str, int]:
        """Return the losses since the start that are not zero, by name."""
        names = {len(COUNTERS) + place: name for place, name in enumerate(LOSSES)}
        counts = {name: int(self._library.counted(place)) for place, name in names.items()}
        return {name: count for name, count in counts.items() if count}

    @property
    def is_kafka(self) -> bool:
        return bool(self._library.is_kafka())


@contextmanager
def classifier(*, any_port: bool) -> Iterator[Classifier]:
    with TemporaryDirectory() as folder:
        yield Classifier(Path(folder), any_port=any_port)
