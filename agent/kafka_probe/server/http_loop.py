"""The event loop of the HTTP server, whose failed TLS handshakes leave no memory to the garbage collector."""

from __future__ import annotations

import asyncio
from typing import Any


class HttpLoop(asyncio.SelectorEventLoop):
    """An event loop that breaks the reference cycle of a failed handshake.

    Before CPython 3.11.6 the exception of a failed handshake, by its traceback, kept the connection with its buffer of
    256 KiB until the next garbage collection (gh-109534).
    """

    def _make_ssl_transport(
        self, rawsock: Any, protocol: Any, sslcontext: Any, waiter: asyncio.Future[None] | None = None, **options: Any
    ) -> Any:
        if waiter:
            waiter.add_done_callback(self._forget_frames_later)
        make: Any = super()._make_ssl_transport  # type: ignore[misc]  # private to asyncio, so its stubs lack it
        return make(rawsock, protocol, sslcontext, waiter, **options)

    def _forget_frames_later(self, waiter: asyncio.Future[None]) -> None:
        """Wait until those who wait for the handshake have its exception, too."""
        error = None if waiter.cancelled() else waiter.exception()
        if error:
            self.call_soon(_forget_frames, error)


def _forget_frames(error: BaseException) -> None:
    error.__traceback__ = error.__context__ = None
