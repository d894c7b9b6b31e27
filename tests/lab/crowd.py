"""Holds very many open, silent connections over loopback: both ends in a few processes, within open-file limits.

Each process listens on an address of its own and connects to itself, so that no two run out of ports. They exchange
ApiVersions and its response, so that every connection is Kafka's.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.builders.wire import API_VERSIONS, request, response
from tests.lab.network import Namespace
from tests.lab.processes import LabError, start, stop, tail, wait_until

ROOT = Path(__file__).parents[2]
_SPARE_FILES = 100
_MOST = 20_000  # connections of a process, limited by the ports between two addresses
_TIMEOUT_S = 300
_VERSION = 3


class Crowd:
    """`with Crowd(...) as crowd:` keeps connections inside a network namespace open and silent until the end.

    Raises:
        LabError: they could not be opened; the text ends with the log's tail.
    """

    def __init__(self, namespace: Namespace, port: int, connections: int, directory: Path) -> None:
        most = min(_MOST, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE_FILES) // 2)
        processes = -(-connections // most)
        self._counts = [connections // processes + (number < connections % processes) for number in range(processes)]
        self._namespace = namespace
        self._port = port
        self._log = directory / "crowd.log"
        self._answers = directory / "crowd.out"
        self._orders = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> Sequence[int]:
        """Return the ids of its processes."""
        return [process.pid for process in self._processes]

    def speak(self) -> None:
        """Let every client send a request and its server answer; return when all have."""
        self._order("speak")

    def _order(self, order: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{order}\n".encode())
            process.stdin.flush()
        self._orders += 1
        wait_until(self._is_done, f"the crowd to {order}", timeout_s=_TIMEOUT_S)

    def _is_done(self) -> bool:
        if any(process.poll() is not None for process in self._processes):
            raise LabError(f"a part of the crowd ended:\n{tail(self._log)}")
        return self._answers.read_text().count("done") >= self._orders * len(self._processes)

    def __enter__(self) -> Self:
        self._answers.write_text("")
        try:
            with self._namespace.inside():
                for number, count in enumerate(self._counts, 1):
                    command = [sys.executable, "-m", __name__, f"127.0.1.{number}", str(self._port), str(count)]
                    self._processes.append(
                        start(command, log=self._log, stdout=self._answers, cwd=ROOT, piped_input=True)
                    )
            self._order("open")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            stop(process)
            assert process.stdin is not None
            process.stdin.close()


class _Part:
    """The connections of one process."""

    def __init__(self, address: str, port: int, count: int) -> None:
        self._count = count
        self._listener = socket.create_server((address, port))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def open(self) -> None:
        for _ in range(self._count):
            client = socket.create_connection(self._listener.getsockname())
            self._pairs.append((client, self._listener.accept()[0]))

    def speak(self) -> None:
        asked, answered = request(API_VERSIONS, _VERSION).wire, response(API_VERSIONS, _VERSION).wire
        for client, server in self._pairs:
            client.sendall(asked)
            server.recv(len(asked), socket.MSG_WAITALL)
            server.sendall(answered)
            client.recv(len(answered), socket.MSG_WAITALL)


def main() -> None:
    address, port, count = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    part = _Part(address, int(port), int(count))
    for order in sys.stdin:
        getattr(part, order.strip())()
        print("done", flush=True)


if __name__ == "__main__":
    main()
