"""Responses to hostile clients of the server: other Hosts, floods, long queries, and unread responses."""

from __future__ import annotations

import asyncio
import re
import select
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from starlette.types import Message

from kafka_probe.server import http, http_connection, limits, query
from kafka_probe.server.view import View
from tests.builders.events import flow, view
from tests.builders.fed_agent import Fed
from tests.builders.samples import opened
from tests.lab.agent_server import Served, serving
from tests.lab.processes import wait_until

NAMES = ("agent-1", "agent-1.example")


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    with serving(http_host=NAMES) as served:
        yield served


def exchange(served: Served, request: bytes) -> bytes:
    """The answer to bytes after which nothing is sent."""
    with served.connect() as peer:
        peer.sendall(request)
        return b"".join(iter(lambda: peer.recv(65536), b""))


def status(served: Served, path: str, *headers: str, version: str = "1.1") -> int:
    lines = (f"GET {path} HTTP/{version}", *headers, "Connection: close", "", "")
    return int(exchange(served, "\r\n".join(lines).encode("latin-1")).split()[1])


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
    answer = exchange(named, b"GET /metrics/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
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
    answer = exchange(named, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
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
    ids = {thread.native_id for thread in threading.enumerate() if thread.name == name}
    return sum(float(each.user_time + each.system_time) for each in psutil.Process().threads() if each.id in ids)


def test_whatever_clients_do_the_http_thread_stays_below_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CPU_BURST_S", 0.02)
    began = time.monotonic()
    requests = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 199
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with serving() as served, ThreadPoolExecutor(8) as clients:
        answers = b"".join(clients.map(lambda _: exchange(served, requests + last), range(8)))
        cpu_s, elapsed_s = cpu_s_of_threads("server-http"), time.monotonic() - began
    assert answers.count(b"HTTP/1.1 200 OK") == 1600
    assert 0.1 < cpu_s < limits.CPU_SHARE * elapsed_s + 0.05


def test_sums_of_events_are_no_clients_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a flood would hold up the events, and these would fill the memory."""
    monkeypatch.setattr(limits, "CPU_BURST_S", 0.0)
    pace = limits.PacedSelector()
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
        assert time.monotonic() - began < pace.cpu_s / limits.CPU_SHARE
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


def test_who_does_not_read_an_answer_holds_it_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "PATIENCE_S", 2)
    monkeypatch.setattr(http, "LISTS_AT_ONCE", 1)
    monkeypatch.setattr(query, "PAGE_BYTES", 1 << 26)
    with serving() as served, served.connect() as peer:
        named = ({"id": f"{n}" * 65536, "software_name": None, "software_version": None} for n in range(400))
        served.server.send([flow(client=client) for client in named])
        peer.sendall(b"GET /api/v1/clients?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: served.get("/api/v1/clients?limit=1").status == 429, "the list to be under way")
        wait_until(lambda: served.get("/api/v1/clients?limit=1").status == 200, "its end")


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_metrics_are_made_in_parts_that_are_one_page(monkeypatch: pytest.MonkeyPatch, accept: str) -> None:
    flows = [flow(api=f"Api{n}", latency={"40": n}, errors={"1": 1}) for n in range(1, 40)]

    def page() -> str:
        with serving() as served:
            served.server.send(flows)
            return re.sub(r"(start_time_seconds|cpu_seconds_total) .*", "", served.get("/metrics", accept=accept).text)

    whole = page()
    monkeypatch.setattr(http, "_SAMPLES_AT_ONCE", 7)
    assert page() == whole
    assert whole.count("# TYPE kafka_probe_workload_latency_seconds histogram") == 1


def test_pages_of_metrics_that_are_read_slowly_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FRESH_S", 0)
    shown, sent = view(flow()), http._Sent()
    exposition = http._Exposition(shown, lambda page: page, "", sent)

    async def receive() -> Message:
        raise AssertionError

    async def pages() -> list[bytes]:
        goes_on = asyncio.Event()

        async def send(_: Message) -> None:
            await goes_on.wait()

        answers, readers = [], []
        for _ in range(10):
            shown.add([flow()])
            answers.append(await exposition.answer())
            readers.append(asyncio.create_task(answers[-1]({"type": "http"}, receive, send)))
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(*readers)
        shown.add([flow()])
        return [bytes(answer.body) for answer in (*answers, await exposition.answer())]

    *slow, last = asyncio.run(pages())
    assert len(set(slow)) == 2
    assert last not in slow
    assert sent.pages == 0


def test_an_answer_is_sent_in_parts_of_64_kib() -> None:
    body, parts = b"x" * (2 * (64 << 10) + 1), []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    asyncio.run(http._Chunked(body)({"type": "http"}, receive, send))
    assert [len(part) for part in parts if part] == [64 << 10, 64 << 10, 1]
    assert b"".join(parts) == body


def test_a_page_of_metrics_is_made_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FRESH_S", 3600)
    with serving() as served:
        first = served.get("/metrics").text
        served.server.send([flow()])
        assert served.get("/metrics").text == first
        monkeypatch.setattr(http, "_FRESH_S", 0)
        assert served.get("/metrics").text != first
