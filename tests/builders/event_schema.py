"""Checks that an event has the fields and types that the schema declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka_probe.events import (
    FRAMES,
    KINDS,
    SCHEMA_VERSION,
    Counts,
    Field,
    FieldType,
    ListOf,
    Strings,
    Struct,
)

_SCALARS = {"string": str, "long": int, "boolean": bool}


def assert_valid(event: Mapping[str, object]) -> None:
    """Fail with every path at which a whole event violates the schema."""
    assert event.get("v") == SCHEMA_VERSION
    assert_body_valid(event)


def assert_body_valid(event: Mapping[str, object]) -> None:
    """Check an event that the agent has not numbered yet."""
    assert list(misfits(event)) == []


def misfits(event: Mapping[str, object]) -> Iterable[str]:
    """Yield the paths of undeclared keys and of values of undeclared types; any field may be null or absent."""
    kind = event.get("kind")
    declared = {**KINDS, "frames": FRAMES}
    if kind not in declared:
        yield f"kind {kind!r}"
        return
    yield from _object(event, declared[str(kind)], str(kind))


def _object(value: object, fields: Sequence[Field], path: str) -> Iterable[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: {value!r} is no object"
        return
    types = {field.name: field.type for field in fields}
    for name, member in value.items():
        if name not in types:
            yield f"{path}.{name} is not declared"
        elif member is not None:
            yield from _value(member, types[name], f"{path}.{name}")


def _value(value: object, declared: FieldType, path: str) -> Iterable[str]:
    match declared:
        case Struct(fields):
            yield from _object(value, fields, path)
        case ListOf(element):
            if not isinstance(value, list):
                yield f"{path}: {value!r} is no list"
                return
            for index, member in enumerate(value):
                yield from _value(member, element, f"{path}[{index}]")
        case Counts():
            counts = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from (f"{path}: {k!r}: {n!r} is no count" for k, n in counts if (type(k), type(n)) != (str, int))
        case Strings():
            texts = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from (f"{path}: {k!r}: {s!r} is no string" for k, s in texts if (type(k), type(s)) != (str, str))
        case scalar:
            # Compare types exactly: in Python a boolean is an integer, in the schema it is not.
            if type(value) is not _SCALARS[scalar]:
                yield f"{path}: {value!r} is no {scalar}"
