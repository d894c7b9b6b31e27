"""Floods the agent's HTTP server: a program.

    python -m tests.programs.attack.http_flood slow|hammer HOST PORT SECONDS

`slow` holds many connections, of which half say nothing and half send a header byte by byte; `hammer` asks for metrics
by several threads as fast as it can. Standard output is what was done, as JSON: {"done": n, "seconds": s}.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests.lab.http import get

CONNECTIONS = 2_000
THREADS = 8
_BEGINNING = b"GET /healthz HTTP/1.1\r\nX: "
_PAUSE_S = 1.0  # between two bytes of one connection


def slow(host: str, port: int, until_s: float) -> int:
    """Hold connections until the end, reopening those that the server closes. Return the number of opened ones."""
    connections = [_opened(host, port, place) for place in range(CONNECTIONS)]
    opened = CONNECTIONS
    for number in _paced(until_s, CONNECTIONS / _PAUSE_S):
        place = number % CONNECTIONS
        try:
            if place % 2:
                connections[place].send(b"x")
            if connections[place].recv(1 << 16) == b"":
                raise ConnectionError
        except BlockingIOError:
            continue
        except OSError:
            connections[place].close()
            connections[place] = _opened(host, port, place)
            opened += 1
    for each in connections:
        each.close()
    return opened


def hammer(host: str, port: int, until_s: float) -> int:
    """Ask for metrics until the end; return the number of requests."""

    def ask() -> int:
        asked = 0
        while time.monotonic() < until_s:
            with suppress(OSError):
                get(f"http://{host}:{port}/metrics")
            asked += 1
        return asked

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(one.result() for one in [pool.submit(ask) for _ in range(THREADS)])


def _opened(host: str, port: int, place: int) -> socket.socket:
    """Return a connection that does not block, or a closed socket if the server takes none."""
    connection = socket.socket()
    with suppress(OSError):
        connection.settimeout(1)
        connection.connect((host, port))
        connection.send(_BEGINNING if place % 2 else b"")
        connection.setblocking(False)
        return connection
    connection.close()
    return connection


def _paced(until_s: float, rate: float) -> Iterator[int]:
    for number in range(int((until_s - time.monotonic()) * rate)):
        if time.monotonic() > until_s:
            return
        time.sleep(1 / rate)
        yield number


def main() -> None:
    name, host, port, seconds = sys.argv[1:]
    began = time.monotonic()
    done = {"slow": slow, "hammer": hammer}[name](host, int(port), began + float(seconds))
    print(json.dumps({"done": done, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
