"""Paths of bytes through the kernel that differ between versions: partial sends, large sendfile calls, io_uring."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from kafka_probe.protocol.facts import MeasureKind
from tests.builders.wire import API_VERSIONS, FIFTY_RECORDS, METADATA, Frame, produce, records_of, request, response
from tests.golden.io_uring import Ring, io_uring
from tests.lab.bpf_programs import loaded
from tests.lab.capture import Capture
from tests.lab.conversation import (
    BUFFER_BYTES,
    FRAMES_PER_CALL,
    TIMEOUT_S,
    Conversation,
    conversation,
    exchange,
    receive_all,
    receive_at_once,
)
from tests.lab.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.kernel]

FILE_BYTES = 64 << 20


@pytest.fixture
def ring() -> Iterator[Ring]:
    with io_uring() as ring:
        if ring is None:
            pytest.skip("this kernel has no io_uring")
        yield ring


def test_attached_in_mid_frame(capture: Capture, older: Conversation) -> None:
    older.client.sendall(FIFTY_RECORDS.wire[200:])
    receive_all(older.server, len(FIFTY_RECORDS) - 100)
    assert capture.soon_saw(older)
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


@pytest.mark.parametrize("walked", [False, True], ids=["ApiVersions", "Produce"])
def test_a_thousand_frames_in_one_call(capture: Capture, port: int, walked: bool) -> None:
    topics = {"orders": {0: records_of(1)}}
    asked = partial(produce, 9, topics, acks=0) if walked else partial(request, API_VERSIONS, 3)
    with conversation(port) as talk:
        talk.widen()
        talk.ask(*(asked(correlation_id=n) for n in range(FRAMES_PER_CALL)), read=receive_at_once)
    assert capture.saw(talk)


def stretched(frame: Frame, size: int) -> Frame:
    """Return the frame with a record set of this size. Its wire stops behind the header of the record batch."""
    (sample_bytes, *others) = frame.seen.values
    assert sample_bytes[0] is MeasureKind.RECORD_BYTES
    wire = bytearray(frame.wire)
    start = len(wire) - sample_bytes[3]
    total = start + size
    struct.pack_into(">i", wire, 0, total - 4)
    struct.pack_into(">i", wire, start - 4, size)
    struct.pack_into(">i", wire, start + 8, size - 12)
    return Frame(bytes(wire), replace(frame.seen, frame_bytes=total, values=((*sample_bytes[:3], size), *others)))


@pytest.mark.parametrize("size", [FILE_BYTES, 1_000_000_000])
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
    for end in capture.both_ends_of(talk):
        assert [frame for frame in end.frames if frame not in talk.sent] == []
        assert end.frames[-4:] == talk.sent[-4:]


BLOCKED = 64  # many more than a kretprobe has instances
SKIPPED = {"program_skipped"}  # of those that are all woken at once; counted
ATTEMPTS = 3  # on a busy emulated processor a program of the conversation itself may be skipped
SENDTO, RECVFROM = 44, 45  # system calls of x86-64


@contextmanager
def blocked(port: int, system_call: int, block: Callable[[socket.socket], object]) -> Iterator[None]:
    """Block many threads in a call on connections of their own for the duration of the block."""
    with ExitStack() as stack:
        talks = [stack.enter_context(conversation(port)) for _ in range(BLOCKED)]
        threads = [Thread(target=block, args=(talk.server,)) for talk in talks]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: all(is_in(system_call, thread) for thread in threads), "all threads to wait")
            yield
        finally:
            for talk in talks:
                talk.client.close()
            for thread in threads:
                thread.join(TIMEOUT_S)
        assert not any(thread.is_alive() for thread in threads)


def is_in(system_call: int, thread: Thread) -> bool:
    return Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().startswith(f"{system_call} ")


def read_nothing(sock: socket.socket) -> None:
    sock.settimeout(None)
    assert sock.recv(1) == b""


def write_too_much(sock: socket.socket) -> None:
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)  # all together need little of TCP's memory
    with pytest.raises(ConnectionError):
        sock.sendall(bytes(FILE_BYTES))


def test_many_blocked_readers(capture: Capture, port: int) -> None:
    with blocked(port, RECVFROM, read_nothing):
        for _ in range(ATTEMPTS):
            capture.begin()
            with conversation(port) as talk:
                exchange(talk, range(20))
            if not capture.lost().keys() & SKIPPED:
                break
    assert capture.saw(talk, may_lose=SKIPPED)


def test_many_blocked_writers(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        with blocked(port, SENDTO, write_too_much):
            exchange(talk, range(20))
        exchange(talk, range(20, 30))
    if capture.backend != "kprobe":
        assert capture.saw(talk, may_lose=SKIPPED)
        return
    # Its returns are missed while others wait: counted, and found again in the sequence numbers.
    assert capture.lost()["gap"]
    for end in capture.both_ends_of(talk):
        assert [frame for frame in end.frames if frame not in talk.sent] == []
        assert end.frames[-4:] == talk.sent[-4:]


def test_a_killed_agent_leaves_nothing_attached(capture: Capture, port: int) -> None:
    before, kprobes = loaded(), kernel_list("kprobes/list")
    with attached_elsewhere(port) as agent:
        its_own = loaded() - before
        assert len(its_own) >= len(capture.instructions)
        os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not its_own & loaded(), "the kernel to drop what the killed agent held", timeout_s=10)
    assert kernel_list("kprobes/list") == kprobes
    assert kernel_list("tracing/kprobe_events") == []


@contextmanager
def attached_elsewhere(port: int) -> Iterator[int]:
    """Run a process with its own capture, which the test must kill; yield its id."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        capture = Capture(port)
        os.write(writer, capture.backend.encode())
        signal.pause()
        os._exit(1)
    os.close(writer)
    assert os.read(reader, 100)
    os.close(reader)
    yield child
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def kernel_list(name: str) -> list[str]:
    """Return the lines of a file of debugfs; none if it does not exist."""
    file = Path("/sys/kernel/debug") / name
    return file.read_text().splitlines() if file.exists() else []
