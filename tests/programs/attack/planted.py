"""Makes connections lose their position inside records that consist of frames with a marker.

Planted frames have correlation ids and versions that are in use, and each is sent in a call of its own. MARKER occurs
in records only: if it leaves the kernel, contents of records do.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from itertools import cycle
from threading import Thread

from tests.builders.wire import FETCH, MARKER, Set, batch, fetched, request
from tests.programs.attack.frames import answer, framed, heartbeat, metadata, produce

CLIENT_ID, TOPIC = b"planter", b"plants"
TINY = (0, 100, 2_000, 70_000, 90_000)  # requests in one send, before the one with the records: some, more than 80,000
_IN_USE = range(2, 6)  # correlation ids of requests that are not answered yet
_OVERSIZE = struct.pack(
    ">i", 1 << 30
)  # size of a frame above the limit: what follows is not taken for a frame of Kafka
_ENDLESS = struct.pack(">i", (1 << 30) - 1)


def plants() -> list[list[bytes]]:
    """Return frames for a record's value by correlation id in use: requests and an answer, with the marker as names.

    The client id is that in use, and with every second correlation id the marker.
    """
    return [
        [
            produce(number, client_id, [MARKER], MARKER),
            metadata(number, client_id, [MARKER]),
            heartbeat(number, client_id, MARKER),
            framed(struct.pack(">i", number) + MARKER * 3),
        ]
        for number, client_id in zip(_IN_USE, cycle((CLIENT_ID, MARKER)), strict=False)
    ]


PLANTS = plants()
_VALUE = b"".join(each for some in PLANTS for each in some)
_FETCH_VERSION = 4


def _fetched() -> bytes:
    """Return the answer to _FETCH up to the record's value, which is its last bytes."""
    records = {TOPIC.decode(): {0: Set(batch(1, magic=1, value=_VALUE), 1)}}
    whole = fetched(_FETCH_VERSION, records, correlation_id=_IN_USE.start).wire
    assert whole.endswith(_VALUE)
    return whole.removesuffix(_VALUE)


_FETCH = request(FETCH, _FETCH_VERSION, _IN_USE.start).wire
_FETCHED = _fetched()


def plant(client: socket.socket, server: socket.socket, number: int) -> None:
    """Start as Kafka, lose the reader in one of several ways, and go on inside records; `number` chooses the way."""
    reader = Thread(target=_drain, args=(server,), daemon=True)
    reader.start()
    answered, way = number % 2 == 0, number // 2 % (len(TINY) + 1)
    _exchange(client, server, metadata(1, CLIENT_ID, [TOPIC]))
    asked = [heartbeat(each, CLIENT_ID, TOPIC) for each in _IN_USE]
    tiny = TINY[way] if way < len(TINY) else 0
    unanswered = [produce(_IN_USE.stop + each, CLIENT_ID, [], acks=0) for each in range(tiny)]
    carrier = produce(_IN_USE.stop + tiny, CLIENT_ID, [TOPIC], _VALUE)
    head = carrier[: -len(_VALUE)]
    client.sendall(b"".join(asked) + b"".join(unanswered) + (_OVERSIZE if way == len(TINY) else b"") + head)
    for of_one, one in zip(PLANTS, asked, strict=True):
        for planted in of_one:
            client.sendall(planted)
        if answered:  # while the records still are on their way
            _answer(client, server, one)
    if not answered:
        for one in asked:
            _answer(client, server, one)
    _answer(client, server, carrier)
    _fetch(client, server)
    client.shutdown(socket.SHUT_WR)
    reader.join()


def _fetch(client: socket.socket, server: socket.socket) -> None:
    """Do the same in values that a client fetches, while its other requests are not answered yet."""
    client.sendall(_FETCH + b"".join(heartbeat(each, CLIENT_ID, TOPIC) for each in _IN_USE[1:]))
    server.sendall(_FETCHED)
    received = 0
    for planted in (each for some in PLANTS for each in some):
        server.sendall(planted)
        received += len(client.recv(1 << 16))
    while received < len(_FETCHED) + len(_VALUE):
        received += len(client.recv(1 << 16))


def endless(client: socket.socket, server: socket.socket) -> Iterator[None]:
    """Begin a record in either direction that never ends; each `next` sends frames in it, and reads them."""
    _exchange(client, server, metadata(1, CLIENT_ID, [TOPIC]), read=True)
    carrier = produce(_IN_USE.stop, CLIENT_ID, [TOPIC], _VALUE)
    head = _ENDLESS + carrier[4 : -len(_VALUE)]
    client.sendall(_FETCH + head)
    server.recv(len(_FETCH + head), socket.MSG_WAITALL)
    server.sendall(_ENDLESS + _FETCHED[4:])
    client.recv(len(_FETCHED), socket.MSG_WAITALL)
    for of_one in cycle(PLANTS):
        for planted in of_one:
            for sender, receiver in ((client, server), (server, client)):
                sender.sendall(planted)
                receiver.recv(len(planted), socket.MSG_WAITALL)
        yield


def _exchange(client: socket.socket, server: socket.socket, asked: bytes, *, read: bool = False) -> None:
    client.sendall(asked)
    if read:
        server.recv(len(asked), socket.MSG_WAITALL)
    _answer(client, server, asked)


def _answer(client: socket.socket, server: socket.socket, asked: bytes) -> None:
    answered = answer(asked)
    server.sendall(answered)
    client.recv(len(answered), socket.MSG_WAITALL)


def _drain(server: socket.socket) -> None:
    while server.recv(1 << 20):
        pass
