"""The page of metrics: built in the data thread at most once a second, kept compressed, and sent in parts."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from prometheus_client.exposition import choose_encoder
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kafka_probe.server.collector import Collector, family
from kafka_probe.server.guard import busy
from kafka_probe.server.limits import Turns
from kafka_probe.server.metrics import METRICS
from kafka_probe.server.view import View

PART_BYTES = 1 << 14
FRESH_S = 1.0
OPENMETRICS = "application/openmetrics-text"
_ROWS_AT_ONCE = 100
_EOF = b"# EOF\n"

Built = TypeVar("Built")


class Build(Protocol):
    """Runs a coroutine in the data thread and returns its result."""

    def __call__(self, page: Coroutine[None, None, Built], /) -> Awaitable[Built]: ...


@dataclass(slots=True)
class Page:
    """A page of metrics in parts, each compressed by itself, and the number of its running responses."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes, not compressed
    responses: int = 0

    def add(self, text: bytes | bytearray) -> None:
        self.parts.append(zlib.compress(text, 1))
        self.size += len(text)


class PageResponse(Response):
    """A response with a page, sent in parts. A slow client holds one part in memory, and the page."""

    def __init__(self, page: Page, content_type: str) -> None:
        super().__init__(headers={"Content-Type": content_type, "Content-Length": str(page.size)})
        self.page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # Starlette's signature
        self.page.responses += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for part in self.page.parts if scope["method"] == "GET" else ():
                await send({"type": "http.response.body", "body": zlib.decompress(part), "more_body": True})
                await asyncio.sleep(0)  # other requests, and the end of the connection if its client is gone
            await send({"type": "http.response.body"})
        finally:
            self.page.responses -= 1


class Exposition:
    """The page of metrics in one format. It is rebuilt when data has changed, at most once a second.

    It is also not rebuilt while the page before it is still being sent. New clients get the last page, so that clients
    who read slowly keep two pages of each format in memory, and keep others from a new one until their time is over.
    """

    def __init__(self, view: View, build: Build, accept: str, one_at_a_time: asyncio.Lock) -> None:
        self._view = view
        self._build = build
        self._one_at_a_time = one_at_a_time
        self._encode, self._content_type = choose_encoder(accept)
        self._state: object = None
        self._made_s = 0.0
        self._building = False
        self._page, self._before = Page(), Page()

    async def answer(self) -> PageResponse | Response:
        """Return the page. While one is being built, return the last one, or 429 if there is none yet."""
        if not self._building and self._is_due():
            self._building = True
            try:
                async with self._one_at_a_time:
                    state = self._now()
                    page = await self._build(self._make())
            finally:
                self._building = False
            self._before, self._page = self._page, page
            self._state, self._made_s = state, time.monotonic()
        return PageResponse(self._page, self._content_type) if self._page.parts else busy()

    def _is_due(self) -> bool:
        if self._page.parts and (self._before.responses or time.monotonic() - self._made_s < FRESH_S):
            return False
        return self._state != self._now()

    def _now(self) -> object:
        """Return a value that changes when the page would."""
        return self._view.handed_over, self._view.unready() is None

    async def _make(self) -> Page:
        page, turns, text, end = Page(), Turns(), bytearray(), b""
        for part in self._texts():
            end = _EOF if part.endswith(_EOF) else b""
            text += part.removesuffix(end)
            while len(text) >= PART_BYTES:
                page.add(text[:PART_BYTES])
                del text[:PART_BYTES]
            await turns.end()
        page.add(text + end)
        return page

    def _texts(self) -> Iterator[bytes]:
        """Yield the text of each family in parts of some rows. Each ends like a page."""
        for metric in METRICS:
            rows = list(metric.read(self._view))  # other coroutines may change the tables between two parts
            for start in range(0, max(1, len(rows)), _ROWS_AT_ONCE):
                text: bytes = self._encode(Collector(family(metric, rows[start : start + _ROWS_AT_ONCE])))
                while start > 0 and text.startswith(b"# "):  # HELP and TYPE: the first part has them
                    text = text.partition(b"\n")[2]
                yield text
