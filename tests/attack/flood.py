"""Floods of Kafka frames as a program: it listens on an address and connects to itself, both ends in one thread.

    python -m tests.attack.flood NAME HOST PORT COUNT SECONDS

COUNT is spread evenly over SECONDS; where the machine cannot keep up it is as fast as it can, for at most twice as
long. Standard output is what was done, as JSON: {"done": n, "seconds": s}.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator

from tests.attack.frames import answer, metadata

TOPICS = 20  # of each request
BACKLOG = 4096


class Pair:
    """Both ends of one connection to a listener."""

    def __init__(self, listener: socket.socket) -> None:
        # From the listener's own address, which need not be that of the loopback interface.
        self.client = socket.create_connection(listener.getsockname(), source_address=(listener.getsockname()[0], 0))
        self.server = listener.accept()[0]

    def exchange(self, asked: bytes) -> None:
        """Send a request, read it, and answer it."""
        self.client.sendall(asked)
        self.server.recv(len(asked), socket.MSG_WAITALL)
        answered = answer(asked)
        self.server.sendall(answered)
        self.client.recv(len(answered), socket.MSG_WAITALL)

    def close(self) -> None:
        """Close both ends, the server's first: else each of the client's ports would wait for a minute."""
        self.server.close()
        self.client.close()


def connections(listener: socket.socket, number: int) -> None:
    """Open a connection with a client id and topics that no other has, ask once, and close it."""
    pair = Pair(listener)
    pair.exchange(metadata(number, b"client-%d" % number, [b"topic-%d-%d" % (number, i) for i in range(TOPICS)]))
    pair.close()


FLOODS: dict[str, Callable[[socket.socket, int], None]] = {"connections": connections}


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
        for number in paced(int(count), float(seconds)):
            FLOODS[name](listener, number)
            done += 1
    print(json.dumps({"done": done, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
