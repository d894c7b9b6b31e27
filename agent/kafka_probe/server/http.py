"""The ASGI application: the handlers of all paths.

All handlers are coroutines of the HTTP thread. They have their pages built in the data thread, which owns the data of
these, so that no page delays a health request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import kafka_probe
from kafka_probe.server import openapi, query
from kafka_probe.server.collector import Collector
from kafka_probe.server.guard import Guard, Json, busy
from kafka_probe.server.limits import LISTS_AT_ONCE, Turns
from kafka_probe.server.resources import RESOURCES
from kafka_probe.server.view import View

_CHUNK_BYTES = 1 << 16
_FRESH_S = 1.0
_SAMPLES_AT_ONCE = 500
_PAGES_SENT = 2
"""Most pages of metrics being sent at once. At this limit all clients get the last page: some may read very slowly."""
_EOF = b"# EOF\n"
_Build = Callable[[Coroutine[None, None, bytes]], Awaitable[bytes]]
"""Runs a coroutine in the data thread."""
_OPENMETRICS = "application/openmetrics-text"


def application(
    view: View, build: _Build, token: SecretStr | None, hosts: Collection[str] = (), *, certificates: bool = False
) -> ASGIApp:
    """Return the ASGI application that answers from the view.

    build: runs a coroutine in the data thread. token: clients must send it; certificates: clients must have shown one;
    neither for health. hosts: see Guard.
    """
    document = openapi.document(token=token is not None)
    lists = _Lists(view, build)
    sent = _Sent()
    pages = {accept: _Exposition(view, build, accept, sent) for accept in ("", f"{_OPENMETRICS};version=1.0.0")}

    async def health(scope: Scope, receive: Receive, send: Send) -> None:
        await _verdict(view.stalled() if scope["path"] == "/healthz" else view.unready())(scope, receive, send)

    async def metrics(request: Request) -> Response:
        plain, openmetrics = pages.values()
        return await (openmetrics if _OPENMETRICS in request.headers.get("accept", "") else plain).answer()

    async def described(_: Request) -> Response:
        return Json(document)

    async def landing(_: Request) -> Response:
        return HTMLResponse(_LANDING)

    application = Starlette(
        routes=[
            Route("/", landing),
            Route("/openapi.json", described),
            Route("/metrics", metrics),
            *(Route(resource.path, partial(lists.answer, resource)) for resource in RESOURCES),
        ],
        exception_handlers={query.BadQueryError: _bad_query, HTTPException: _refused},
    )
    application.router.redirect_slashes = False  # its redirects contain the Host of the request
    return Guard(application, health, token, hosts, certificates=certificates)


class _Chunked(Response):
    """A response sent in parts, each after the transport has drained: a slow client holds no copy of the body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # Starlette's signature
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), _CHUNK_BYTES):
            part = self.body[start : start + _CHUNK_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})


@dataclass(slots=True)
class _Sent:
    """The number of pages, over all formats, with running responses."""

    pages: int = 0


@dataclass(slots=True)
class _Page:
    """A page of metrics, and the number of its running responses."""

    body: bytes
    responses: int = 0


class _PageResponse(_Chunked):
    """A response with a page, which may be outdated before it is sent completely."""

    def __init__(self, page: _Page, content_type: str, sent: _Sent) -> None:
        super().__init__(page.body, headers={"Content-Type": content_type})
        self._page = page
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sent.pages += not self._page.responses
        self._page.responses += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._page.responses -= 1
            self._sent.pages -= not self._page.responses


class _Exposition:
    """The page of metrics in one format. It is rebuilt when data has changed, at most once a second."""

    def __init__(self, view: View, build: _Build, accept: str, sent: _Sent) -> None:
        self._view = view
        self._build = build
        self._sent = sent
        self._encode, self._content_type = choose_encoder(accept)
        self._state: object = None
        self._made_s = 0.0
        self._page = _Page(b"")
        self._making = asyncio.Lock()

    async def answer(self) -> Response:
        async with self._making:
            state = self._view.handed_over, self._view.unready() is None
            due = time.monotonic() - self._made_s >= _FRESH_S and self._sent.pages < _PAGES_SENT
            if self._state != state and (due or not self._page.body):
                self._page, self._state, self._made_s = _Page(await self._build(self._make())), state, time.monotonic()
        return _PageResponse(self._page, self._content_type, self._sent)

    async def _make(self) -> bytes:
        end, turns = b"", Turns()
        parts: list[bytes] = []
        for metric in Collector(self._view).collect():
            for start in range(0, max(1, len(metric.samples)), _SAMPLES_AT_ONCE):
                part: bytes = self._encode(_Part(metric, start))
                end = _EOF if part.endswith(_EOF) else b""
                while start > 0 and part.startswith(b"# "):  # HELP and TYPE lines: the first part contains them
                    part = part.partition(b"\n")[2]
                parts.append(part.removesuffix(end))
                await turns.end()
        return b"".join((*parts, end))


class _Part:
    """A collector that gives an encoder some samples of one metric."""

    def __init__(self, metric: Metric, start: int) -> None:
        self._part = copy(metric)
        self._part.samples = metric.samples[start : start + _SAMPLES_AT_ONCE]

    def collect(self) -> Iterable[Metric]:
        return (self._part,)


class _Lists:
    """Answers list requests: builds one page at a time, and builds, queues or sends at most LISTS_AT_ONCE."""

    def __init__(self, view: View, build: _Build) -> None:
        self._view = view
        self._build = build
        self._under_way = 0
        self._making = asyncio.Lock()

    async def answer(self, resource: query.Resource, request: Request) -> ASGIApp:
        wanted = query.read(resource, request.query_params.multi_items())

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            if self._under_way >= LISTS_AT_ONCE:
                await busy()(scope, receive, send)
                return
            self._under_way += 1
            try:
                async with self._making:
                    page = await self._build(query.page(resource, self._view, wanted))
                await _Chunked(page, media_type="application/json")(scope, receive, send)
            finally:
                self._under_way -= 1

        return respond


def _verdict(trouble: str | None) -> Response:
    return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)


async def _bad_query(_: Request, error: Exception) -> Response:
    return Json({"error": str(error)}, 400)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Json({"error": error.detail}, error.status_code, error.headers)


_LINKS = [*(text.path for text in openapi.TEXTS), *(resource.path for resource in RESOURCES), "/openapi.json"]
_LANDING = f"""<!doctype html>
<html lang="en">
<title>kafka-probe</title>
<h1>kafka-probe {kafka_probe.__version__}</h1>
<ul>{"".join(f'<li><a href="{path}">{path}</a></li>' for path in _LINKS)}</ul>
</html>
"""
