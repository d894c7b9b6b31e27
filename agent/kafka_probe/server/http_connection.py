"""Connections to the server: who is at the other end, and how much of the agent all may hold before that is known."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

CERTIFIED = "certified"
"""Of a request's `state`: whether its client has shown a certificate, which is one of the authority then."""
MOST = 64
AT_ONCE = MOST // 4
"""Accepted in one turn of the loop: so a request that came with its connection is read before others displace it."""
PATIENCE_S = 10.0
"""For the first whole request and for each that follows; an answer that is not taken has at least as long."""


class Listener(socket.socket):
    """A listening socket of at most MOST connections: beyond that it closes the oldest for each new one.

    So those who say nothing keep nobody out, and a TLS handshake that never ends counts like any other connection. Of
    very many at once one may go that is being answered.
    """

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._open: list[socket.socket] = []
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self._accepted == AT_ONCE:
            self._accepted = 0
            raise BlockingIOError  # the loop asks again in its next turn
        self._accepted += 1
        connection, address = super().accept()
        self._open = [*(older for older in self._open if older.fileno() >= 0), connection]
        if len(self._open) > MOST:
            with suppress(OSError):  # the peer has gone already
                self._open.pop(0).shutdown(socket.SHUT_RDWR)
        return connection, address


class HttpConnection(H11Protocol):
    """Has PATIENCE_S for its next request, and up to twice as long for the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.app_state = {**self.app_state, CERTIFIED: bool(transport.get_extra_info("peercert"))}
        self._wait(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()  # which would hold this object till then
        super().connection_lost(exc)

    def _wait(self, last: RequestResponseCycle | None) -> None:
        self._patience = self.loop.call_later(PATIENCE_S, self._end_idle, last)

    def _end_idle(self, last: RequestResponseCycle | None) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is last:
            self.transport.abort()
        else:
            self._wait(self.cycle)
