"""Connections older than the agent are listed at its start and reported in full with their next payload or close."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.conversation import conversation, exchange
from tests.lab.network import Namespace
from tests.lab.product import Watched

pytestmark = pytest.mark.root

SO_COOKIE = 57  # include/uapi/asm-generic/socket.h


def cookie(sock: socket.socket) -> int:
    return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0])


def test_a_silent_connection_is_listed_and_gets_its_flow_id_when_it_speaks(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port)
    with conversation(port) as talk, watched.agent:
        listed = watched.wait_for(2, "both ends to be listed", kind="open")
        cookies = [cookie(talk.client), cookie(talk.server)]
        exchange(talk)
        watched.wait_for(4, "both ends to speak", kind="open")
        talk.client.close()
        talk.server.close()
        closed = watched.wait_for(2, "both ends to close", kind="close")
    opened = [event for event in watched.events(kind="open") if event["found"] != "listed"]
    assert [event["found"] for event in listed] == ["listed", "listed"]
    assert [event["flow_id"] for event in listed] == [None, None]
    assert [event["cookie"] for event in listed] == cookies
    assert [(event["local"], event["peer"]) for event in listed] == [talk.names, talk.names[::-1]]
    for name in ("conn_id", "local", "peer", "netns", "side"):
        assert [event[name] for event in opened] == [event[name] for event in listed]
        assert [event[name] for event in closed] == [event[name] for event in listed]
    assert {event["workload"]["pid"] for event in (*listed, *opened, *closed)} == {os.getpid()}
    assert len({event["flow_id"] for event in (*opened, *closed)}) == 1


def test_connections_that_stay_open_are_reported_again_with_what_they_did_and_closes_contain_it(
    port: int, tmp_path: Path
) -> None:
    watched = Watched(tmp_path, port, "--open-interval-s", "0.5")
    with watched.agent, conversation(port) as talk:
        exchange(talk)
        watched.wait_for(2, "the exchange to be counted", kind="flow")
        known = len(watched.events(kind="open"))
        watched.wait_for(known + 4, "both ends to be repeated", kind="open")
        talk.client.close()
        talk.server.close()
        closed = watched.wait_for(2, "both ends to close", kind="close")
    *_, one, other = watched.events(kind="open")
    for event in (one, other, *closed):
        assert event["requests"] == sum(
            flow["requests"] for flow in watched.events(kind="flow") if flow["conn_id"] == event["conn_id"]
        )
        assert event["requests"] > 0
    for event in (one, other):
        assert 0 < event["present_silence_us"] <= event["longest_silence_us"] <= event["still_open_ts"] - event["ts"]
    assert one["ts"] < one["still_open_ts"] < min(event["ts"] for event in closed) + 1_000_000


def test_the_third_exchange_is_counted(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port)
    with conversation(port) as talk:
        exchange(talk, [1])
        with watched.agent:
            watched.wait_for(2, "both ends to be listed", kind="open")
            exchange(talk, [2, 3, 4])
            talk.client.close()
            talk.server.close()
            watched.wait_for(2, "both ends to close", kind="close")
    counted = {event["side"]: (event["requests"], event["responses"]) for event in watched.events(kind="flow")}
    assert counted == {"client": (1, 1), "server": (1, 1)}


def test_one_that_ends_without_a_word_is_known_by_its_owner(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port)
    with watched.agent:
        with conversation(port) as talk:
            pass
        closed = watched.wait_for(2, "both ends to close", kind="close")
    assert [(event["local"], event["peer"]) for event in closed] == [talk.names, talk.names[::-1]]
    assert closed[0]["flow_id"] == closed[1]["flow_id"] is not None
    assert [event["workload"]["pid"] for event in closed] == [os.getpid()] * 2
    assert [event["handshake_us"] > 0 for event in watched.events(kind="open")] == [True, True]


def test_one_by_tls_is_known_as_such_and_the_end_that_sent_close_notify_closed_it(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port)
    with conversation(port) as talk, ThreadPoolExecutor(1) as other:
        accepting = other.submit(without_certificate(ssl.PROTOCOL_TLS_SERVER).wrap_socket, talk.server, True)
        client, server = without_certificate(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(talk.client), accepting.result(10)
        with client, server, watched.agent:
            watched.wait_for(2, "both ends to be listed", kind="open")
            answered = other.submit(answer_close_notify, server)
            client.unwrap().close()
            answered.result(10)
            closed = {event["side"]: event for event in watched.wait_for(2, "both ends to close", kind="close")}
    assert [closed[side]["opaque"] for side in ("client", "server")] == ["tls", "tls"]
    assert [closed[side]["closed_by"] for side in ("client", "server")] == ["local", "peer"]
    assert [closed[side]["silence_us"] for side in ("client", "server")] == [None, None]


def answer_close_notify(end: ssl.SSLSocket) -> None:
    assert end.recv(1) == b""
    end.unwrap().close()


def without_certificate(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


def test_one_that_its_peer_had_closed_already_is_listed_and_gets_its_end(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port)
    with conversation(port) as talk:
        talk.client.shutdown(socket.SHUT_WR)
        assert talk.server.recv(1) == b""
        with watched.agent:
            listed = watched.wait_for(1, "the end that is still in use to be listed", kind="open")
            talk.server.close()
            closed = watched.wait_for(1, "it to close", kind="close", side="server")
    assert (closed[0]["conn_id"], closed[0]["local"]) == (listed[0]["conn_id"], talk.names[1])
    assert (closed[0]["closed_by"], closed[0]["how"]) == ("peer", "fin")


def test_an_agent_that_starts_again_loses_no_connection_and_tells_none_twice(port: int, tmp_path: Path) -> None:
    with conversation(port) as talk:
        exchange(talk)
        for _ in range(2):
            watched = Watched(tmp_path, port)
            with watched.agent:
                exchange(talk)
                watched.wait_for(2, "both ends to be reported", kind="open", found="midstream")
                now = watched.wait_for(1, "the open ones to be counted", kind="agent", connections=2)[-1]
            ends = [(event["conn_id"], event["flow_id"]) for event in watched.events(kind="open") if event["flow_id"]]
            assert len(ends) == len(set(ends)) == 2
            assert sum(counted["count"] for counted in now["open"]) == 2
            assert watched.events(kind="close") == []


def test_only_one_network_namespace_is_watched_if_it_is_named(port: int, tmp_path: Path) -> None:
    inside = Namespace()
    watched, netns = Watched(tmp_path, port, "--netns", inside.path), os.stat(inside.path).st_ino
    try:
        with inside.inside():
            older = conversation(port)
            there = older.__enter__()
        with conversation(port) as here, watched.agent:
            watched.wait_for(2, "both ends to be listed", kind="open")
            exchange(here)
            exchange(there)
            watched.wait_for(4, "both ends to speak", kind="open")
            older.__exit__(None, None, None)
            watched.wait_for(2, "both ends to close", kind="close")
    finally:
        inside.close()
    assert {event["netns"] for event in watched.events() if event.get("conn_id")} == {netns}
