"""A running agent: its CPU limit, the settings that SIGHUP reloads, and the capabilities that it has dropped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread

import pytest

from kafka_probe.privileges import Capability
from kafka_probe.server.limits import CPU_BURST_S, DATA_CPU_SHARE, HTTP_CPU_SHARE
from tests.builders.wire import METADATA, request
from tests.lab.conversation import conversation, exchange
from tests.lab.http import get, samples
from tests.lab.processes import free_port, wait_until
from tests.lab.product import Watched

pytestmark = pytest.mark.root


@contextmanager
def asking(port: int, pause_s: float = 0.02) -> Iterator[None]:
    """Run a client that asks about topics repeatedly."""
    enough = Event()

    def ask() -> None:
        with conversation(port) as talk:
            number = 0
            while not enough.wait(pause_s):
                exchange(talk, [number := number + 1])

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_above_its_limit_of_cpu_it_reports_counts_only_until_the_limit_is_lifted(port: int, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    address = f"127.0.0.1:{free_port()}"
    watched = Watched(tmp_path, port, "--config", str(file), "--listen", address)
    file.write_text('requests = "all"\ncpu_limit = 1e-6\n')
    with asking(port), watched.agent:
        watched.wait_for(1, "topics to be left out", kind="agent", shed="topics")
        assert shed(address) == {"requests": 1, "topics": 1}
        poor = len(watched.wait_for(2, "flows without topics", kind="flow", topics=[]))
        reported = len(watched.events(kind="request"))
        file.write_text('requests = "all"\nnode = "elsewhere"\n')
        os.kill(watched.agent.pid, signal.SIGHUP)
        watched.wait_for(reported + 1, "requests to be reported again", kind="request")
        wait_until(lambda: watched.events(kind="flow")[-1]["topics"] != [], "flows with topics again")
        wait_until(lambda: shed(address) == {"requests": 0, "topics": 0}, "the metrics to say so")
    last = watched.events(kind="agent")[-1]
    assert last["shed"] is None
    assert last["losses"]["request_shed"] > 0
    assert last["losses"]["topics_shed"] >= poor
    assert last["node"] != "elsewhere"
    assert "Restart the agent to apply these changed settings: node." in watched.agent.log.read_text()


def test_what_was_left_out_returns_when_it_takes_less(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port, "--requests", "all", "--cpu-limit", "0.05", interval_s=1)
    with watched.agent:
        watched.wait_for(1, "it to be there", kind="agent", shed=None)
        with asking(port, pause_s=0):
            watched.wait_for(1, "detail to be left out", kind="agent", shed="requests")
        wait_until(lambda: watched.events(kind="agent")[-1]["shed"] is None, "it to return", timeout_s=60)


def test_no_detail_is_left_out_for_those_who_ask_for_pages(port: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    watched = Watched(tmp_path, port, "--requests", "all", "--cpu-limit", "0.1", "--listen", address, interval_s=1)
    with watched.agent:
        before = len(watched.wait_for(1, "it to be there", kind="agent"))
        with ThreadPoolExecutor(8) as busy:
            enough = Event()
            asking_pages = [busy.submit(ask_pages, address, enough) for _ in range(8)]
            try:
                reported = watched.wait_for(before + 5, "five intervals", kind="agent")[before:]
            finally:
                enough.set()
            statuses = sum((asked.result() for asked in asking_pages), Counter[int]())
    assert [event["shed"] for event in reported] == [None] * len(reported)
    assert statuses.keys() == {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}
    seconds = (reported[-1]["ts"] - reported[0]["ts"]) / 1e6
    spent_s = (reported[-1]["cpu_us"] - reported[0]["cpu_us"]) / 1e6
    assert spent_s < 2 * CPU_BURST_S + (HTTP_CPU_SHARE + DATA_CPU_SHARE + 0.1) * seconds


def ask_pages(address: str, enough: Event) -> Counter[int]:
    """Request pages until the event is set; return the number of responses by status."""
    statuses = Counter[int]()
    while not enough.is_set():
        statuses[get(f"http://{address}/metrics").status] += 1
    return statuses


def shed(address: str) -> dict[str, float]:
    """Return the details that are left out, by the metrics."""
    now = samples(get(f"http://{address}/metrics").text)
    return {detail: now["kafka_probe_shed", frozenset({("detail", detail)})] for detail in ("requests", "topics")}


def test_how_often_it_reports_and_how_it_logs_change_without_a_restart(port: int, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    watched = Watched(tmp_path, port, "--config", str(file), interval_s=None)
    file.write_text('interval_s = 3600\nlog_level = "error"\n')
    with watched.agent:
        reported = len(watched.wait_for(1, "it to be there", kind="agent"))
        assert watched.agent.log.read_text() == ""
        file.write_text('interval_s = 0.1\nlog_level = "info"\nlog_format = "json"\n')
        os.kill(watched.agent.pid, signal.SIGHUP)
        watched.wait_for(reported + 5, "reports every tenth of a second", kind="agent")
    (message, *_) = map(json.loads, watched.agent.log.read_text().splitlines())
    assert (message["level"], message["message"]) == (
        "info", "Settings reloaded: interval_s, log_format, log_level changed.",
    )  # fmt: skip


def test_settings_that_are_wrong_change_nothing(port: int, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    watched = Watched(tmp_path, port, "--config", str(file))
    file.write_text('requests = "all"\n')
    with asking(port), watched.agent:
        file.write_text('requests = "none"\n')
        os.kill(watched.agent.pid, signal.SIGHUP)
        message = f"Settings not reloaded. requests in {file}: must be off, all, errors"
        wait_until(lambda: message in watched.agent.log.read_text(), "the mistake to be named")
        reported = len(watched.events(kind="request"))
        watched.wait_for(reported + 1, "requests to be reported still", kind="request")


STRANGER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as broker:
    broker.sendall(bytes.fromhex(sys.argv[2]))
    sys.stdin.read()
"""


def test_it_keeps_two_capabilities_only_and_names_the_processes_of_others_all_the_same(
    port: int, tmp_path: Path
) -> None:
    watched = Watched(tmp_path, port)
    kept = 1 << Capability.SYS_PTRACE | 1 << Capability.DAC_READ_SEARCH
    question = request(METADATA, 12, 1).wire.hex()
    command = ["/usr/bin/python3", "-c", STRANGER, str(port), question]
    with watched.agent, socket.create_server(("127.0.0.1", port)):
        watched.wait_for(2, "its sink to be at work", kind="agent")
        threads = [status.read_text() for status in Path(f"/proc/{watched.agent.pid}/task").glob("*/status")]
        with subprocess.Popen(command, user=65534, stdin=subprocess.PIPE) as stranger:
            opened, *_ = watched.wait_for(1, "the stranger to be seen", kind="open", side="client")
            assert stranger.stdin is not None
            stranger.stdin.close()
    assert len(threads) > 1
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert {int(line.split()[1], 16) for text in threads for line in text.splitlines() if name in line} == {kept}
    workload = opened["workload"]
    assert (workload["pid"], workload["uid"]) == (stranger.pid, 65534)
    assert workload["exe"] == str(Path(command[0]).resolve())
