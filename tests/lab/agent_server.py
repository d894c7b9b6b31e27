"""Runs a server for tests that send it real HTTP requests."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_probe.config import Config
from kafka_probe.connections.connection import Connection
from kafka_probe.server.server import Server
from kafka_probe.setting_types import Address
from tests.builders.events import StillAgent, StillSink
from tests.lab.http import Answer, get
from tests.lab.processes import free_port

PATHS = ("/", "/metrics", "/openapi.json", "/api/v1/connections", "/api/v1/clients", "/api/v1/topics")
"""Pages that need the token, or a certificate."""


@dataclass(slots=True)
class Served:
    """A running server, and the agent and the sink that it watches."""

    url: str
    server: Server
    agent: StillAgent = field(default_factory=StillAgent)
    sink: StillSink = field(default_factory=StillSink)

    def get(
        self, path: str, token: str | None = None, tls: ssl.SSLContext | None = None, accept: str = "*/*"
    ) -> Answer:
        return get(self.url + path, token=token, tls=tls, accept=accept)

    def connect(self) -> socket.socket:
        """Return a plain TCP connection to the server."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=10)

    def connect_slowly(self, receive_bytes: int) -> socket.socket:
        """Return a connection with a buffer of this size for what it receives."""
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        peer.connect(("127.0.0.1", self.port))
        return peer

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def exchange(self, request: bytes) -> bytes:
        """Send bytes and nothing after them; return the answer."""
        with self.connect() as peer:
            peer.sendall(request)
            return until_end(peer)


def until_end(peer: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    return b"".join(iter(lambda: peer.recv(65536), b""))


def unread_bytes(served: Served) -> Iterator[int]:
    """Yield the bytes that the kernel keeps for each client, also of closed connections: /proc/net/tcp."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == served.port:
            yield int(queues.partition(":")[0], 16)


@contextmanager
def serving(host: str = "127.0.0.1", connections: tuple[Connection, ...] = (), **settings: Any) -> Iterator[Served]:
    """Run a server with these settings for an agent with these connections."""
    address = Address(host, free_port(host))
    config = Config(listen=address, **settings)
    server = Server(config, address)
    scheme = "https" if config.listen_certfile else "http"
    served = Served(f"{scheme}://{address}", server, StillAgent(connections))
    try:
        server.start(served.agent, served.sink)
        yield served
    finally:
        server.close()
