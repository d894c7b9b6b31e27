"""Connections to the server: how long requests, answers and silence may be, and what the kernel keeps of answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from starlette.types import Message

from kafka_probe.server import http, http_connection, query, server
from kafka_probe.server.http_connection import MOST
from kafka_probe.server.view import View
from tests.builders.events import flow
from tests.lab.agent_server import Served, serving, until_end
from tests.lab.processes import wait_until


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


def test_a_connection_is_for_one_request() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving() as served:
        answer = served.exchange(request)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in answer.lower()
        with suppress(ConnectionError):
            assert served.exchange(request + request) == b""


def test_a_client_that_sends_more_while_its_answer_is_built_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = threading.Event()
    monkeypatch.setattr(View, "add", lambda *_: enough.wait())
    with serving() as served, served.connect() as peer:
        try:
            served.server.send([flow()])
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n")
            assert served.get("/healthz").text == "ok\n"
            peer.sendall(b"x")
            with suppress(ConnectionError):
                assert peer.recv(1) == b""
        finally:
            enough.set()


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


def unread_bytes(port: int) -> Iterator[int]:
    """Yield the bytes that the kernel keeps for each peer of a port, also of closed connections: /proc/net/tcp."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port:
            yield int(queues.partition(":")[0], 16)


@pytest.mark.parametrize("receive_bytes", [2048, 65536])
def test_the_kernel_keeps_little_of_what_clients_do_not_read_and_not_for_long(
    receive_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 1.0)
    with serving() as served, ExitStack() as clients:
        served.server.send([flow(api=f"Api{n}") for n in range(2000)])
        wait_until(lambda: len(served.get("/metrics").text) > 1 << 20, "a long page")
        for _ in range(MOST // 2):
            peer = clients.enter_context(unreading(served, receive_bytes))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        port = int(served.url.rpartition(":")[2])
        wait_until(lambda: sum(size > 0 for size in unread_bytes(port)) >= MOST // 2, "answers that nobody reads")
        assert max(unread_bytes(port)) <= 2 * server.BUFFER_BYTES + (64 << 10)
        wait_until(lambda: sum(unread_bytes(port)) == 0, "the kernel to let go of them")


def unreading(served: Served, receive_bytes: int) -> socket.socket:
    """Return a connection with a buffer of this size for what it receives."""
    host, _, port = served.url.removeprefix("http://").rpartition(":")
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.connect((host, int(port)))
    return peer
