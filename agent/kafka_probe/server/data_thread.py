"""The thread that owns the data of the server: it adds events to the sums, and builds pages from them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus

from starlette.exceptions import HTTPException

from kafka_probe.server.exposition import Built
from kafka_probe.server.limits import DATA_CPU_SHARE, PacedSelector


class DataThread:
    """An event loop in a thread of its own. The CPU time of pages is limited, that of events is not."""

    def __init__(self) -> None:
        self._pace = PacedSelector(DATA_CPU_SHARE)
        self._loop = asyncio.SelectorEventLoop(self._pace)
        self._leaving = asyncio.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="server-data", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, add: Callable[[], None]) -> None:
        """Call `add` in the thread. Its CPU time does not count in the share of clients.

        Raises:
            RuntimeError: the thread has been closed.
        """
        self._loop.call_soon_threadsafe(self._add, add)

    async def build(self, page: Coroutine[None, None, Built], /) -> Built:
        """Run the coroutine in the thread and return its result. Cancellation cancels it.

        Raises:
            HTTPException: the thread is being closed.
        """
        stopping = HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "The agent is stopping.")
        if self._closing:
            page.close()
            raise stopping
        try:
            building = asyncio.run_coroutine_threadsafe(page, self._loop)
        except RuntimeError:  # the loop has ended
            page.close()
            raise stopping from None
        try:
            return await asyncio.wrap_future(building)
        except asyncio.CancelledError:
            if self._closing:
                raise stopping from None
            raise

    def close(self, timeout_s: float) -> None:
        """Stop; pages that are being built are cancelled. Idempotent."""
        self._closing = True
        if self._thread.ident is None:
            self._loop.close()
            return
        with suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._leaving.set)
        self._thread.join(timeout_s)

    def _add(self, add: Callable[[], None]) -> None:
        with self._pace.uncounted():
            add()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._leaving.wait())
