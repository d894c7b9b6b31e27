"""The lifecycle of the server: it binds its address at construction, answers in its own thread, and is closed.

The capture loop hands over lists of events and continues; the server's thread sums them between requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import uvicorn

from kafka_probe.config import Address, Config
from kafka_probe.errors import StartError, UsageError
from kafka_probe.memory import DEFAULT, SERVER_WAITING_BYTES, event_bytes
from kafka_probe.server.client_table import ClientTable
from kafka_probe.server.http import application
from kafka_probe.server.http_connection import HttpConnection, Listener
from kafka_probe.server.limits import PacedSelector
from kafka_probe.server.tls import Tls
from kafka_probe.server.traffic import Traffic
from kafka_probe.server.view import View, Watched
from kafka_probe.sinks import Sink

log = logging.getLogger("kafka_probe")

_GRACE_S = 1
_JOIN_S = 5.0
_TURN_S = 1.0
_BACKLOG = 128  # connections that the kernel queues; Listener bounds those accepted in one turn of the loop


class _Uvicorn(uvicorn.Server):
    """Turns once a second, not ten times: ten turns take more CPU than all other work of an idle agent."""

    def __init__(self, settings: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(settings)
        self._tls = tls
        self.leaving = asyncio.Event()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            if self._tls:
                self._tls.renew()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.leaving.wait(), _TURN_S)


class Server:
    """Holds its address from construction and answers between `start` and `close`.

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
        self._pace = PacedSelector()
        self._running: tuple[_Uvicorn, asyncio.AbstractEventLoop, threading.Thread] | None = None

    def start(
        self, agent: Watched, sink: Sink, clients_bytes: int = DEFAULT.clients_bytes
    ) -> Callable[[Sequence[Mapping[str, Any]]], int]:
        """Start to answer, and return the function that takes the agent's events, see Agent.listener.

        The function takes events in their order, never blocks, and returns how many it dropped.
        clients_bytes: memory budget of the client table.
        """
        view = View(agent, sink, Traffic(self._config.metrics_series), ClientTable(clients_bytes))
        waiting: deque[int] = deque()  # memory in bytes of each list of events that is not added yet
        certificates = self._config.listen_clientcafile is not None
        settings = uvicorn.Config(
            application(
                view,
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
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_context_factory=(lambda *_: tls.context) if (tls := self._tls) else None,
        )
        server, loop = _Uvicorn(settings, self._tls), asyncio.SelectorEventLoop(self._pace)
        thread = threading.Thread(target=self._run, args=(server, loop), name="server", daemon=True)
        self._running = server, loop, thread
        thread.start()
        log.info("serving on %s://%s", "https" if self._tls else "http", self._address)

        def add(events: Sequence[Mapping[str, Any]]) -> None:
            with self._pace.uncounted():
                view.add(events)
            waiting.popleft()

        def hand_over(events: Sequence[Mapping[str, Any]]) -> int:
            size = sum(map(event_bytes, events))
            if waiting and sum(waiting) + size > SERVER_WAITING_BYTES:
                return len(events)
            with suppress(RuntimeError):  # the loop has ended, which `_run` has logged; the capture goes on
                waiting.append(size)
                loop.call_soon_threadsafe(add, events)
            return 0

        return hand_over

    def cpu_s(self) -> float:
        """Return the CPU time of the server's thread in seconds."""
        return self._pace.cpu_s

    def close(self) -> None:
        """Stop, after at most a second for requests that are being answered."""
        if self._running:
            server, loop, thread = self._running
            server.should_exit = True
            with suppress(RuntimeError):  # the loop has already ended
                loop.call_soon_threadsafe(server.leaving.set)
            thread.join(_JOIN_S)
        else:
            self._pace.close()
        self._socket.close()

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
        return Listener(listening.detach())
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise StartError(
            f"Cannot listen on {address}: {reason}; set another address with --listen, or use --listen off."
        ) from None
