"""The ASGI application: the handlers of all paths.

All handlers are coroutines of the HTTP thread. They have their pages built in the data thread, which owns the data of
these, so that no page delays a health request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import kafka_probe
from kafka_probe.server import openapi, query
from kafka_probe.server.exposition import OPENMETRICS, PART_BYTES, Build, Exposition
from kafka_probe.server.guard import Guard, Json, busy
from kafka_probe.server.limits import LISTS_AT_ONCE
from kafka_probe.server.resources import RESOURCES
from kafka_probe.server.view import View
from kafka_probe.text import as_json


def application(
    view: View, build: Build, token: SecretStr | None, hosts: Collection[str] = (), *, certificates: bool = False
) -> ASGIApp:
    """Return the ASGI application that answers from the view.

    build: runs a coroutine in the data thread. token: clients must send it; certificates: clients must have shown one;
    neither for health. hosts: see Guard.
    """
    document = as_json(openapi.document(token=token is not None))
    lists = _Lists(view, build)
    turn = asyncio.Lock()
    plain, openmetrics = (Exposition(view, build, accept, turn) for accept in ("", f"{OPENMETRICS};version=1.0.0"))

    async def health(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):  # h11 accepts no body after a successful CONNECT
            await PlainTextResponse("Use GET.\n", 405, {"Allow": "GET, HEAD"})(scope, receive, send)
            return
        await _verdict(view.stalled() if scope["path"] == "/healthz" else view.unready())(scope, receive, send)

    async def metrics(request: Request) -> Response:
        return await (openmetrics if OPENMETRICS in request.headers.get("accept", "") else plain).answer()

    async def described(_: Request) -> Response:
        return _Chunked(document, media_type="application/json")

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
        for start in range(0, len(self.body), PART_BYTES):
            part = self.body[start : start + PART_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)  # other requests, and the end of the connection if its client is gone
        await send({"type": "http.response.body"})


class _Lists:
    """Answers list requests: builds one page at a time, and builds, queues or sends at most LISTS_AT_ONCE."""

    def __init__(self, view: View, build: Build) -> None:
        self._view = view
        self._build = build
        self._under_way = 0
        self._making = asyncio.Lock()

    async def answer(self, resource: query.Resource, request: Request) -> ASGIApp:
        if request.scope["query_string"].count(b"&") >= query.PARAMETERS:
            raise query.TooManyFiltersError
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
