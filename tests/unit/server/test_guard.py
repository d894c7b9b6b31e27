"""Responses to hostile clients of the server: other Hosts, other methods, floods, and pages that take long."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafka_probe.server import limits, query
from kafka_probe.server.exposition import Exposition
from kafka_probe.server.view import View
from tests.builders.events import flow
from tests.builders.fed_agent import Fed
from tests.builders.samples import opened
from tests.lab.agent_server import Served, serving
from tests.lab.processes import wait_until

NAMES = ("agent-1", "agent-1.example")


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    with serving(http_host=NAMES) as served:
        yield served


def status(served: Served, path: str, *headers: str, version: str = "1.1") -> int:
    lines = (f"GET {path} HTTP/{version}", *headers, "Connection: close", "", "")
    return int(served.exchange("\r\n".join(lines).encode("latin-1")).split()[1])


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:9465", "10.0.0.7:1", "[::1]", "[::1]:9465", "[fe80::1]:80"),
        *("localhost", "LOCALHOST:9465", "localhost.", "agent-1:9465", "AGENT-1.example", "agent-1.example."),
    ],
)
def test_a_host_that_cannot_be_a_rebound_name_is_answered(named: Served, path: str, host: str) -> None:
    assert status(named, path, f"Host: {host}") == 200


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nowhere"])
@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:9465",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "agent-10",
            "example",
        ),
        *("", "::1", "[::1", "[::1].evil.example", "[127.0.0.1]", "[localhost]", "127.0.0.1:80:80", "127.0.0.1:"),
        *("127.1", "2130706433", "0x7f.1", "127.0.0.1@evil.example", "localhost/evil", "tökén"),
    ],
)
def test_any_other_host_is_misdirected(named: Served, path: str, host: str) -> None:
    assert status(named, path, f"Host: {host}") == 421


def test_the_refusal_says_what_to_do_and_repeats_nothing(named: Served) -> None:
    answer = named.exchange(b"GET /metrics/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert b"--http-host" in answer
    assert b"evil" not in answer


def test_without_a_host_only_a_client_of_http_1_0_is_answered(named: Served) -> None:
    assert status(named, "/healthz", version="1.0") == 200
    assert status(named, "/healthz") == 400


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_two_hosts_are_no_request(named: Served, version: str) -> None:
    assert status(named, "/healthz", "Host: localhost", "Host: localhost", version=version) == 400


@pytest.mark.parametrize("target", ["http://evil.example/healthz", "http://localhost/metrics", "*", "localhost:9465"])
def test_a_target_that_names_a_host_itself_is_misdirected(named: Served, target: str) -> None:
    assert status(named, target, "Host: localhost") == 421


@pytest.mark.parametrize("path", ["/metrics/", "//metrics", "/api/v1/clients/"])
def test_no_answer_leads_elsewhere(named: Served, path: str) -> None:
    answer = named.exchange(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"location" not in answer.lower()


def test_more_requests_than_the_rate_are_refused_and_health_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS_PER_S", 0)
    with serving() as served:
        assert [served.get("/metrics").status for _ in range(limits.REQUESTS_AT_ONCE)] == [
            200
        ] * limits.REQUESTS_AT_ONCE
        refused = served.get("/metrics")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"].endswith(".")
        assert served.get("/healthz").status == served.get("/readyz").status == 200


def test_the_rate_recovers() -> None:
    rate = limits.Rate()
    taken = sum(rate.take() for _ in range(10 * limits.REQUESTS_AT_ONCE))
    assert limits.REQUESTS_AT_ONCE <= taken < 2 * limits.REQUESTS_AT_ONCE
    wait_until(rate.take, "the next one")


def cpu_s_of_threads(name: str) -> float:
    """Return the CPU time in seconds of the running threads with this name."""
    # The times in /proc are counted in ticks of 10 ms.
    running = [thread.ident for thread in threading.enumerate() if thread.name == name]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in running if ident)


def test_whatever_clients_do_the_http_thread_stays_below_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CPU_BURST_S", 0.02)
    # The fixture `named` has a server of its own.
    began, others_cpu_s = time.monotonic(), cpu_s_of_threads("server-http")
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving() as served, ThreadPoolExecutor(8) as clients:
        answers = [*clients.map(lambda _: served.exchange(request), range(600))]
        cpu_s, elapsed_s = cpu_s_of_threads("server-http") - others_cpu_s, time.monotonic() - began
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
    # No pause has followed the last turn yet. Without pauses the thread takes several times as much.
    last_turn_s = 0.02
    assert 2 * limits.CPU_BURST_S < cpu_s < limits.CPU_BURST_S + limits.HTTP_CPU_SHARE * elapsed_s + last_turn_s


def test_sums_of_events_are_no_clients_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a flood would hold up the events, and these would fill the memory."""
    monkeypatch.setattr(limits, "CPU_BURST_S", 0.0)
    pace = limits.PacedSelector(limits.DATA_CPU_SHARE)
    try:
        pace.select(0)
        began = time.monotonic()
        for _ in range(5):
            with pace.uncounted():
                until_s = time.thread_time() + 0.1
                while time.thread_time() < until_s:
                    pass
            pace.select(0)
        assert pace.cpu_s >= 0.5
        assert time.monotonic() - began < pace.cpu_s / limits.DATA_CPU_SHARE
    finally:
        pace.close()


def test_health_is_answered_while_a_long_list_is_made() -> None:
    fed = Fed()
    fed.see(opened(1))
    with serving(connections=fed.agent.connections() * 100_000) as served, served.connect() as peer:
        peer.sendall(b"GET /api/v1/connections?sort=local HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert served.get("/healthz").text == "ok\n"
        assert select.select([peer], [], [], 0)[0] == []


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/clients"])
def test_health_is_answered_while_nothing_else_is(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = threading.Event()
    monkeypatch.setattr(View, "add", lambda *_: enough.wait())
    with serving() as served, served.connect() as peer:
        try:
            served.server.send([flow()])
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert served.get("/healthz").text == served.get("/readyz").text == "ok\n"
            assert select.select([peer], [], [], 0)[0] == []
        finally:
            enough.set()
        assert peer.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("method", ["CONNECT", "POST"])
def test_health_is_only_read(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served:
        request = f"{method} /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert served.exchange(request.encode()).startswith(b"HTTP/1.1 405 ")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/clients"])
def test_a_request_for_a_page_that_a_stop_interrupts_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    building = threading.Event()

    async def endless(*_: object) -> bytes:
        building.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Exposition, "_make", endless)
    monkeypatch.setattr(query, "page", endless)
    with serving() as served, served.connect() as peer:
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert building.wait(10)
        served.server.close()
        answer = peer.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b'{"error":"The agent is stopping."}')
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
