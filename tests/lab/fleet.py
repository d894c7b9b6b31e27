"""Runs many producers of one library in one process, in a namespace and a cgroup of the lab, by commands."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.lab.java import SHORT_LIVED, java
from tests.lab.libraries import Library, Settings
from tests.lab.network import Connection, Namespace
from tests.lab.processes import LabError, start, stop, tail, wait_until
from tests.lab.sockets import sockets

ROOT = Path(__file__).parents[2]
_PROGRAMS = Path(__file__).parent / "producers"


class Fleet:
    """`with Fleet(...) as fleet:` runs a process with `count` producers until the end; its log is `log`.

    `inside` is the directory of a cgroup.

    Raises:
        LabError: it did not start or did not carry out an order in time; the text ends with the log's tail.
    """

    def __init__(
        self,
        namespace: Namespace,
        library: Library,
        settings: Settings,
        directory: Path,
        *,
        count: int,
        topic: str,
        name: str,
        inside: Path | None = None,
    ) -> None:
        self.name = name
        self.count = count
        self.log = directory / f"{name}.log"
        self._answers = directory / f"{name}.out"
        self._namespace = namespace
        self._inside = inside
        named = (f"{setting}={value}" for setting, value in settings.of(library).items())
        self._command = [*_program(library), name, str(count), topic, *named]
        self._orders = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._running.pid

    def order(self, order: str) -> None:
        """Send a command, and return at once."""
        orders = self._running.stdin
        assert orders is not None
        orders.write(f"{order}\n".encode())
        orders.flush()
        self._orders += 1

    def wait_done(self) -> None:
        """Wait until all commands are carried out."""
        wait_until(self._is_done, f"{self.name} to carry out its orders", timeout_s=90)

    def send(self, size: int = 100) -> None:
        """Let every producer send a record of that size; wait until each was delivered or given up."""
        self.order(f"send {size}")
        self.wait_done()

    def connections(self) -> set[Connection]:
        """Return its established connections."""
        return {one.connection for one in sockets(self._namespace) if one.pid == self.pid and one.state == "ESTAB"}

    def end(self, order: Literal["stop", "leave"]) -> None:
        """Send a command that ends it, and wait until it has ended."""
        self.order(order)
        self.wait_ended()

    def wait_ended(self) -> None:
        """Wait until its process has ended."""
        wait_until(lambda: self._running.poll() is not None, f"{self.name} to end", timeout_s=60)

    def kill(self) -> None:
        """Kill it without notice: SIGKILL."""
        stop(self._running, by=signal.SIGKILL)

    def __enter__(self) -> Self:
        for leftover in (self.log, self._answers):
            leftover.unlink(missing_ok=True)
        with self._namespace.inside():
            self._process = start(
                self._command, log=self.log, stdout=self._answers, cwd=ROOT, inside=self._inside, piped_input=True
            )
        self._orders = 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._running, by=signal.SIGKILL)
        if orders := self._running.stdin:
            orders.close()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LabError(f"{self.name} was not started")
        return self._process

    def _is_done(self) -> bool:
        if (status := self._running.poll()) is not None:
            raise LabError(f"{self.name} ended with status {status}:\n{tail(self.log)}")
        return self._answers.read_text().count("done\n") >= self._orders


def _program(library: Library) -> Sequence[str]:
    if library == "java":
        return java(str(_PROGRAMS / "Producers.java"), options=SHORT_LIVED)
    return (sys.executable, "-m", f"tests.lab.producers.{library.replace('-', '_')}")
