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

PART_BYTES = 1 << 15
FRESH_S = 1.0
PAGES_SENT = 2
"""Most pages of metrics being sent at once. At this limit all clients get the last page: some may read very slowly."""
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


@dataclass(slots=True)
class Pages:
    """The state of the pages of all formats: how many are being sent, and whether one is being built."""

    sent: int = 0
    building: bool = False


class PageResponse(Response):
    """A response with a page, sent in parts. A slow client holds one part in memory, and the page."""

    def __init__(self, page: Page, content_type: str, pages: Pages) -> None:
        super().__init__(headers={"Content-Type": content_type, "Content-Length": str(page.size)})
        self.page = page
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # Starlette's signature
        self._pages.sent += not self.page.responses
        self.page.responses += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for part in self.page.parts if scope["method"] == "GET" else ():
                await send({"type": "http.response.body", "body": zlib.decompress(part), "more_body": True})
                await asyncio.sleep(0)  # other requests, and the end of the connection if its client is gone
            await send({"type": "http.response.body"})
        finally:
            self.page.responses -= 1
            self._pages.sent -= not self.page.responses


class Exposition:
    """The page of metrics in one format. It is rebuilt when data has changed, at most once a second."""

    def __init__(self, view: View, build: Build, accept: str, pages: Pages) -> None:
        self._view = view
        self._build = build
        self._pages = pages
        self._encode, self._content_type = choose_encoder(accept)
        self._state: object = None
        self._made_s = 0.0
        self._page = Page()

    async def answer(self) -> PageResponse | Response:
        """Return the page. While one is being built, return the last one, or 429 if there is none yet."""
        state = self._view.handed_over, self._view.unready() is None
        due = time.monotonic() - self._made_s >= FRESH_S and self._pages.sent < PAGES_SENT
        if not self._pages.building and self._state != state and (due or not self._page.parts):
            self._pages.building = True
            try:
                self._page, self._state, self._made_s = await self._build(self._make()), state, time.monotonic()
            finally:
                self._pages.building = False
        return PageResponse(self._page, self._content_type, self._pages) if self._page.parts else busy()

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
