"""The first handler of every request.

It checks the Host header, answers health requests, and checks certificate, token and rate of all other requests.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Collection
from typing import Any

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kafka_probe.server import openapi
from kafka_probe.server.http_connection import CERTIFIED
from kafka_probe.server.limits import Rate
from kafka_probe.text import as_json

_HOST = re.compile(r"(?:\[([^]]+)\]|([^:\[\]]+))(?::\d{1,5})?")


class Json(Response):
    """A JSON response with a value that orjson can serialize."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return as_json(content)


def busy() -> Response:
    """Return the response 429 for a request beyond the limits."""
    return Json({"error": "Too many requests; try again in a second."}, 429, {"Retry-After": "1"})


class Guard:
    """Answers health requests at once, and passes authorized requests within the rate on to the application.

    hosts: names that a Host header may contain besides `localhost` and IP addresses. Other names are refused because
    of DNS rebinding: a browser page whose name was rebound to an address of this host sends that name.
    """

    def __init__(
        self,
        application: ASGIApp,
        health: ASGIApp,
        token: SecretStr | None,
        hosts: Collection[str],
        *,
        certificates: bool,
    ) -> None:
        self._application = application
        self._health = health
        self._header = f"Bearer {token.get_secret_value()}".encode() if token else None
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._certificates = certificates
        self._rate = Rate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._misdirected(scope)
        if answer is None and scope["path"] in openapi.OPEN:
            answer = self._health
        await (answer or self._refusal(scope) or self._application)(scope, receive, send)

    def _misdirected(self, scope: Scope) -> ASGIApp | None:
        """Return the response 421 if the request is for another host.

        A request without Host passes: only HTTP/1.0 allows it, which no browser uses. A target in absolute form
        contains a host itself and is refused.
        """
        named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if scope["path"].startswith("/") and all(map(self._knows, named)):
            return None
        advice = "Use an IP address or localhost, or allow this name with --http-host."
        return Json({"error": f"The agent does not accept this host name. {advice}"}, 421)

    def _knows(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if not found:
            return False
        name = found[1] or found[2]
        try:
            return ipaddress.ip_address(name).version == (6 if found[1] else 4)
        except ValueError:
            return found[1] is None and name.lower().removesuffix(".") in self._hosts

    def _refusal(self, scope: Scope) -> Response | None:
        if self._certificates and not scope["state"][CERTIFIED]:
            return Json(
                {"error": "Send a client certificate signed by an authority in the agent's --listen-clientcafile."}, 403
            )
        header = Headers(scope=scope).get("authorization", "").encode("latin-1")
        if self._header and not secrets.compare_digest(header, self._header):
            error = {"error": "Send the agent's token: Authorization: Bearer TOKEN."}
            return Json(error, 401, {"WWW-Authenticate": "Bearer"})
        return None if self._rate.take() else busy()
