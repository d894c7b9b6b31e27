"""The OpenAPI 3.1 document of the server. Schemas of rows are derived from the fields of the resources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import kafka_probe
from kafka_probe.events import Counts, Field, FieldType, ListOf, Scalar, Strings, Struct
from kafka_probe.server.query import LIMIT, MOST, PAGE_BYTES, SORTED, Resource
from kafka_probe.server.resources import RESOURCES

Schema = dict[str, Any]

SCALARS: dict[Scalar, str] = {"string": "string", "long": "integer", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class TextPage:
    """A path whose response is text.

    failing: the status may be 503, with the reason as text; open: the path needs neither token nor certificate.
    """

    path: str
    doc: str
    failing: bool = False
    open: bool = False


TEXTS = (
    TextPage("/healthz", "Check that the capture loop runs.", failing=True, open=True),
    TextPage("/readyz", "Check that the agent is attached and its sink takes events.", failing=True, open=True),
    TextPage("/metrics", "Return the metrics in the format of Prometheus."),
)
OPEN = frozenset(text.path for text in TEXTS if text.open)
"""Paths that need neither token nor certificate, because their responses contain nothing about the traffic."""


def document(*, token: bool) -> Schema:
    """Return the OpenAPI document. token: True if clients must send one."""
    paths = {text.path: _text(text, token and not text.open) for text in TEXTS}
    paths |= {resource.path: _list(resource, token) for resource in RESOURCES}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kafka-probe agent", "version": kafka_probe.__version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}} if token else {}},
    }


def _text(text: TextPage, guarded: bool) -> Schema:
    words = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    failing = {"503": {"description": "no; the text is the reason", **words}} if text.failing else {}
    return _get(text.doc, {"200": {"description": "yes", **words}, **failing}, guarded)


def _list(resource: Resource, guarded: bool) -> Schema:
    answer = _object(
        {
            "total": {"type": "integer", "description": "number of matching rows, on all pages"},
            "offset": {"type": "integer", "description": "number of matching rows before this page"},
            "rows": {"type": "array", "items": _struct(resource.fields)},
        }
    )
    bad = _object({"error": {"type": "string"}})
    responses = {"200": _json("a page of rows", answer), "400": _json("an unknown parameter, or an invalid value", bad)}
    filters = (
        _parameter(path, {"type": SCALARS[kind]}, "return only rows with this value; may be repeated")
        for path, kind in resource.filters.items()
    )
    parameters = [
        _parameter(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": MOST, "default": LIMIT},
            f"most rows of the page; it ends earlier if it would exceed {PAGE_BYTES >> 20} MiB",
        ),
        _parameter("offset", {"type": "integer", "minimum": 0, "default": 0}, "number of rows to skip"),
        _parameter(
            "sort",
            {"enum": [f"{sign}{path}" for path in resource.orders for sign in ("", "-")]},
            f"field to sort by, descending after a dash; offset and limit together are at most {SORTED:,} then",
        ),
        _parameter("internal", {"type": "boolean", "default": False}, "include kafka-probe's own rows"),
        *filters,
    ]
    return _get(resource.doc, responses, guarded, parameters)


def _get(doc: str, responses: Schema, guarded: bool, parameters: Iterable[Schema] = ()) -> Schema:
    security: Schema = {"security": [{"token": []}]} if guarded else {}
    refusals = {
        "421": "a host name that the agent does not accept, see --http-host",
        "429": "too many requests at once",
    }
    if guarded:
        refusals["401"] = "no token, or a wrong one"
    refused = {status: _json(doc, _object({"error": {"type": "string"}})) for status, doc in refusals.items()}
    return {"get": {"summary": doc, "parameters": list(parameters), "responses": responses | refused, **security}}


def _parameter(name: str, schema: Schema, doc: str) -> Schema:
    return {"name": name, "in": "query", "description": doc, "schema": schema}


def _json(doc: str, schema: Schema) -> Schema:
    return {"description": doc, "content": {"application/json": {"schema": schema}}}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _struct(fields: Iterable[Field]) -> Schema:
    """Return the schema of an object in which every field is present and may be null."""
    return _object({field.name: {"description": field.doc, **_nullable(field.type)} for field in fields})


def _nullable(kind: FieldType) -> Schema:
    match kind:
        case Struct(fields):
            return {"anyOf": [_struct(fields), {"type": "null"}]}
        case ListOf(Struct(fields)):
            return {"type": ["array", "null"], "items": _struct(fields)}
        case ListOf(element):
            return {"type": ["array", "null"], "items": _nullable(element)}
        case Counts():
            return {"type": ["object", "null"], "additionalProperties": {"type": "integer"}}
        case Strings():
            return {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
        case str(scalar):
            return {"type": [SCALARS[scalar], "null"]}
