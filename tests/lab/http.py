"""Reads responses of the agent's HTTP server, or of any other."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels of the sample."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of any status."""

    status: int
    text: str
    headers: Message

    def json(self) -> Any:
        return json.loads(self.text)


def get(url: str, *, token: str | None = None, accept: str = "*/*", tls: ssl.SSLContext | None = None) -> Answer:
    """Request a page, with a bearer token if there is one."""
    headers = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10, context=tls) as answer:
            return Answer(answer.status, answer.read().decode(), answer.headers)
    except HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read().decode(), refusal.headers)


def samples(text: str) -> Samples:
    """Parse a page of metrics with Prometheus' own parser."""
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
