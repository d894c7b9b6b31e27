"""Bounds of what the server takes of the host: CPU of its thread, requests per second, lists in work.

The clients of the server are not trusted: on loopback they may be any user's. None of these bounds holds back /healthz.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import EpollSelector

CPU_SHARE = 0.2
"""Of a core, for everything that clients can make the server do."""
CPU_BURST_S = 1.0
REQUESTS_PER_S, REQUESTS_AT_ONCE = 50, 100
LISTS_AT_ONCE = 4
"""Lists that are being made or sent: each takes up to query.PAGE_BYTES."""

_PAUSE_S = 1.0  # at most: /healthz waits for it, and those who ask for that wait for a second, too
_TURN_S = 0.01


class PacedSelector(EpollSelector):
    """Keeps the thread of an event loop below CPU_SHARE: each turn of the loop may begin with a pause.

    `cpu_s` is what the thread has taken until its last turn, for other threads to read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cpu_s = 0.0
        self._looked_s = time.monotonic()
        self._credit_s = CPU_BURST_S

    def select(self, timeout: float | None = None) -> list[tuple[object, int]]:  # type: ignore[override]  # a narrower one
        """Wait for what the loop waits for, not before the thread may run again."""
        if self._account() < 0:
            time.sleep(-self._credit_s / CPU_SHARE)
        return super().select(timeout)  # type: ignore[return-value]

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What runs inside, in the thread of the loop, is no client's doing."""
        self._account()
        yield
        self.cpu_s = time.thread_time()

    def _account(self) -> float:
        cpu_s, now_s = time.thread_time(), time.monotonic()
        credit_s = self._credit_s + CPU_SHARE * (now_s - self._looked_s) - (cpu_s - self.cpu_s)
        self._credit_s = min(CPU_BURST_S, max(-_PAUSE_S * CPU_SHARE, credit_s))
        self.cpu_s, self._looked_s = cpu_s, now_s
        return self._credit_s


class Rate:
    """A token bucket of REQUESTS_AT_ONCE requests that fills by REQUESTS_PER_S."""

    def __init__(self) -> None:
        self._tokens = float(REQUESTS_AT_ONCE)
        self._looked_s = time.monotonic()

    def take(self) -> bool:
        """Return True if one more request is within the bound."""
        now_s = time.monotonic()
        self._tokens = min(REQUESTS_AT_ONCE, self._tokens + REQUESTS_PER_S * (now_s - self._looked_s))
        self._looked_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Turns:
    """Divides long work of a coroutine into turns of 10 ms, between which the event loop serves others."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def end(self) -> None:
        """Let others run if the turn has lasted long enough."""
        if time.monotonic() - self._began_s > _TURN_S:
            await asyncio.sleep(0)
            self._began_s = time.monotonic()
