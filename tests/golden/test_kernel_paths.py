"""Ways of bytes through a kernel that differ between versions: partial sends, large sendfile calls, io_uring."""

from __future__ import annotations

import os
import select
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest

from kafka_probe.protocol.facts import Kind
from tests.golden.capture import Capture
from tests.golden.conversation import TIMEOUT_S, Conversation, conversation, exchange, receive_all
from tests.golden.io_uring import Ring, io_uring
from tests.golden.test_late import FRAME, assert_soon_right
from tests.golden.test_pieces import FRAMES_PER_CALL
from tests.golden.wire import API_VERSIONS, METADATA, Frame, produce, records_of, request, response

pytestmark = [pytest.mark.root, pytest.mark.kernel]

FILE_BYTES = 64 << 20


@pytest.fixture
def ring() -> Iterator[Ring]:
    with io_uring() as ring:
        if ring is None:
            pytest.skip("this kernel has no io_uring")
        yield ring


def test_attached_in_mid_frame(capture: Capture, older: Conversation) -> None:
    older.client.sendall(FRAME.wire[200:])
    receive_all(older.server, len(FRAME) - 100)
    assert_soon_right(capture, older)
    assert set(capture.lost()) <= {"resync", "frame_truncated"}
    older.client.close()
    older.server.close()
    capture.wait_closed(older)


def send_what_fits(sock: socket.socket, data: bytes) -> None:
    sock.setblocking(False)
    partial = 0
    while data:
        select.select([], [sock], [], TIMEOUT_S)
        sent = sock.send(data)
        partial += sent < len(data)
        data = data[sent:]
    assert partial > 1


def test_partial_sends(capture: Capture, port: int) -> None:
    records = records_of(7)
    with conversation(port) as talk:
        talk.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        talk.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        frames = [produce(9, {"orders": {0: records}}, correlation_id=n) for n in range(150)]
        talk.ask(*frames, write=send_what_fits)
    assert capture.saw(talk)


def test_a_thousand_frames_in_one_call(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        talk.ask(*(request(API_VERSIONS, 3, n) for n in range(FRAMES_PER_CALL)))
    assert capture.saw(talk)


def stretched(frame: Frame, size: int) -> Frame:
    """A frame whose record set, its last bytes, is this long: its wire stops behind the header of the record batch."""
    (record_bytes, *others) = frame.seen.values
    assert record_bytes[0] is Kind.RECORD_BYTES
    wire = bytearray(frame.wire)
    start = len(wire) - record_bytes[3]
    total = start + size
    struct.pack_into(">i", wire, 0, total - 4)
    struct.pack_into(">i", wire, start - 4, size)
    struct.pack_into(">i", wire, start + 8, size - 12)
    return Frame(bytes(wire), replace(frame.seen, frame_bytes=total, values=((*record_bytes[:3], size), *others)))


@pytest.mark.parametrize("size", [FILE_BYTES, pytest.param(1_000_000_000, marks=pytest.mark.long)])
def test_a_record_set_sent_by_large_sendfile_calls(capture: Capture, port: int, size: int) -> None:
    frame = stretched(produce(8, {"orders": {0: records_of(3)}}), size)
    rest = frame.seen.frame_bytes - len(frame)

    def send_rest(sock: socket.socket) -> None:
        sock.settimeout(None)
        left = rest
        while left:
            left -= os.sendfile(sock.fileno(), file.fileno(), 0, min(left, FILE_BYTES))

    with tempfile.TemporaryFile() as file, conversation(port) as talk:
        file.truncate(FILE_BYTES)
        talk.ask(frame)
        writer = Thread(target=send_rest, args=(talk.client,))
        writer.start()
        receive_all(talk.server, rest)
        writer.join(TIMEOUT_S)
        talk.ask(request(METADATA, 12, 2))
    assert capture.saw(talk)


def test_io_uring(capture: Capture, port: int, ring: Ring) -> None:
    with conversation(port) as talk:
        exchange(talk)
        talk.ask(request(API_VERSIONS, 3, 3), write=ring.send)
        talk.ask(request(API_VERSIONS, 3, 4), read=ring.receive)
        talk.answer(response(API_VERSIONS, 3, 3), write=ring.send, read=ring.receive)
        talk.answer(response(API_VERSIONS, 3, 4))
        exchange(talk, range(5, 10))
    if capture.backend != "tracepoint":
        assert capture.saw(talk)
        return
    # It finds buffers in the registers of the system call, which are others here: a frame lost, the next one in doubt.
    assert capture.lost()["buffer_unreadable"] == 4
    for end in capture.ends_of(talk):
        assert [frame for frame in end.frames if not frame.unsure and frame not in talk.said] == []
        assert end.frames[-4:] == talk.said[-4:]
