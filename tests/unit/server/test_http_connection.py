"""Connections to the server: how long requests, answers and silence may be, and what the kernel keeps of answers."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from starlette.types import Message

from kafka_probe.server import http, http_connection, query, server
from kafka_probe.server.http_connection import MOST
from kafka_probe.server.view import View
from tests.builders.events import flow
from tests.lab.agent_server import Served, serving, unread_bytes, until_end
from tests.lab.processes import wait_until


def test_who_does_not_read_an_answer_holds_it_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT_S", 2)
    monkeypatch.setattr(http, "LISTS_AT_ONCE", 1)
    monkeypatch.setattr(query, "PAGE_BYTES", 1 << 26)
    with serving() as served, served.connect() as peer:
        named = ({"id": f"{n}" * 65536, "software_name": None, "software_version": None} for n in range(400))
        served.server.send([flow(client=client) for client in named])
        peer.sendall(b"GET /api/v1/clients?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: served.get("/api/v1/clients?limit=1").status == 429, "the list to be under way")
        wait_until(lambda: served.get("/api/v1/clients?limit=1").status == 200, "its end")


@pytest.mark.parametrize("long", [b"x: y\r\n" * 64, b"x: " + b"y" * (16 << 10) + b"\r\n"])
def test_a_long_request_is_refused_in_whatever_parts_it_arrives(long: bytes) -> None:
    """A parser that limits only requests that are incomplete does not see one that arrives at once."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + long + b"\r\n"
    with serving() as served:
        for parts in ([request], [request[:100], request[100:-2], request[-2:]]):
            with served.connect() as peer:
                answer = b""
                with suppress(ConnectionError):  # the answer came before the last part
                    for part in parts:
                        peer.sendall(part)
                with suppress(ConnectionError):  # and that part after the end of the connection
                    while received := peer.recv(1 << 16):
                        answer += received
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert answer.endswith(b"A request may have 16384 bytes and 64 lines.\n")


def test_a_connection_is_for_one_request() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving() as served:
        answer = served.exchange(request)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in answer.lower()
        with suppress(ConnectionError):
            assert served.exchange(request + request) == b""


@pytest.mark.parametrize(
    ("head", "more"),
    [(b"Content-Length: 99999\r\n", b"x" * (16 << 10)), (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")],
    ids=["a long body", "another request"],
)
def test_a_client_that_sends_more_while_its_answer_is_built_is_cut_off(
    head: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = threading.Event()
    monkeypatch.setattr(View, "add", lambda *_: enough.wait())
    with serving() as served, served.connect() as peer:
        try:
            served.server.send([flow()])
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
            assert served.get("/healthz").text == "ok\n"
            peer.sendall(more)
            with suppress(ConnectionError):
                assert peer.recv(1) == b""
        finally:
            enough.set()


@pytest.fixture
def long_page() -> Iterator[Served]:
    """Yield a server with a page of metrics that no socket's buffer takes."""
    with serving() as served:
        served.server.send([flow(api=f"Api{n}") for n in range(2000)])
        wait_until(lambda: len(served.get("/metrics").text) > 1 << 20, "a long page")
        yield served


def is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = f"\r\ncontent-length: {len(body)}\r\n".encode()
    return head.startswith(b"HTTP/1.1 200 ") and length in head + b"\r\n"


@pytest.mark.parametrize("parts", [[b"\r\n\r\n"], [b"Content-Length: 2\r\n\r\n", b"xy"], [b"\r\n", b"\r\n"]])
@pytest.mark.parametrize("half_closed", [False, True])
def test_one_request_is_answered_whole_however_it_ends(
    long_page: Served, parts: list[bytes], half_closed: bool
) -> None:
    served = long_page
    with served.connect() as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + parts[0])
        received = peer.recv(1)
        for part in parts[1:]:
            peer.sendall(part)
        if half_closed:
            peer.shutdown(socket.SHUT_WR)
        received += until_end(peer)
    assert is_whole(received)


def test_a_client_may_pause_while_it_reads(long_page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "UNREAD_S", 0.2)
    served = long_page
    with served.connect_slowly(2048) as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        paused_s = time.monotonic()
        wait_until(lambda: time.monotonic() - paused_s > 2, "a pause")
        assert is_whole(until_end(peer))


def test_clients_that_leave_before_their_list_write_no_log(caplog: pytest.LogCaptureFixture) -> None:
    request = b"GET /api/v1/clients?limit=1000 HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    with serving() as served:
        clients = ({"id": f"{n} {'x' * 1000}", "software_name": None, "software_version": None} for n in range(900))
        served.server.send([flow(client=client) for client in clients])
        wait_until(lambda: served.get("/api/v1/clients?limit=1").json()["total"] == 900, "the clients")
        for _ in range(10):
            with served.connect() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sendall(request)
        wait_until(lambda: served.get("/api/v1/clients?limit=1").status == 200, "the end of the lists")
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


def test_a_flood_from_one_network_displaces_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MOST", 3)
    with serving(host="0.0.0.0", listen_token="token") as served, ExitStack() as flood:
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=10, source_address=("127.0.0.9", 0)) as honest:
            silent = [flood.enter_context(socket.create_connection(address, timeout=10)) for _ in range(9)]
            for peer in silent[:7]:
                with suppress(ConnectionError):
                    assert peer.recv(1) == b""
            honest.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert until_end(honest).startswith(b"HTTP/1.1 200 OK")


def test_four_networks_displace_none_of_a_fifth() -> None:
    with serving(host="0.0.0.0", listen_token="token") as served, ExitStack() as flood:
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=10, source_address=("127.0.0.9", 0)) as honest:
            for number in range(2 * http_connection.MOST):
                source = (f"127.0.0.{2 + number % 4}", 0)
                flood.enter_context(socket.create_connection(address, timeout=10, source_address=source))
            honest.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert until_end(honest).startswith(b"HTTP/1.1 200 OK")
        flood.close()
        with served.connect() as last:  # the server notices the ends of the others before it answers
            last.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert until_end(last).startswith(b"HTTP/1.1 200 OK")


def test_nonsense_after_an_answer_ends_the_connection_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served, served.connect() as peer:
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert peer.recv(65536).startswith(b"HTTP/1.1 200 OK")
        peer.sendall(b"zz\r\n")
        with suppress(ConnectionError):
            until_end(peer)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_answer_is_sent_in_parts_of_16_kib() -> None:
    body, parts = b"x" * (2 * (16 << 10) + 1), []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    asyncio.run(http._Chunked(body)({"type": "http"}, receive, send))
    assert [len(part) for part in parts if part] == [16 << 10, 16 << 10, 1]
    assert b"".join(parts) == body


@pytest.mark.parametrize("receive_bytes", [2048, 65536])
def test_the_kernel_keeps_little_of_what_clients_do_not_read_and_not_for_long(
    long_page: Served, receive_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "UNREAD_S", 1.0)
    monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT_S", 1.0)
    served = long_page
    with ExitStack() as clients:
        for _ in range(MOST // 2):
            peer = clients.enter_context(served.connect_slowly(receive_bytes))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        wait_until(lambda: sum(size > 0 for size in unread_bytes(served)) >= MOST // 2, "answers that nobody reads")
        assert max(unread_bytes(served)) <= 2 * server.BUFFER_BYTES + (64 << 10)
        wait_until(lambda: sum(unread_bytes(served)) == 0, "the kernel to let go of them")


def test_many_addresses_with_a_connection_each_displace_none_of_an_address_with_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "MOST", 16)
    with serving(host="0.0.0.0", listen_token="token") as served, ExitStack() as flood:
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        for number in range(2, 18):
            source = (f"127.0.0.{number}", 0)
            flood.enter_context(socket.create_connection(address, timeout=10, source_address=source))
        with (
            socket.create_connection(address, timeout=10) as first,
            socket.create_connection(address, timeout=10) as second,
        ):
            for peer in (second, first):
                peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert until_end(peer).startswith(b"HTTP/1.1 200 OK")
