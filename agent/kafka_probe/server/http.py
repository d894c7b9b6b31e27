"""The application: which path answers what, and who may ask.

Its handlers are coroutines, so that all of them run in the server's thread, which owns what they read.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import orjson
from prometheus_client.exposition import choose_encoder
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import kafka_probe
from kafka_probe.server import openapi, query
from kafka_probe.server.collector import Collector
from kafka_probe.server.resources import RESOURCES
from kafka_probe.server.view import View

OPEN = frozenset(text.path for text in openapi.TEXTS if text.open)


def application(view: View, token: SecretStr | None) -> Starlette:
    """Answers from the view; with a token, only to those who send it."""
    document = openapi.document(token=token is not None)

    async def health(_: Request) -> Response:
        return _verdict(view.stalled())

    async def readiness(_: Request) -> Response:
        return _verdict(view.unready())

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(Collector(view)), headers={"Content-Type": content_type})

    async def described(_: Request) -> Response:
        return _Json(document)

    async def landing(_: Request) -> Response:
        return HTMLResponse(_LANDING)

    async def rows(resource: query.Resource, request: Request) -> Response:
        return _Json(query.page(resource, view, request.query_params.multi_items()))

    texts = {"/healthz": health, "/readyz": readiness, "/metrics": metrics}
    return Starlette(
        routes=[
            Route("/", landing),
            Route("/openapi.json", described),
            *(Route(path, handler) for path, handler in texts.items()),
            *(Route(resource.path, partial(rows, resource)) for resource in RESOURCES),
        ],
        middleware=[Middleware(_Guard, token=token)] if token else [],
        exception_handlers={query.BadQueryError: _bad_query, HTTPException: _refused},
    )


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class _Guard:
    """Lets through who sends the token, and everybody to what says nothing of the traffic."""

    def __init__(self, application: ASGIApp, token: SecretStr) -> None:
        self._application = application
        self._header = f"Bearer {token.get_secret_value()}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = Headers(scope=scope).get("authorization", "").encode("latin-1")
        if scope["path"] in OPEN or secrets.compare_digest(header, self._header):
            await self._application(scope, receive, send)
        else:
            error = {"error": "Send the agent's token: Authorization: Bearer TOKEN."}
            await _Json(error, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def _verdict(trouble: str | None) -> Response:
    return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)


async def _bad_query(_: Request, error: Exception) -> Response:
    return _Json({"error": str(error)}, 400)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _Json({"error": error.detail}, error.status_code, error.headers)


_LINKS = [*(text.path for text in openapi.TEXTS), *(resource.path for resource in RESOURCES), "/openapi.json"]
_LANDING = f"""<!doctype html>
<html lang="en">
<title>kafka-probe</title>
<h1>kafka-probe {kafka_probe.__version__}</h1>
<ul>{"".join(f'<li><a href="{path}">{path}</a></li>' for path in _LINKS)}</ul>
</html>
"""
