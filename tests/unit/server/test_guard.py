"""Responses to hostile clients of the server: other Hosts, floods, long queries, and unread responses."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest
from starlette.responses import Response
from starlette.types import Message

from kafka_probe.server import exposition, http, http_connection, limits, query
from kafka_probe.server.exposition import Built, Exposition, Page, PageResponse, Pages
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
    """Send bytes and nothing after them; return the answer."""
    with served.connect() as peer:
        peer.sendall(request)
        return until_end(peer)


def until_end(peer: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
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
    requests = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 19
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with serving() as served, ThreadPoolExecutor(8) as clients:
        answers = b"".join(clients.map(lambda _: exchange(served, requests + last), range(80)))
        cpu_s, elapsed_s = cpu_s_of_threads("server-http"), time.monotonic() - began
    assert answers.count(b"HTTP/1.1 200 OK") == 1600
    assert 0.1 < cpu_s < limits.HTTP_CPU_SHARE * elapsed_s + 0.15


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
    monkeypatch.setattr(exposition, "_ROWS_AT_ONCE", 7)
    assert page() == whole
    assert whole.count("# TYPE kafka_probe_workload_latency_seconds histogram") == 1


@pytest.mark.parametrize("long", [b"x: y\r\n" * 64, b"x: " + b"y" * (16 << 10) + b"\r\n"])
def test_a_long_request_is_refused_in_whatever_parts_it_arrives(long: bytes) -> None:
    """A parser that limits only requests that are incomplete does not see one that arrives at once."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + long + b"\r\n"
    with serving() as served:
        for parts in ([request], [request[:100], request[100:-2], request[-2:]]):
            with served.connect() as peer:
                for part in parts:
                    with suppress(ConnectionError):  # the answer came before the last part
                        peer.sendall(part)
                answer = until_end(peer)
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert answer.endswith(b"A request may have 16384 bytes and 64 lines.\n")


def test_what_a_client_sends_before_its_answer_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = threading.Event()
    monkeypatch.setattr(View, "add", lambda *_: enough.wait())
    with serving() as served, served.connect() as peer:
        try:
            served.server.send([flow()])
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n")
            assert served.get("/healthz").text == "ok\n"
            peer.sendall(b"x" * (16 << 10))
            with suppress(ConnectionError):
                assert peer.recv(1) == b""
        finally:
            enough.set()


def test_what_a_client_sends_ahead_counts_for_its_next_request() -> None:
    ahead = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 50
    with serving() as served, served.connect() as peer, peer.makefile("rb") as answers:
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + ahead)
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
        assert b"ok\n" in iter(answers.readline, b"")
        peer.sendall(b"x: y\r\n" * 50 + b"\r\n")
        assert answers.readline() == b"HTTP/1.1 400 Bad Request\r\n"


def test_nonsense_after_an_answer_ends_the_connection_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served, served.connect() as peer:
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert peer.recv(65536).startswith(b"HTTP/1.1 200 OK")
        peer.sendall(b"zz\r\n")
        with suppress(ConnectionError):
            until_end(peer)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("method", ["CONNECT", "POST"])
def test_health_is_only_read(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served:
        request = f"{method} /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert exchange(served, request.encode()).startswith(b"HTTP/1.1 405 ")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_many_parameters_take_little_time_of_the_http_thread() -> None:
    target = "/api/v1/clients?" + "&".join(["sort=ts"] * 1990)
    with serving() as served, ThreadPoolExecutor(8) as clients:
        before = cpu_s_of_threads("server-http")
        assert {*clients.map(lambda _: status(served, target, "Host: localhost"), range(40))} <= {200, 429}
        assert cpu_s_of_threads("server-http") - before < 1


def test_a_head_request_has_no_body() -> None:
    with serving() as served:
        answer = exchange(served, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert body == b""


def test_requests_of_one_connection_are_limited_one_by_one() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10_000 + b"\r\n\r\n"
    with serving() as served, served.connect() as peer, peer.makefile("rb") as answers:
        for _ in range(5):
            peer.sendall(request)
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            assert b"ok\n" in iter(answers.readline, b"")


def test_while_a_page_of_metrics_is_built_the_last_one_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH_S", 0)
    shown, pages = view(flow()), Pages()

    async def answers() -> list[Response]:
        built = asyncio.Event()

        async def build(page: Coroutine[None, None, Built], /) -> Built:
            await built.wait()
            return await page

        plain = Exposition(shown, build, "", pages)
        first = asyncio.create_task(plain.answer())
        await asyncio.sleep(0)
        early = await plain.answer()
        built.set()
        page = await first
        shown.add([flow()])
        built.clear()
        second = asyncio.create_task(plain.answer())
        await asyncio.sleep(0)
        late = await plain.answer()
        built.set()
        return [early, page, late, await second]

    early, first, late, second = asyncio.run(answers())
    assert early.status_code == 429
    assert page_of(late).page is page_of(first).page is not page_of(second).page


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


def page_of(response: Response) -> PageResponse:
    assert isinstance(response, PageResponse)
    return response


def test_pages_of_metrics_that_are_read_slowly_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH_S", 0)
    shown, pages = view(flow()), Pages()
    plain = Exposition(shown, lambda page: page, "", pages)

    async def receive() -> Message:
        raise AssertionError

    async def answered() -> list[Page]:
        goes_on = asyncio.Event()

        async def send(_: Message) -> None:
            await goes_on.wait()

        answers, readers = [], []
        for _ in range(10):
            shown.add([flow()])
            answers.append(page_of(await plain.answer()))
            readers.append(asyncio.create_task(answers[-1]({"type": "http", "method": "GET"}, receive, send)))
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(*readers)
        shown.add([flow()])
        return [answer.page for answer in (*answers, page_of(await plain.answer()))]

    *slow, last = asyncio.run(answered())
    assert len(set(map(id, slow))) == 2
    assert last not in slow
    assert pages.sent == 0


def test_an_answer_is_sent_in_parts_of_32_kib() -> None:
    body, parts = b"x" * (2 * (32 << 10) + 1), []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    asyncio.run(http._Chunked(body)({"type": "http"}, receive, send))
    assert [len(part) for part in parts if part] == [32 << 10, 32 << 10, 1]
    assert b"".join(parts) == body


def test_a_page_of_metrics_is_made_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH_S", 3600)
    with serving() as served:
        first = served.get("/metrics").text
        served.server.send([flow()])
        assert served.get("/metrics").text == first
        monkeypatch.setattr(exposition, "FRESH_S", 0)
        wait_until(lambda: served.get("/metrics").text != first, "another page")
