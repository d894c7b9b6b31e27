"""A connection to the server: who is at its other end, and how much of the agent it may hold before that is known."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

CERTIFIED = "certified"
"""Of a request's `state`: whether its client has shown a certificate, which is one of the authority then."""
MOST = 64
PATIENCE_S = 10.0
"""For the first whole request, and for each that follows."""


class Connection(H11Protocol):
    """One of at most MOST, each of which has PATIENCE_S for its next request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.app_state = {**self.app_state, CERTIFIED: bool(transport.get_extra_info("peercert"))}
        if len(self.connections) > MOST:
            transport.abort()
        else:
            self._wait(None)

    def _wait(self, last: RequestResponseCycle | None) -> None:
        self.loop.call_later(PATIENCE_S, self._end_idle, last)

    def _end_idle(self, last: RequestResponseCycle | None) -> None:
        if self.transport.is_closing():
            return
        answered = last is None or last.response_complete
        if answered and self.cycle is last:
            self.transport.abort()
        else:
            self._wait(self.cycle)
