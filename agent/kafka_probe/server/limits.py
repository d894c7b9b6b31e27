"""Limits of the host's resources that the server takes: CPU of its threads, requests per second, lists at once.

Clients of the server are not trusted: on loopback they may belong to any user. No limit refuses /healthz, but a pause
of the HTTP thread delays it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import EpollSelector

HTTP_CPU_SHARE, DATA_CPU_SHARE = 0.2, 0.1
"""Shares of one core for the work that clients can cause in each of the server's two threads."""
CPU_BURST_S = 1.0
REQUESTS_PER_S, REQUESTS_AT_ONCE = 20, 40
LISTS_AT_ONCE = 2
"""Most lists being built or sent at once; each takes up to query.PAGE_BYTES."""

_PAUSE_S = 1.0  # longest pause: it delays /healthz, whose clients have timeouts of a second or more
_MOST_DEBT_S = 1.0  # CPU time that is made up for by pauses; a turn takes less
_TURN_S = 0.01


class PacedSelector(EpollSelector):
    """A selector that keeps its event loop's thread below a share of a core by pauses between turns.

    `cpu_s` is the CPU time of the thread until its last turn, in seconds.
    """

    def __init__(self, cpu_share: float) -> None:
        super().__init__()
        self.cpu_s = 0.0
        self._cpu_share = cpu_share
        self._updated_s = time.monotonic()
        self._credit_s = CPU_BURST_S

    def select(self, timeout: float | None = None) -> list[tuple[object, int]]:  # type: ignore[override]  # narrower types
        """Pause until the thread may run again, then wait for the loop's events."""
        if self._account() < 0:
            time.sleep(min(_PAUSE_S, -self._credit_s / self._cpu_share))
        return super().select(timeout)  # type: ignore[return-value]  # the same

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the CPU time of the block out of the clients' share. For the loop's thread only."""
        self._account()
        try:
            yield
        finally:
            self.cpu_s = time.thread_time()

    def _account(self) -> float:
        cpu_s, now_s = time.thread_time(), time.monotonic()
        credit_s = self._credit_s + self._cpu_share * (now_s - self._updated_s) - (cpu_s - self.cpu_s)
        self._credit_s = min(CPU_BURST_S, max(-_MOST_DEBT_S, credit_s))
        self.cpu_s, self._updated_s = cpu_s, now_s
        return self._credit_s


class Rate:
    """A token bucket of REQUESTS_AT_ONCE requests, refilled at REQUESTS_PER_S."""

    def __init__(self) -> None:
        self._tokens = float(REQUESTS_AT_ONCE)
        self._updated_s = time.monotonic()

    def take(self) -> bool:
        """Take one token and return True; return False if there is none."""
        now_s = time.monotonic()
        self._tokens = min(REQUESTS_AT_ONCE, self._tokens + REQUESTS_PER_S * (now_s - self._updated_s))
        self._updated_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Turns:
    """Divides long work of a coroutine into turns of 10 ms, between which the loop does other work or pauses."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def end(self) -> None:
        """Let other coroutines run if the turn has lasted 10 ms."""
        if time.monotonic() - self._began_s > _TURN_S:
            await asyncio.sleep(0)
            self._began_s = time.monotonic()
