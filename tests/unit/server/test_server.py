"""The server over real HTTP: who is admitted, what is healthy, and the effect on the agent."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any
from urllib.error import URLError

import pytest

from kafka_probe.config import Config
from kafka_probe.errors import StartError, UsageError
from kafka_probe.memory import SERVER_WAITING_BYTES
from kafka_probe.server import http_connection
from kafka_probe.server.server import Server
from kafka_probe.server.view import STALLED_S
from kafka_probe.setting_types import Address
from tests.builders.certificates import Authority
from tests.builders.events import StillAgent, StillSink, agent, flow, topic
from tests.lab.agent_server import PATHS, Served, serving
from tests.lab.http import get
from tests.lab.processes import free_port, wait_until

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def plain() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(listen_token=TOKEN) as served:
        yield served


@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/readyz"])
def test_on_this_host_everybody_may_ask(plain: Served, path: str) -> None:
    assert plain.get(path).status == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", [None, "wrong", TOKEN[:-1], TOKEN + "x", "tökén"])
def test_without_the_token_nothing_of_the_traffic_is_shown(guarded: Served, path: str, token: str | None) -> None:
    answer = guarded.get(path, token)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json() == {"error": "Send the agent's token: Authorization: Bearer TOKEN."}


@pytest.mark.parametrize("path", [*PATHS, "/nowhere"])
def test_with_the_token_it_is(guarded: Served, path: str) -> None:
    assert guarded.get(path, TOKEN).status == (404 if path == "/nowhere" else 200)


def test_what_is_not_there_is_not_shown_without_the_token_either(guarded: Served) -> None:
    assert {guarded.get(path).status for path in ("/nowhere", "/healthz/", "//metrics", "/healthz/../metrics")} == {401}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_needs_no_token(guarded: Served, path: str) -> None:
    assert guarded.get(path).text == "ok\n"


def test_the_token_is_on_no_page_and_in_no_log(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    pages = [guarded.get(path, token).text for path in (*PATHS, "/nowhere") for token in (None, TOKEN)]
    with serving("0.0.0.0", listen_token=TOKEN):
        pass
    assert TOKEN not in "".join((*pages, caplog.text, repr(Config(listen_token=TOKEN))))


def test_a_bad_parameter_is_a_bad_request_in_a_sentence(plain: Served) -> None:
    answer = plain.get("/api/v1/clients?limit=many")
    assert answer.status == 400
    assert answer.json() == {"error": "limit must be a number from 1 to 1000, not 'many'."}


def test_the_first_page_names_the_version_and_leads_to_all_others(plain: Served) -> None:
    page = plain.get("/").text
    assert "kafka-probe " in page
    links = {*PATHS, "/healthz", "/readyz"} - {"/"}
    assert [link for link in links if f'href="{link}"' not in page] == []


def test_metrics_are_written_in_the_form_that_is_asked_for(plain: Served) -> None:
    assert plain.get("/metrics").headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    asked = get(f"{plain.url}/metrics", accept="application/openmetrics-text;version=1.0.0")
    assert asked.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert asked.text.endswith("# EOF\n")


def test_events_of_another_thread_are_summed_in_their_order() -> None:
    with serving() as served:
        for n in range(100):
            served.server.send([flow(requests=n), agent(counters={"events": n})])
        wait_until(lambda: "kafka_probe_events_total 99.0" in served.get("/metrics").text, "the last event")
        assert 'kafka_probe_requests_total{api="Produce",side="client"} 4950.0' in served.get("/metrics").text


def test_events_beyond_what_may_wait_for_the_server_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = threading.Event()
    monkeypatch.setattr("kafka_probe.server.view.View.add", lambda *_: busy.wait())
    large = flow(topics=[topic()] * (SERVER_WAITING_BYTES // 1280))
    with serving() as served:
        for events in ([flow()], [large] * 2, [flow()]):
            served.server.send(events)
        assert served.server.losses() == {"server_behind": 2}
        busy.set()


def test_events_for_a_server_whose_thread_has_ended_are_counted() -> None:
    with serving() as served:
        served.server.close()
        for _ in range(3):
            served.server.send([flow()])
        assert served.server.losses() == {"server_behind": 3}


def test_an_agent_is_healthy_while_its_loop_turns() -> None:
    with serving() as served:
        served.agent.turned_s = time.monotonic() - STALLED_S + 5
        assert served.get("/healthz").status == served.get("/readyz").status == 200
        served.agent.turned_s = time.monotonic() - STALLED_S - 5
        for path in ("/healthz", "/readyz"):
            answer = served.get(path)
            assert (answer.status, answer.text) == (503, "the capture loop has not run for 35 s\n")


def test_an_agent_that_starts_is_healthy_but_not_ready() -> None:
    with serving() as served:
        served.agent.turned_s = None
        assert served.get("/healthz").status == 200
        assert (served.get("/readyz").status, served.get("/readyz").text) == (503, "not attached to the kernel yet\n")


def test_an_agent_whose_sink_takes_nothing_is_healthy_but_not_ready() -> None:
    with serving() as served:
        served.sink.refuses = "the brokers are away"
        assert served.get("/healthz").status == 200
        assert (served.get("/readyz").status, served.get("/readyz").text) == (503, "the brokers are away\n")


def test_a_server_that_breaks_is_logged_and_does_not_stop_the_capture(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr("uvicorn.Server.serve", broken)
    with serving() as served:
        wait_until(lambda: "The HTTP server on 127.0.0.1:" in caplog.text, "the reason")
        served.server.send([flow()])
        with pytest.raises(URLError, match="refused"):
            served.get("/healthz")


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_it_listens_at_the_configured_address(host: str) -> None:
    with serving(host) as served:
        assert served.get("/healthz").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker-1"])
def test_beyond_this_host_it_asks_for_a_way_to_know_its_clients(host: str) -> None:
    with pytest.raises(UsageError, match=r"KAFKA_PROBE_LISTEN_TOKEN.*--listen-clientcafile"):
        Server(Config(), Address(host, 9465))


def test_a_port_that_is_taken_is_reported_with_what_to_do() -> None:
    address = Address("127.0.0.1", free_port())
    first = Server(Config(), address)
    try:
        with pytest.raises(StartError, match=rf"Cannot listen on {address}: Address already in use; set another .*off"):
            Server(Config(), address)
    finally:
        first.close()
    Server(Config(), address).close()


def test_an_address_of_nobody_is_reported_with_what_to_do() -> None:
    with pytest.raises(StartError, match=r"Cannot listen on nowhere.invalid:9465: .*; set another"):
        Server(Config(listen_token=TOKEN), Address("nowhere.invalid", 9465))


def test_who_asks_nothing_holds_no_connection_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT_S", 0.5)
    with serving() as served, ExitStack() as stack:
        _, _, place = served.url.rpartition("/")
        host, _, port = place.partition(":")

        def connected(request: bytes = b"") -> socket.socket:
            peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            peer.sendall(request)
            return peer

        silent, half = connected(), connected(b"GET /healthz HTTP/1.1\r\n")
        served_once = connected(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert served_once.recv(4096).startswith(b"HTTP/1.1 200")
        served_once.sendall(b"GET /")
        for peer in (silent, half, served_once):
            wait_ended(peer)


@pytest.mark.parametrize("tls", [False, True])
def test_who_says_nothing_keeps_nobody_out(authority: Authority, monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    monkeypatch.setattr(http_connection, "MOST", 3)
    certificate: dict[str, Any] = {"listen_certfile": authority.sign("server")} if tls else {}
    trusting = ssl.create_default_context(cafile=authority.certificate) if tls else None
    with serving(**certificate) as served, ExitStack() as stack:
        _, _, place = served.url.rpartition("/")
        host, _, port = place.partition(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(5)]
        for peer in silent[:2]:
            wait_ended(peer)
        assert served.get("/healthz", tls=trusting).status == 200
        wait_ended(silent[2])


@pytest.mark.parametrize("tls", [False, True])
def test_a_stop_with_clients_who_do_not_read_logs_no_error(
    authority: Authority, caplog: pytest.LogCaptureFixture, tls: bool
) -> None:
    trusting = ssl.create_default_context(cafile=authority.certificate) if tls else None
    with serving(listen_certfile=authority.sign("server") if tls else None) as served, ExitStack() as clients:
        served.server.send([flow(api=f"Api{n}") for n in range(2000)])
        wait_until(lambda: len(served.get("/metrics", tls=trusting).text) > 1 << 20, "a long page")
        for _ in range(4):
            peer = clients.enter_context(socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))))
            reader = (
                clients.enter_context(trusting.wrap_socket(peer, server_hostname="127.0.0.1")) if trusting else peer
            )
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert reader.recv(1) == b"H"
        served.server.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_who_asks_is_answered_before_those_behind_displace_it() -> None:
    address = Address("127.0.0.1", free_port())
    server = Server(Config(listen=address), address)
    with closing(server), ExitStack() as stack:
        first, *_, last = (
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=10)) for _ in range(101)
        )
        for asking in (first, last):
            asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.start(StillAgent(()), StillSink())
        for asking in (first, last):
            assert asking.recv(4096).startswith(b"HTTP/1.1 200")


def wait_ended(peer: socket.socket) -> None:
    """Wait until the other end has closed or reset the connection."""
    with suppress(ConnectionResetError):
        while peer.recv(4096):
            pass


def test_nonsense_does_not_fill_the_log(plain: Served, caplog: pytest.LogCaptureFixture) -> None:
    _, _, place = plain.url.rpartition("/")
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        peer.sendall(b"nonsense\r\n\r\n")
        assert peer.recv(4096).startswith(b"HTTP/1.1 400")
    assert caplog.text == ""
