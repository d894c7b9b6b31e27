"""Processes that exit before the agent looks: each connection keeps its owner, also when a pid is reused."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from tests.builders.wire import METADATA, request, response
from tests.lab.clients import ROOT
from tests.lab.processes import wait_until
from tests.lab.product import Watched

pytestmark = pytest.mark.root

HOST = "127.0.0.1"
FORKS, LIVES = 1_000, 5
ASKED, ANSWER = request(METADATA, 12).wire, response(METADATA, 12).wire


@contextmanager
def server() -> Iterator[int]:
    """Run a server that answers one request per connection; yield its port."""

    def serve() -> None:
        while True:
            with listener.accept()[0] as accepted:
                if not accepted.recv(len(ASKED), socket.MSG_WAITALL):
                    return
                accepted.sendall(ANSWER)

    with socket.create_server((HOST, 0), backlog=128) as listener:
        port: int = listener.getsockname()[1]
        thread = Thread(target=serve)
        thread.start()
        yield port
        socket.create_connection((HOST, port)).close()
        thread.join()


def live(port: int, count: int, *pid: str) -> list[list[str]]:
    """Run the processes; return name, pid and address of each."""
    command = [sys.executable, "-m", "tests.lab.short_lived", HOST, str(port), ASKED.hex(), str(count), *pid]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout
    return [line.rsplit(" ", 2) for line in output.splitlines()]


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Watched]]:
    with server() as port:
        watched = Watched(tmp_path_factory.mktemp("watching"), port, "--side", "client")
        with watched.agent:
            yield port, watched


def ends_of(lived: list[list[str]], watched: Watched) -> list[dict[str, Any]]:
    """Return the `close` events of these processes, once all are reported."""
    names = {name for name, _, _ in lived}

    def ends() -> list[dict[str, Any]]:
        return [event for event in watched.events(kind="close") if event["workload"]["comm"] in names]

    wait_until(lambda: len(ends()) == len(lived), "all ends to be reported", every_s=0.5)
    return ends()


def owners(events: Iterable[dict[str, Any]]) -> list[list[str]]:
    owned = ((event["workload"], event["local"]) for event in events)
    return sorted([workload["comm"], str(workload["pid"]), local] for workload, local in owned)


def test_every_connection_of_a_storm_of_forks_keeps_its_owner(watching: tuple[int, Watched]) -> None:
    port, watched = watching
    lived = live(port, FORKS)
    assert len({name for name, _, _ in lived}) == FORKS
    ends = ends_of(lived, watched)
    assert owners(ends) == sorted(lived)
    assert {event["owner_ended"] for event in ends} == {True}


def test_a_pid_that_is_given_again_is_another_process(watching: tuple[int, Watched]) -> None:
    port, watched = watching
    ((_, pid, _),) = live(port, 1)
    lived = live(port, LIVES, pid)
    assert [(name, again) for name, again, _ in lived] == [(f"life {number}", pid) for number in range(LIVES)]
    ends = ends_of(lived, watched)
    assert owners(ends) == sorted(lived)
    assert len({event["workload"]["start_time"] for event in ends}) == LIVES
