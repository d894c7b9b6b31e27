"""Builds events with every field that the schema declares for their kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka_probe.events import (
    KINDS,
    SCHEMA_VERSION,
    ClientFacts,
    Counts,
    Field,
    FieldType,
    ListOf,
    Strings,
    Struct,
    WorkloadFacts,
    fields_of,
)


def full_event(kind: str, number: int) -> dict[str, Any]:
    """Return an event of a kind with this number in every field of type long but its time."""
    event = {field.name: _sample(field.type, number) for field in KINDS[kind]}
    return event | {"v": SCHEMA_VERSION, "kind": kind, "ts": 1}


def _sample(kind: FieldType, number: int) -> object:
    """Return a value of a type, with every field set."""
    match kind:
        case Struct(fields):
            return {field.name: _sample(field.type, number) for field in fields}
        case ListOf(element):
            return [_sample(element, number)] * 2
        case Counts():
            return {"3": 4, "-1": 5}
        case Strings():
            return {"app": "orders"}
        case scalar:
            return {"string": "text", "long": number, "boolean": True}[scalar]


def longest_flow(text: str, counts: dict[str, int]) -> dict[str, Any]:
    """Return the texts and counts by code of a flow of one topic, all of them the given ones."""
    owner = {"workload": _texts(fields_of(WorkloadFacts), text), "client": _texts(fields_of(ClientFacts), text)}
    topics = [{"topic": text, "topic_id": text, "errors": counts, "codecs": counts}]
    counted = dict.fromkeys(("errors", "latency", "latency_empty"), counts)
    return _texts(KINDS["flow"], text) | owner | counted | {"kind": "flow", "topics": topics}


def _texts(fields: Iterable[Field], text: str) -> dict[str, Any]:
    return {field.name: text for field in fields if field.type == "string"}
