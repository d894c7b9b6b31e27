"""Closes of connections: when, by which end, after how long a silence; also resets and listening sockets."""

from __future__ import annotations

import os
import platform
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafka_probe.capture.sample import SampleKind
from kafka_probe.connections.identity import endpoint
from tests.builders.strangers import client_hello
from tests.builders.wire import METADATA, produce, records_of, request
from tests.lab.capture import Capture
from tests.lab.conversation import conversation, exchange, receive_all, transfer, vanish
from tests.lab.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.kernel]

TRACED_WITHOUT_ANY_SOCKET = tuple(map(int, platform.release().split(".")[:2])) >= (6, 10)
ON, LINGER_AND_RESET = 1, struct.pack("ii", 1, 0)


def be_silent(seconds: float) -> None:
    """Wait for a silence of this length."""
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, "a silence")


def test_both_ends_say_how_long_nothing_passed(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        exchange(talk)
        exchanged_s = time.monotonic()
        wait_until(lambda: time.monotonic() - exchanged_s > 0.3, "a silence")
        before_the_close = time.monotonic()
    closed = [end.closed for end in capture.wait_closed(talk)]
    for facts in closed:
        assert facts
        idle_s = facts["idle_us"] / 1e6
        assert before_the_close - exchanged_s <= idle_s <= time.monotonic() - exchanged_s + 0.1
        assert facts["silence_us"] == facts["idle_us"]
        assert facts["owner_exiting"] is False
    assert [facts["closed_by"] for facts in closed if facts] == ["local", "peer"]


def test_a_close_is_reported_while_the_socket_is_still_held(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        exchange(talk)
        talk.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_AND_RESET)
        talk.server.close()
        client, server = capture.ends_of(talk)
        wait_until(lambda: bool(capture.ends and client.closed and server.closed), "the reset to be reported")
        assert (client.closed or {})["how"] == "rst_received"
        assert not client.gone
    assert all(end.gone for end in capture.wait_closed(talk))


def test_a_connection_is_followed_until_nothing_holds_its_socket(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        exchange(talk)
        client, server = (end.identity.conn for end in capture.ends_of(talk))
        assert {client, server} <= capture.followed()
        talk.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_AND_RESET)
        talk.server.close()
        wait_until(lambda: server not in capture.followed(), "the server's end to be gone")
        assert client in capture.followed()
    wait_until(lambda: client not in capture.followed(), "the client's end to be gone")


def test_the_longest_silence_so_far_is_kept(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        began_s = time.monotonic()
        exchange(talk)
        silent_s = time.monotonic()
        be_silent(0.5)
        least_s = time.monotonic() - silent_s
        exchange(talk, [2])
        most_s = time.monotonic() - began_s
        exchange(talk, [3])
        for end in capture.both_ends_of(talk):
            assert least_s <= capture.longest_silence_s(end.identity.conn) <= most_s


def test_the_kernels_probes_are_known_by_the_silence_before_them(capture: Capture, port: int) -> None:
    default_s = int(Path("/proc/sys/net/ipv4/tcp_keepalive_time").read_text())
    with conversation(port) as talk:
        talk.client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, ON)
        talk.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 75)
        exchange(talk)
        assert [end.keepalive_s for end in capture.ends_of(talk)] == [75, 0]
    with conversation(port) as talk:
        talk.server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, ON)
        exchange(talk)
        assert [end.keepalive_s for end in capture.ends_of(talk)] == [0, default_s]


CLOSE_NOTIFY = bytes.fromhex("1703030013") + bytes(19)  # as TLS 1.3 hides it


@pytest.mark.parametrize(
    ("payload", "asked", "is_close_notify"),
    [(CLOSE_NOTIFY, False, True), (CLOSE_NOTIFY, True, False), (CLOSE_NOTIFY * 10, False, False)],
    ids=["close_notify", "an answer as short", "more than that"],
)
def test_a_close_notify_ends_no_silence_and_decides_who_closes(
    capture: Capture, port: int, payload: bytes, asked: bool, is_close_notify: bool
) -> None:
    with conversation(port) as talk:
        transfer(talk.client, talk.server, client_hello())
        if not asked:
            transfer(talk.server, talk.client, bytes(200))
        be_silent(1.1)
        transfer(talk.server, talk.client, payload)
    client, server = (end.closed or {} for end in capture.wait_closed(talk))
    assert (client["closed_by"], server["closed_by"]) == (("peer", "local") if is_close_notify else ("local", "peer"))
    for facts in (client, server):
        assert (facts["silence_us"] >= 1_100_000) is is_close_notify
        assert facts["last_api"] is None


def test_a_close_notify_after_other_data_is_not_taken_for_an_answer_to_it(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        transfer(talk.client, talk.server, client_hello())
        transfer(talk.server, talk.client, bytes(200))
        for pause_s, talker, listener, payload in (
            (1.1, talk.server, talk.client, bytes(300)),
            (0.2, talk.client, talk.server, CLOSE_NOTIFY),
        ):
            be_silent(pause_s)
            transfer(talker, listener, payload)
        talk.server.close()
    client, server = (end.closed or {} for end in capture.wait_closed(talk))
    assert (client["closed_by"], server["closed_by"]) == ("local", "peer")


@pytest.mark.parametrize("acks", [0, -1])
def test_a_produce_that_nobody_will_answer_is_reported(capture: Capture, port: int, acks: int) -> None:
    last = produce(9, {"orders": {0: records_of(1)}}, acks=acks)
    with conversation(port) as talk:
        exchange(talk)
        talk.ask(last)
    for end in capture.wait_closed(talk):
        assert end.closed
        assert end.closed["last_request_bytes"] == len(last)
        assert (end.closed["last_api"], end.closed["last_acks"]) == ("Produce", None if acks else 0)
        assert end.closed["in_flight"] == (1 if acks else 0)


def test_the_settings_of_the_socket_are_reported(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        talk.client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, ON)
        talk.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
        exchange(talk)
    settings = [
        (end.closed["keepalive"], end.closed["user_timeout_ms"]) for end in capture.wait_closed(talk) if end.closed
    ]
    assert settings == [(True, 30_000), (False, None)]


@pytest.mark.parametrize("listens", [True, False])
def test_a_reset_without_a_socket_is_reported(capture: Capture, port: int, listens: bool) -> None:
    with conversation(port) as talk:
        exchange(talk)
        for sock in (talk.client, talk.server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, ON)  # no acknowledgement is left to be sent
        silence_s = time.monotonic()
        vanish(talk.server)
        listener = socket.create_server(("127.0.0.1", port)) if listens else None
        wait_until(lambda: time.monotonic() - silence_s > 0.3, "a silence")
        talk.client.send(request(METADATA, 12, 3).wire)
        with pytest.raises(ConnectionResetError):
            receive_all(talk.client, 1)
        if listener:
            listener.close()
    client, _ = capture.wait_closed(talk)
    assert capture.resets == ([talk.names[::-1]] if listens or TRACED_WITHOUT_ANY_SOCKET else [])
    assert client.closed
    assert (client.closed["closed_by"], client.closed["how"]) == ("peer", "rst_received")
    # What was sent in vain did not end the silence.
    assert client.closed["unacked_bytes"] == len(request(METADATA, 12, 3))
    assert client.closed["silence_us"] >= 300_000


def test_a_listening_socket_is_reported_from_its_first_to_its_last(capture: Capture, port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)) as listener,
        socket.create_connection(("127.0.0.1", port)),
        listener.accept()[0],
    ):
        pass  # what it accepts is not it
    wait_until(lambda: len(capture.ends) == 2 and len(capture.sockets) == 2, "both to be reported")
    netns = os.stat("/proc/self/ns/net").st_ino
    local = endpoint(socket.AF_INET, socket.inet_aton("127.0.0.1"), port)
    listens = [(kind, closed, end.local, end.netns, pid) for kind, closed, end, pid in capture.sockets]
    assert listens == [(SampleKind.LISTEN, closed, local, netns, os.getpid()) for closed in (False, True)]


LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print("listening", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_listening_socket_that_its_process_did_not_close_is_not_reported_as_closed(
    capture: Capture, port: int, killed: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as listener:
        assert listener.stdout
        assert listener.stdout.readline() == b"listening\n"
        if killed:
            listener.kill()
        listener.communicate()
    with conversation(port) as talk:
        exchange(talk)
    capture.wait_closed(talk)
    listens = [closed for kind, closed, *_ in capture.sockets if kind == SampleKind.LISTEN]
    assert listens == [False, *([] if killed else [True]), False, True]  # the last two are the conversation's own


def test_a_refused_attempt_to_connect_ends_nothing(capture: Capture, port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with conversation(port) as talk:
        exchange(talk)
    capture.wait_closed(talk)
    assert capture.resets == []
