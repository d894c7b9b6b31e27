"""Connects two sockets over loopback, and moves bytes between them."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

from kafka_probe.connections.identity import endpoint
from kafka_probe.protocol.facts import Facts, Status
from tests.builders.wire import METADATA, Frame, Seen, joined, request, response
from tests.lab.processes import wait_until

BUFFER_BYTES = 1 << 16  # surely fits into the buffers between the two sockets
TIMEOUT_S = 10.0
FRAMES_PER_CALL = 1024  # a little below the kernel's limit
TCP_REPAIR = 19  # include/uapi/linux/tcp.h
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # include/uapi/asm-generic/socket.h

Write = Callable[[socket.socket, bytes], object]
Read = Callable[[socket.socket, int], object]


def send_all(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)


def send_at_once(sock: socket.socket, data: bytes) -> None:
    assert sock.send(data) == len(data)


def receive_all(sock: socket.socket, size: int) -> None:
    while size:
        received = len(sock.recv(min(size, 1 << 20)))
        assert received
        size -= received


def receive_pieces(*sizes: int) -> Read:
    """Read in pieces of these sizes, then the rest at once."""

    def receive(sock: socket.socket, size: int) -> None:
        for piece in (*sizes, size - sum(sizes)):
            receive_all(sock, piece)

    return receive


def receive_at_once(sock: socket.socket, size: int) -> None:
    """Read all of it in one call; it may exceed the usual buffer between the sockets: see `Conversation.widen`."""
    wait_until(lambda: _waiting_bytes(sock) == size, "all bytes to arrive")
    assert len(sock.recv(size)) == size


def _waiting_bytes(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


def send_pieces(*sizes: int) -> Write:
    """Write in pieces of these sizes, then the rest at once."""

    def send(sock: socket.socket, data: bytes) -> None:
        for size in sizes:
            sock.sendall(data[:size])
            data = data[size:]
        sock.sendall(data)

    return send


def sendfile(sock: socket.socket, data: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        assert os.sendfile(sock.fileno(), file.fileno(), 0, len(data)) == len(data)


def splice_out(sock: socket.socket, size: int) -> None:
    reader, writer = os.pipe()
    while size:
        moved = os.splice(sock.fileno(), writer, size)
        os.read(reader, moved)
        size -= moved
    os.close(reader)
    os.close(writer)


def transfer(
    sender: socket.socket,
    receiver: socket.socket,
    data: bytes,
    write: Write = send_all,
    read: Read = receive_all,
) -> None:
    """Move the bytes; as many as the sockets' buffers accept are written before the first read."""
    if len(data) <= BUFFER_BYTES:
        write(sender, data)
        read(receiver, len(data))
        return
    writer = Thread(target=write, args=(sender, data))
    writer.start()
    read(receiver, len(data))
    writer.join(TIMEOUT_S)
    assert not writer.is_alive()


@dataclass(slots=True)
class Conversation:
    """A client and a server, connected, and the bytes sent so far. names: local addresses, the client's first."""

    client: socket.socket
    server: socket.socket
    names: tuple[str, str]
    sent: list[Seen] = field(default_factory=list)

    def widen(self) -> None:
        """Widen the buffers between the sockets to a mebibyte."""
        for sock in (self.client, self.server):
            for force in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
                sock.setsockopt(socket.SOL_SOCKET, force, 1 << 20)

    def ask(self, *frames: Frame, write: Write = send_all, read: Read = receive_all) -> None:
        """Send requests, all of them before the first is read."""
        transfer(self.client, self.server, joined(frames), write, read)
        self.sent += [frame.seen for frame in frames]

    def answer(self, *frames: Frame, write: Write = send_all, read: Read = receive_all) -> None:
        transfer(self.server, self.client, joined(frames), write, read)
        self.sent += [frame.seen for frame in frames]


@contextmanager
def conversation(port: int, *, server: str = "127.0.0.1", client: str | None = None) -> Iterator[Conversation]:
    """Open a connection to a new listener; at the end close both ends, the client's first."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with (
        socket.create_server((server, port), family=family, dualstack_ipv6=server == "::") as listener,
        accepted_by(listener, client or server, then_close=True) as talk,
    ):
        yield talk


@contextmanager
def accepted_by(
    listener: socket.socket, server: str, *, source: str = "", then_close: bool = False
) -> Iterator[Conversation]:
    """Open a connection to this listener; server: its address for the client, source: the client's own."""
    listener.settimeout(TIMEOUT_S)
    with socket.create_connection((server, listener.getsockname()[1]), TIMEOUT_S, (source, 0)) as connected:
        accepted, _ = listener.accept()
        if then_close:
            listener.close()
        with accepted:
            for sock in (connected, accepted):
                sock.settimeout(TIMEOUT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Conversation(connected, accepted, (_name(connected), _name(accepted)))
            connected.close()


@contextmanager
def kafka(port: int, **ends: str) -> Iterator[Conversation]:
    """Open a conversation whose first exchange proves that it is Kafka; `sent` contains that exchange."""
    with conversation(port, **ends) as talk:
        exchange(talk, [0])
        yield talk


def exchange(talk: Conversation, correlation_ids: Iterable[int] = (1, 2)) -> None:
    """Send Metadata requests, each answered before the next."""
    for correlation_id in correlation_ids:
        talk.ask(request(METADATA, 12, correlation_id))
        talk.answer(response(METADATA, 12, correlation_id))


def vanish(sock: socket.socket) -> None:
    """Close a socket without notice to the peer, like a host that is cut off: only checkpointing can do that."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    sock.close()


def raw_token(talk: Conversation, token: bytes) -> None:
    """Send a SASL token without a Kafka header, and the server's answer: neither may be reported."""
    frame = Frame(len(token).to_bytes(4, "big") + token, Seen(Facts(False, 0, 0, Status.COMPLETE), 0, 0))
    talk.ask(frame)
    talk.answer(frame)
    del talk.sent[-2:]


def _name(sock: socket.socket) -> str:
    address, port = sock.getsockname()[:2]
    return endpoint(sock.family, socket.inet_pton(sock.family, address), port)
