"""Floods the agent's HTTP server: a program.

    python -m tests.programs.attack.http_flood slow|hammer|large HOST PORT SECONDS

`slow` holds many connections, of which half send nothing and half send a header byte by byte; `hammer` asks for metrics
by several threads as fast as it can; `large` sends the largest requests that are accepted, larger ones and others that
cost much, and reads little of the answers or nothing. Standard output is what was done, as JSON: {"done": n,
"seconds": s}.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kafka_probe.server.http_connection import REQUEST_BYTES, REQUEST_LINES
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

    return _repeat(lambda: get(f"http://{host}:{port}/metrics"), until_s)


def large(host: str, port: int, until_s: float) -> int:
    """Send large requests until the end, and keep their connections; return the number of requests."""
    kept: deque[socket.socket] = deque(maxlen=CONNECTIONS // THREADS)
    lines = b"".join(b"%d:\r\n" % n for n in range(REQUEST_LINES - 4))
    fill = b"x" * (REQUEST_BYTES - len(lines) - 64)
    heads = (
        _request("/healthz", lines + b"X: " + fill + b"\r\n"),
        _request("/healthz", b"a:\r\n" * 15_000),
        _request("/metrics", lines),
        _request("/metrics", b"", "HEAD"),
        _request("/api/v1/clients?" + "&".join(["sort=ts"] * 1900), b""),
        _request("/healthz", b"", "CONNECT"),
    )
    numbers = itertools.count()

    def send() -> None:
        connection = socket.create_connection((host, port), timeout=1)
        number = next(numbers)
        connection.sendall(heads[number % len(heads)])
        if number % 2:
            connection.close()
        else:
            kept.append(connection)
            connection.recv(1 << 10)

    return _repeat(send, until_s)


def _request(path: str, lines: bytes, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + lines + b"\r\n"


def _repeat(request: Callable[[], object], until_s: float) -> int:
    """Call the function by several threads until the end; return the number of calls."""

    def repeat() -> int:
        done = 0
        while time.monotonic() < until_s:
            with suppress(OSError):
                request()
            done += 1
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(one.result() for one in [pool.submit(repeat) for _ in range(THREADS)])


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
    done = {"slow": slow, "hammer": hammer, "large": large}[name](host, int(port), began + float(seconds))
    print(json.dumps({"done": done, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
