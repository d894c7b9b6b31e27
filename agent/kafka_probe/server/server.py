"""The server as a sink: it binds its address at construction, answers in its own threads, and is closed.

The capture loop sends lists of events and continues. The data thread sums them and builds pages. The HTTP thread owns
the connections and answers health requests itself, so that no page delays them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import uvicorn

from kafka_probe.config import Config
from kafka_probe.errors import StartError, UsageError
from kafka_probe.events import Event
from kafka_probe.memory import DEFAULT, SERVER_WAITING_BYTES, event_bytes
from kafka_probe.server import LOSSES
from kafka_probe.server.client_table import ClientTable
from kafka_probe.server.data_thread import DataThread
from kafka_probe.server.http import application
from kafka_probe.server.http_connection import HttpConnection, Listener
from kafka_probe.server.http_loop import HttpLoop
from kafka_probe.server.limits import HTTP_CPU_SHARE, PacedSelector
from kafka_probe.server.tls import Tls
from kafka_probe.server.traffic import Traffic
from kafka_probe.server.view import View, Watched
from kafka_probe.setting_types import Address
from kafka_probe.sinks.sink import Sink

log = logging.getLogger("kafka_probe")

_GRACE_S = 1
BUFFER_BYTES = 1 << 13
"""The kernel's memory for what a client sends, and for answers that it does not read.

The kernel doubles it, and adds one segment of up to 64 KiB to the answers.
"""
_JOIN_S = 5.0
_TURN_S = 1.0
BACKLOG = 128  # connections that the kernel queues; Listener bounds those accepted in one turn of the loop


class _Uvicorn(uvicorn.Server):
    """Turns once a second, not ten times: ten turns take more CPU than all other work of an idle agent."""

    def __init__(self, settings: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(settings)
        self._tls = tls
        self.leaving = asyncio.Event()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections whose clients do not read before uvicorn cancels their handlers, which it logs as errors."""
        asyncio.get_running_loop().call_later(_GRACE_S / 2, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.abort()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            if self._tls:
                self._tls.renew()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.leaving.wait(), _TURN_S)


@dataclass(frozen=True, slots=True)
class _Running:
    view: View
    server: _Uvicorn
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


class Server:
    """A local sink that holds its address from construction, and shows events between `start` and `close`.

    Raises:
        UsageError: the settings conflict, or would admit other hosts without authentication.
        StartError: the address cannot be bound.
    """

    def __init__(self, config: Config, address: Address) -> None:
        self._config = config
        self._tls = Tls.of(config)
        if not (address.loopback or config.listen_token or config.listen_clientcafile):
            raise UsageError(
                f"--listen {address} admits other hosts: set a token (KAFKA_PROBE_LISTEN_TOKEN), require client "
                "certificates (--listen-clientcafile), or listen on 127.0.0.1."
            )
        self._address = address
        self._socket = _socket(address)
        self._data = DataThread()
        self._losses = Counter(dict.fromkeys(LOSSES, 0))
        self._waiting: deque[int] = deque()  # memory in bytes of each list of events that is not added yet
        self._running: _Running | None = None

    def start(self, agent: Watched, destination: Sink, clients_bytes: int = DEFAULT.clients_bytes) -> None:
        """Start to answer. destination: the sink whose state `/readyz` shows; clients_bytes: budget of the clients."""
        view = View(agent, destination, Traffic(self._config.metrics_series), ClientTable(clients_bytes))
        certificates = self._config.listen_clientcafile is not None
        settings = uvicorn.Config(
            application(
                view,
                self._data.build,
                self._config.listen_token,
                (*self._config.http_host, self._address.host),
                certificates=certificates,
            ),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # no warnings about invalid requests: their senders have to fix them
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("Connection", "close")],
            backlog=BACKLOG,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_context_factory=(lambda *_: tls.context) if (tls := self._tls) else None,
        )
        server, loop = _Uvicorn(settings, self._tls), HttpLoop(PacedSelector(HTTP_CPU_SHARE))
        thread = threading.Thread(target=self._run, args=(server, loop), name="server-http", daemon=True)
        self._running = _Running(view, server, loop, thread)
        self._data.start()
        thread.start()
        log.info("The HTTP server listens on %s://%s.", "https" if self._tls else "http", self._address)

    def send(self, events: Sequence[Event]) -> None:
        size = sum(map(event_bytes, events))
        if self._waiting and sum(self._waiting) + size > SERVER_WAITING_BYTES:
            self._losses["server_behind"] += len(events)
        elif self._running:
            self._waiting.append(size)
            try:
                self._data.add(partial(self._add, self._running.view, events))
            except RuntimeError:  # the thread has been closed
                self._waiting.pop()
                self._losses["server_behind"] += len(events)

    def losses(self) -> Mapping[str, int]:
        return self._losses

    def counters(self) -> Mapping[str, int]:
        return {}

    def trouble(self) -> str | None:
        return None

    def close(self, timeout_s: float = _JOIN_S) -> None:
        """Stop, after at most a second for requests that are being answered. Idempotent."""
        self._data.close(timeout_s)
        if self._running:
            self._running.server.should_exit = True
            with suppress(RuntimeError):  # the loop has already ended
                self._running.loop.call_soon_threadsafe(self._running.server.leaving.set)
            self._running.thread.join(timeout_s)
        self._socket.close()

    def _add(self, view: View, events: Sequence[Event]) -> None:
        try:
            view.add(events)
        finally:
            self._waiting.popleft()

    def _run(self, server: _Uvicorn, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(server.serve([self._socket]))
        except Exception:
            log.exception("The HTTP server on %s failed; restart the agent.", self._address)
            self._socket.close()


def _socket(address: Address) -> Listener:
    try:
        family, _, _, _, resolved = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(resolved, family=family, dualstack_ipv6=address.host == "::")
        # Connections inherit these.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        return Listener(listening.detach())
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise StartError(
            f"Cannot listen on {address}: {reason}; set another address with --listen, or use --listen off."
        ) from None
