"""Sends floods of Kafka frames: a program that connects to itself, with both ends in one thread.

    python -m tests.programs.attack.flood NAME HOST PORT COUNT SECONDS

COUNT steps are spread evenly over SECONDS; where the machine cannot keep up, the rest is left out after twice as long.
Standard output is what was done, as JSON: {"done": n, "planned": n, "seconds": s}, with "requests", the number of
answered ones, of floods that are correct Kafka.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator

from tests.builders.hostile import LONE_SURROGATE, NAMES
from tests.programs.attack.frames import answer, heartbeat, metadata, produce
from tests.programs.attack.planted import endless, plant

TOPICS = 20  # of each request
REQUESTS = {"connections": 2, "client_ids": 1, "topics": 1, "groups": 1}  # of each step, answered
BACKLOG = 4096
PAIRS = 50  # of a flood by requests
WRITERS = 500  # at a time, one byte after the other
_SEED = 7
# As bytes of the wire, some of them no UTF-8.
_NAMES = [*(name.encode() for name in NAMES), LONE_SURROGATE.encode("utf-8", "surrogatepass"), b"\x9b31m", b"\xff\xfe"]

Step = Callable[[int], None]


class Pair:
    """Both ends of one connection to a listener."""

    def __init__(self, listener: socket.socket) -> None:
        # From the listener's own address, which need not be that of the loopback interface.
        self.client = socket.create_connection(listener.getsockname(), source_address=(listener.getsockname()[0], 0))
        self.server = listener.accept()[0]
        for end in (self.client, self.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, asked: bytes) -> None:
        """Send a request, read it, and answer it."""
        self.client.sendall(asked)
        self.server.recv(len(asked), socket.MSG_WAITALL)
        self.answer(asked)

    def answer(self, asked: bytes) -> None:
        """Answer a request that was read, and read the answer."""
        answered = answer(asked)
        self.server.sendall(answered)
        self.client.recv(len(answered), socket.MSG_WAITALL)

    def close(self) -> None:
        """Close both ends, the server's first; otherwise each of the client's ports would wait for a minute."""
        self.server.close()
        self.client.close()


def connections(listener: socket.socket) -> Step:
    """Open a connection per step with a new client id and new topics, ask twice, and close it.

    The first request is short, as that of real clients: its answer proves the connection.
    """

    def step(number: int) -> None:
        client_id = b"client-%d" % number
        pair = Pair(listener)
        pair.exchange(metadata(1, client_id, []))
        pair.exchange(metadata(2, client_id, _topics(number)))
        pair.close()

    return step


def client_ids(listener: socket.socket) -> Step:
    """Ask with a new client id per step on one of few connections."""
    return _asking(listener, lambda number: metadata(number, b"client-%d" % number, [b"orders"]))


def topics(listener: socket.socket) -> Step:
    """Ask for new topics per step on one of few connections."""
    return _asking(listener, lambda number: produce(number, b"flood", _topics(number)))


def groups(listener: socket.socket) -> Step:
    """Send a request of a new group per step on one of few connections."""
    return _asking(listener, lambda number: heartbeat(number, b"flood", b"group-%d" % number))


def hostile_names(listener: socket.socket) -> Step:
    """Open a connection per step, with hostile names as client id, topics and group."""

    def step(number: int) -> None:
        name, other = _NAMES[number % len(_NAMES)], _NAMES[number // len(_NAMES) % len(_NAMES)]
        pair = Pair(listener)
        pair.exchange(produce(1, name, [other]))
        pair.exchange(heartbeat(2, name, other))
        pair.close()

    return step


def garbage(listener: socket.socket) -> Step:
    """Open a connection per step and send random bytes, every second time after a correct length."""
    chance = random.Random(_SEED)

    def step(_: int) -> None:
        data = chance.randbytes(chance.randrange(1, 1000))
        if chance.random() < 0.5:
            data = len(data).to_bytes(4, "big") + data
        pair = Pair(listener)
        for sender, reader in ((pair.client, pair.server), (pair.server, pair.client)):
            sender.sendall(data)
            reader.recv(len(data), socket.MSG_WAITALL)
        pair.close()

    return step


def one_byte_writers(listener: socket.socket) -> Step:
    """Send one byte of a request per step on one of many connections, and read it."""
    asked = [metadata(number, b"slow-%d" % number, [b"orders"]) for number in range(WRITERS)]
    pairs = [Pair(listener) for _ in range(WRITERS)]

    def step(number: int) -> None:
        turn, writer = divmod(number, WRITERS)
        pair, request = pairs[writer], asked[writer]
        at = turn % len(request)
        pair.client.sendall(request[at : at + 1])
        pair.server.recv(1)
        if at == len(request) - 1:
            pair.answer(request)

    return step


def planted_frames(listener: socket.socket) -> Step:
    """Open a connection per step that loses its reader inside records that look like frames.

    Beside them there are records that never end, for who begins to look in the middle of one.
    """
    pairs = [Pair(listener) for _ in range(PAIRS)]
    records = [endless(pair.client, pair.server) for pair in pairs]

    def step(number: int) -> None:
        next(records[number % PAIRS])
        pair = Pair(listener)
        plant(pair.client, pair.server, number)
        pair.close()

    return step


def _asking(listener: socket.socket, asked: Callable[[int], bytes]) -> Step:
    pairs = [Pair(listener) for _ in range(PAIRS)]
    return lambda number: pairs[number % PAIRS].exchange(asked(number))


def _topics(number: int) -> list[bytes]:
    return [b"topic-%d-%d" % (number, each) for each in range(TOPICS)]


FLOODS: dict[str, Callable[[socket.socket], Step]] = {
    each.__name__: each
    for each in (
        connections,
        client_ids,
        topics,
        groups,
        garbage,
        one_byte_writers,
        hostile_names,
        planted_frames,
    )
}


def paced(count: int, seconds: float) -> Iterator[int]:
    """Yield the numbers below `count` evenly over `seconds`; give up after twice as long."""
    began = time.monotonic()
    for number in range(count):
        ahead = began + number * seconds / count - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        elif ahead < -seconds:
            return
        yield number


def main() -> None:
    name, host, port, count, seconds = sys.argv[1:]
    began, done = time.monotonic(), 0
    with socket.create_server((host, int(port)), backlog=BACKLOG) as listener:
        step = FLOODS[name](listener)
        for number in paced(int(count), float(seconds)):
            step(number)
            done += 1
    found = {"done": done, "planned": int(count), "seconds": round(time.monotonic() - began, 1)}
    if name in REQUESTS:
        found["requests"] = done * REQUESTS[name]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
