"""Runs the observers of the load, the agent, tcpdump or tshark, each in a cgroup that counts its CPU time.

The cgroup holds the observer's whole process tree. Start-up does not count: the mark is set when it has gone quiet.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_probe.capture import bpf
from tests.lab.bpf_programs import loaded
from tests.lab.broker import Broker
from tests.lab.cgroups import cgroup
from tests.lab.processes import free_port, start, stop, wait_until
from tests.lab.product import Agent

_QUIET_S = 1.0
_QUIET_SHARE = 0.02
_BPF_CALL, _PROG_GET_FD_BY_ID = 321, 13  # linux/bpf.h, x86_64


@dataclass(frozen=True, slots=True)
class Observer:
    """A running observer. programs: the ids of its BPF programs."""

    cgroup: Path
    programs: frozenset[int] = frozenset()

    @property
    def cpu_us(self) -> int:
        """Return the CPU time of its processes since they started, in µs."""
        return _number("usage_usec", self.cgroup / "cpu.stat")

    @property
    def peak_rss_mb(self) -> float:
        """Return the sum of the peak resident memory of its processes, in MiB."""
        return sum(_number("VmHWM:", Path("/proc", pid, "status")) for pid in self._pids) / 1024

    @property
    def rss_bytes(self) -> int:
        """Return the sum of the resident memory of its processes, in bytes."""
        return sum(_number("VmRSS:", Path("/proc", pid, "status")) for pid in self._pids) * 1024

    @property
    def kernel_time_and_calls(self) -> tuple[int, int]:
        """Return run time in ns and number of runs of its BPF programs, while `bpf_stats` is on."""
        programs = [_program_info(number) for number in self.programs]
        times, calls = ([int(_value(name, text)) for text in programs] for name in ("run_time_ns:", "run_cnt:"))
        return sum(times), sum(calls)

    def wait_until_quiet(self) -> None:
        """Wait until it has used almost no CPU for a second, so that all work is done."""
        marks = [(time.monotonic(), self.cpu_us)]

        def quiet() -> bool:
            now = time.monotonic()
            marks.append((now, self.cpu_us))
            while len(marks) > 2 and marks[1][0] < now - _QUIET_S:
                marks.pop(0)
            (since, before), (_, after) = marks[0], marks[-1]
            return now - since >= _QUIET_S and after - before < _QUIET_SHARE * 1e6 * (now - since)

        wait_until(quiet, f"{self.cgroup.name} to go quiet")

    @property
    def _pids(self) -> list[str]:
        return (self.cgroup / "cgroup.procs").read_text().split()


@contextmanager
def agent(
    directory: Path, port: int, sink: Broker, side: str, backend: str = "auto", more: Sequence[str] = ()
) -> Iterator[Observer]:
    """Run the agent as in production; its events go to a broker that it does not watch. more: further flags."""
    to = ("--bootstrap-servers", sink.bootstrap, "--listen", f"127.0.0.1:{free_port()}")
    flags = ("--ports", str(port), "--side", side, "--backend", backend, *to, *more)
    before = loaded()
    with cgroup(f"agent-{side}") as group, Agent(directory, *flags, inside=group):
        yield Observer(group, frozenset(loaded() - before))


def tcpdump(directory: Path, broker: Broker) -> AbstractContextManager[Observer]:
    """Capture raw packets to a file: the cheapest observer."""
    command = ["tcpdump", "-i", "lo", "-s", "0", "-n", "-Z", "root", "-w", str(directory / "load.pcap")]
    return _program([*command, f"tcp port {broker.port}"], directory / "tcpdump.log", "listening on")


def tshark(directory: Path, broker: Broker) -> AbstractContextManager[Observer]:
    """Decode every request to one line of text."""
    fields = [
        part for name in ("api_key", "api_version", "client_id", "topic_name") for part in ("-e", f"kafka.{name}")
    ]
    command = ["tshark", "-i", "lo", "-f", f"tcp port {broker.port}", "-d", f"tcp.port=={broker.port},kafka"]
    return _program([*command, "-Y", "kafka", "-T", "fields", *fields], directory / "tshark.log", "Capturing on")


@contextmanager
def bpf_stats() -> Iterator[None]:
    """Let the kernel measure the run time of BPF programs for the duration of the block.

    It stops with the descriptor, however this process ends.
    """
    descriptor = bpf.enable_run_time()
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _program(command: list[str], log: Path, ready: str) -> Iterator[Observer]:
    log.unlink(missing_ok=True)
    output = log.with_suffix(".out")
    with cgroup(command[0]) as group:
        process = start(command, log=log, stdout=output, inside=group)
        try:
            wait_until(lambda: ready in log.read_text(), f"{command[0]} to capture")
            yield Observer(group)
        finally:
            stop(process, by=signal.SIGINT)
            for written in (output, log.parent / "load.pcap"):
                written.unlink(missing_ok=True)


def _program_info(program_id: int) -> str:
    """Return the kernel's information on a BPF program, which only has to be attached."""
    attributes = struct.pack("=III", program_id, 0, 0)
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(_BPF_CALL, _PROG_GET_FD_BY_ID, attributes, len(attributes))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"cannot open BPF program {program_id}")
    try:
        return Path("/proc/self/fdinfo", str(descriptor)).read_text()
    finally:
        os.close(descriptor)


def _number(name: str, file: Path) -> int:
    return int(_value(name, file.read_text()))


def _value(name: str, text: str) -> str:
    found = re.search(rf"^{name}\s+(\d+)", text, re.MULTILINE)
    assert found is not None, f"no {name} in {text}"
    return found[1]
