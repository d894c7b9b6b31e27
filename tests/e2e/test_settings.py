"""A running agent that may take next to no CPU, and one that is told to read its settings again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.golden.conversation import conversation, exchange
from tests.lab.processes import free_port, wait_until
from tests.lab.product import Watched

pytestmark = pytest.mark.root


@contextmanager
def asking(port: int) -> Iterator[None]:
    """A client that asks about topics, again and again."""
    enough = Event()

    def ask() -> None:
        with conversation(port) as talk:
            number = 0
            while not enough.wait(0.02):
                exchange(talk, [number := number + 1])

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_above_its_limit_of_cpu_it_tells_counts_only_until_it_is_told_to_take_more(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "settings.toml"
    watched = Watched(tmp_path, port, "--config", str(file))
    file.write_text('requests = "all"\ncpu_limit = 1e-6\n')
    with asking(port), watched.agent:
        watched.wait_for(1, "topics to be left out", kind="agent", shed="topics")
        poor = len(watched.wait_for(2, "flows without topics", kind="flow", topics=[]))
        told = len(watched.events(kind="request"))
        file.write_text('requests = "all"\nnode = "elsewhere"\n')
        os.kill(watched.agent.pid, signal.SIGHUP)
        watched.wait_for(told + 1, "requests to be told again", kind="request")
        wait_until(lambda: watched.events(kind="flow")[-1]["topics"] != [], "flows with topics again")
    last = watched.events(kind="agent")[-1]
    assert last["shed"] is None
    assert last["losses"]["request_shed"] > 0
    assert last["losses"]["topics_shed"] >= poor
    assert last["node"] != "elsewhere"
    assert "Changed settings that take effect at the next start: node." in watched.agent.log.read_text()


def test_settings_that_are_wrong_change_nothing(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "settings.toml"
    watched = Watched(tmp_path, port, "--config", str(file))
    file.write_text('requests = "all"\n')
    with asking(port), watched.agent:
        file.write_text('requests = "none"\n')
        os.kill(watched.agent.pid, signal.SIGHUP)
        said = f"The settings stay as they are. requests in {file}: must be off, all, errors"
        wait_until(lambda: said in watched.agent.log.read_text(), "the mistake to be named")
        told = len(watched.events(kind="request"))
        watched.wait_for(told + 1, "requests to be told still", kind="request")
