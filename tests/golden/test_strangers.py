"""Other protocols on a watched port are reported as such, and disturb no other connection."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Collection

import pytest

from kafka_probe.capture.sample import Protocol
from tests.builders.strangers import FIRST_WORDS
from tests.builders.wire import MARKER, METADATA, request, response
from tests.lab.capture import Capture
from tests.lab.conversation import conversation, exchange, receive_pieces, send_pieces, transfer

pytestmark = pytest.mark.root


def framed_with_itself(data: bytes) -> bytes:
    """Return the data after a length that counts itself."""
    return struct.pack(">i", 4 + len(data)) + data


def assert_a_good_connection_works(capture: Capture, port: int, may_lose: Collection[str] = ()) -> None:
    with conversation(port) as talk:
        talk.ask(request(METADATA, 12, 1))
        talk.answer(response(METADATA, 12, 1))
    assert capture.saw(talk, may_lose=may_lose)


@pytest.mark.kernel
@pytest.mark.parametrize("protocol", FIRST_WORDS)
def test_first_words_that_are_not_kafka(capture: Capture, port: int, protocol: str) -> None:
    words, expected = FIRST_WORDS[protocol]
    with conversation(port) as talk:
        transfer(talk.client, talk.server, words)
        transfer(talk.server, talk.client, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        transfer(talk.client, talk.server, request(METADATA, 12, 1).wire)
    for end in capture.wait_closed(talk):
        assert (end.opaque, end.frames) == (expected, [])
    assert_a_good_connection_works(capture, port)


# Read as Kafka, a Metadata request of version 0 whose client id is what stands behind "user".
POSTGRESQL = framed_with_itself(b"\0\3\0\0user\0" + b"d" + MARKER + b"\0database\0" + 9 * MARKER + b"\0\0")
# A message of id 256: a Fetch request of version 0.
MONGODB = struct.pack("<iiii", 0x428, 256, 0, 2013) + MARKER * 60 + bytes(28)


@pytest.mark.kernel
@pytest.mark.parametrize("words", [POSTGRESQL, MONGODB], ids=["PostgreSQL", "MongoDB"])
def test_nothing_is_shown_of_what_looks_like_one_request(capture: Capture, port: int, words: bytes) -> None:
    with conversation(port) as talk:
        transfer(talk.client, talk.server, words, send_pieces(100), receive_pieces(4))
        transfer(talk.server, talk.client, b"R\0\0\0\x08\0\0\0\0Z\0\0\0\5I" + MARKER)
    for end in capture.wait_closed(talk):
        assert end.frames == []
        assert end.closed
        assert (end.closed["last_api"], end.closed["last_acks"]) == (None, None)
    assert capture.lost()["before_proof"] == 2
    assert_a_good_connection_works(capture, port, may_lose=("before_proof", "resync"))


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(capture: Capture, port: int, seed: int) -> None:
    noise = random.Random(seed)
    with conversation(port) as talk:
        for _ in range(20):
            transfer(talk.client, talk.server, noise.randbytes(noise.randint(1, 3000)))
            transfer(talk.server, talk.client, noise.randbytes(noise.randint(1, 3000)))
    for end in capture.wait_closed(talk):
        assert (end.opaque, end.frames) == (Protocol.UNKNOWN, [])
    assert_a_good_connection_works(capture, port)


@pytest.mark.parametrize("banner", [b"220 mail ESMTP\r\n", b"\0\0\0\x20" + bytes(32), b"x"])
def test_a_server_that_speaks_first(capture: Capture, port: int, banner: bytes) -> None:
    with conversation(port) as talk:
        transfer(talk.server, talk.client, banner)
        transfer(talk.client, talk.server, b"EHLO localhost\r\n")
        transfer(talk.server, talk.client, b"250 HELP, or more words than a header has\r\n")
    for end in capture.wait_closed(talk):
        assert (end.opaque, end.frames) == (Protocol.UNKNOWN, [])
    assert_a_good_connection_works(capture, port)


@pytest.mark.parametrize("size", range(1, 14))
def test_less_than_a_header(capture: Capture, port: int, size: int) -> None:
    with conversation(port) as talk:
        transfer(talk.client, talk.server, request(METADATA, 12, 1).wire[:size])
    for end in capture.wait_closed(talk):
        assert (end.opaque, end.frames) == (None, [])
    assert capture.lost() == {"header_incomplete": 2}


def test_a_connection_without_a_word_is_seen_when_it_is_closed(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        assert capture.ends_of(talk) == []
    client, server = capture.wait_closed(talk)
    assert (client.pids, server.pids - {0}) == ({os.getpid()}, {os.getpid()})
    assert client.identity.flow_id == server.identity.flow_id
    assert (client.frames, server.frames, capture.lost()) == ([], [], {})
    assert_a_good_connection_works(capture, port)


@pytest.mark.kernel
def test_words_that_stop_being_kafka_are_counted(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        talk.ask(request(METADATA, 12, 1))
        talk.answer(response(METADATA, 12, 1))
        transfer(talk.client, talk.server, b"\xff" * 100)
        transfer(talk.client, talk.server, b"\xff" * 100)
        exchange(talk, (2, 3, 4))
    for end in capture.both_ends_of(talk):
        assert [frame.correlation_id for frame in end.frames] == [1, 1, 4, 4]
    assert capture.lost() == {"malformed": 2, "resync": 10}


def test_a_socket_of_another_kind_on_the_port(capture: Capture, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", port))
        sender.sendto(request(METADATA, 12, 1).wire, ("127.0.0.1", port))
        assert receiver.recv(1000)
    assert capture.ends == []
    assert_a_good_connection_works(capture, port)
