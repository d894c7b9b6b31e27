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
from kafka_probe.server.connection import CERTIFIED
from kafka_probe.server.resources import RESOURCES
from kafka_probe.server.view import View
from kafka_probe.text import printable_json


def application(view: View, token: SecretStr | None, *, certificates: bool = False) -> Starlette:
    """Answers from the view; with a token, only to those who send it, and with certificates, who have shown one."""
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
        middleware=[Middleware(_Guard, token=token, certificates=certificates)],
        exception_handlers={query.BadQueryError: _bad_query, HTTPException: _refused},
    )


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return printable_json(orjson.dumps(content))


class _Guard:
    """Lets through who has what is asked for, and everybody to what says nothing of the traffic."""

    def __init__(self, application: ASGIApp, token: SecretStr | None, *, certificates: bool) -> None:
        self._application = application
        self._header = f"Bearer {token.get_secret_value()}".encode() if token else None
        self._certificates = certificates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None if scope["path"] in openapi.OPEN else self._refusal(scope)
        await (answer or self._application)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if self._certificates and not scope["state"][CERTIFIED]:
            return _Json({"error": "Show a certificate of an authority in the agent's --listen-clientcafile."}, 403)
        header = Headers(scope=scope).get("authorization", "").encode("latin-1")
        if self._header and not secrets.compare_digest(header, self._header):
            error = {"error": "Send the agent's token: Authorization: Bearer TOKEN."}
            return _Json(error, 401, {"WWW-Authenticate": "Bearer"})
        return None


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
