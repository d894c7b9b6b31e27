"""Bytes are seen whichever system call a program uses for its socket."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from itertools import cycle

import pytest

from tests.builders.wire import (
    API_VERSIONS,
    FETCH,
    METADATA,
    Frame,
    Set,
    Topics,
    fetched,
    produce,
    records_of,
    request,
    response,
    share_fetch,
    shared,
    uncounted,
)
from tests.lab.capture import Capture
from tests.lab.conversation import Read, Write, conversation, receive_all, send_all, sendfile, splice_out

pytestmark = [pytest.mark.root, pytest.mark.kernel]

_libc = ctypes.CDLL(None, use_errno=True)
MESSAGES = 4


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class _MsgHdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint),
        ("iov", ctypes.POINTER(_IoVec)),
        ("iov_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _MMsgHdr(ctypes.Structure):
    _fields_ = (("message", _MsgHdr), ("moved", ctypes.c_uint))


def segments(size: int) -> list[int]:
    """Return small, uneven sizes that add up to `size`."""
    sizes: list[int] = []
    for piece in cycle((1, 3, 8, 2, 13, 5)):
        sizes.append(min(piece, size - sum(sizes)))
        if sum(sizes) == size:
            return sizes
    raise AssertionError


def cut(data: bytes) -> list[bytes]:
    pieces = []
    for size in segments(len(data)):
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def many(
    call: Callable[..., int], sock: socket.socket, buffers: list[ctypes.Array[ctypes.c_char]], *more: object
) -> int:
    """Call sendmmsg or recvmmsg with MESSAGES messages that share the buffers; return the number of moved messages."""
    share = -(-len(buffers) // MESSAGES)
    messages = (_MMsgHdr * MESSAGES)()
    kept = []
    for n in range(MESSAGES):
        own = buffers[n * share : (n + 1) * share]
        vectors = (_IoVec * len(own))(*(_IoVec(ctypes.addressof(buffer), len(buffer)) for buffer in own))
        kept.append(vectors)
        messages[n].message.iov, messages[n].message.iov_count = vectors, len(own)
    return call(sock.fileno(), messages, MESSAGES, *more)


def sendmmsg(sock: socket.socket, data: bytes) -> None:
    assert (
        many(_libc.sendmmsg, sock, [ctypes.create_string_buffer(piece, len(piece)) for piece in cut(data)], 0)
        == MESSAGES
    )


def recvmmsg(sock: socket.socket, size: int) -> None:
    buffers = [ctypes.create_string_buffer(piece) for piece in segments(size)]
    assert many(_libc.recvmmsg, sock, buffers, 0, None) == MESSAGES


def recvmmsg_that_finds_less(sock: socket.socket, size: int) -> None:
    """Receive into buffers for more than there is: the call ends early, and the next one starts anew."""
    receive_all(sock, size // 2)
    buffers = [ctypes.create_string_buffer(size) for _ in range(MESSAGES)]
    assert many(_libc.recvmmsg, sock, buffers, 0, None) == 1


SENDS: dict[str, Write] = {
    "write": lambda sock, data: os.write(sock.fileno(), data),
    "writev": lambda sock, data: os.writev(sock.fileno(), cut(data)),
    "send": lambda sock, data: sock.send(data),
    "sendto": lambda sock, data: sock.sendto(data, sock.getpeername()),
    "sendmsg": lambda sock, data: sock.sendmsg(cut(data)),
    "sendmmsg": sendmmsg,
}
RECEIVES: dict[str, Read] = {
    "read": lambda sock, size: os.read(sock.fileno(), size),
    "readv": lambda sock, size: os.readv(sock.fileno(), [bytearray(piece) for piece in segments(size)]),
    "recv": lambda sock, size: sock.recv(size),
    "recvfrom": lambda sock, size: sock.recvfrom(size),
    "recvmsg": lambda sock, size: sock.recvmsg_into([bytearray(piece) for piece in segments(size)]),
    "recvmmsg": recvmmsg,
    "recvmmsg that finds less": recvmmsg_that_finds_less,
}
ADDRESSES = {"IPv4": ("127.0.0.1", None), "IPv6": ("::1", None), "IPv4-mapped": ("::", "127.0.0.1")}


def requests() -> list[Frame]:
    orders = {"orders": {0: records_of(2, 3), 4: records_of(1)}}
    return [request(API_VERSIONS, 3, 1), produce(9, orders, correlation_id=2), request(METADATA, 12, 3)]


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("receive", RECEIVES)
def test_calls(capture: Capture, port: int, send: str, receive: str) -> None:
    with conversation(port) as talk:
        for _ in range(2):
            talk.ask(*requests(), write=SENDS[send], read=RECEIVES[receive])
        talk.answer(response(API_VERSIONS, 3, 1), write=SENDS[send], read=RECEIVES[receive])
    assert capture.saw(talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses(capture: Capture, port: int, address: str) -> None:
    server, client = ADDRESSES[address]
    with conversation(port, server=server, client=client) as talk:
        talk.ask(*requests())
    assert capture.saw(talk)


def splice_in(sock: socket.socket, data: bytes) -> None:
    reader, writer = os.pipe()
    assert os.write(writer, data) == len(data)
    assert os.splice(reader, sock.fileno(), len(data)) == len(data)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("call", [sendfile, splice_in])
def test_record_sets_sent_from_a_file_count_by_their_length(capture: Capture, port: int, call: Write) -> None:
    records = records_of(40)
    batch = fetched(11, {"orders": {0: records}}, correlation_id=5)
    start = batch.wire.index(records.data)

    def send(sock: socket.socket, data: bytes) -> None:
        send_all(sock, data[:start])
        call(sock, data[start:])

    with conversation(port) as talk:
        talk.ask(request(FETCH, 11, 5), request(METADATA, 12, 6))
        talk.answer(batch, write=send)
        talk.answer(response(METADATA, 12, 6))
    client, server = capture.ends_of(talk)
    assert client.frames == talk.sent
    assert server.frames == [*talk.sent[:2], uncounted(batch.seen), talk.sent[3]]
    assert capture.lost() == {}


def test_many_topics_are_exact_between_record_sets_sent_from_files(capture: Capture, port: int) -> None:
    sets = [records_of(n) for n in (40, 7, 1)]
    topics: Topics = {
        "orders": {0: sets[0], 3: Set(b"", 0), 4: sets[1]},
        "nothing": {},
        "payments": {1: sets[2], 2: None},
    }

    def send(sock: socket.socket, data: bytes) -> None:
        for records in sets:
            head, found, rest = data.partition(records.data)
            if found:
                send_all(sock, head)
                sendfile(sock, found)
                data = rest
        send_all(sock, data)

    with conversation(port) as talk:
        for correlation_id, version in enumerate((4, 11, 12, 13, 18), 1):
            talk.ask(request(1, version, correlation_id))
            talk.answer(fetched(version, topics, correlation_id=correlation_id), write=send)
        for version in range(3):
            talk.ask(share_fetch(version, 20 + version))
            talk.answer(shared(version, {"orders": topics["orders"]}, correlation_id=20 + version), write=send)
    client, server = capture.ends_of(talk)
    assert client.frames == talk.sent
    assert server.frames == [uncounted(seen) if seen.facts.response else seen for seen in talk.sent]
    assert capture.lost() == {}


def test_record_sets_received_into_a_pipe_count_by_their_length(capture: Capture, port: int) -> None:
    records = records_of(40)
    frame = produce(9, {"orders": {0: records, 1: records_of(2)}})
    start = frame.wire.index(records.data)

    def receive(sock: socket.socket, size: int) -> None:
        receive_all(sock, start)
        splice_out(sock, len(records.data))
        receive_all(sock, size - start - len(records.data))

    with conversation(port) as talk:
        talk.ask(frame, read=receive)
        talk.ask(request(METADATA, 12, 6))
    client, server = capture.ends_of(talk)
    assert client.frames == talk.sent
    assert server.frames[0] == uncounted(frame.seen, 0)
    assert server.frames[1:] == talk.sent[1:]
    assert capture.lost() == {}
