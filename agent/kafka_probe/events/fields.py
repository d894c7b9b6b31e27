"""Reads the declarations of events: the name, the type and the documentation of each field.

Events are typed dictionaries whose fields are declared as `name: Annotated[type, "documentation"]`. The documents, the
Spark schema and the OpenAPI document derive from these declarations. Every field may be null or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

Scalar = Literal["string", "long", "boolean"]

_SCALARS: dict[object, Scalar] = {str: "string", int: "long", bool: "boolean"}


@dataclass(frozen=True, slots=True)
class Struct:
    """A JSON object with these fields."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A JSON array of `element`."""

    element: Struct | Scalar


@dataclass(frozen=True, slots=True)
class Counts:
    """A JSON object that maps strings to counts."""


@dataclass(frozen=True, slots=True)
class Strings:
    """A JSON object that maps strings to strings."""


FieldType = Scalar | Struct | ListOf | Counts | Strings


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its JSON name, its type, and one line for the documentation."""

    name: str
    type: FieldType
    doc: str


@cache
def fields_of(declared: type) -> tuple[Field, ...]:
    """Return the fields of a typed dictionary, those of its bases first."""
    hints = get_type_hints(declared, include_extras=True)
    declarations = ((name, get_args(hint)) for name, hint in hints.items())
    return tuple(Field(name, _type(kind), doc) for name, (kind, doc) in declarations)


def value_of(declared: type, name: str) -> str:
    """Return the only value of a field that is declared as a literal."""
    literal, _ = get_args(get_type_hints(declared, include_extras=True)[name])
    (value,) = get_args(literal)
    return str(value)


def _type(kind: Any) -> FieldType:
    if isinstance(kind, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    match get_origin(kind), get_args(kind):
        case None, _:
            return _SCALARS.get(kind) or Struct(fields_of(kind))
        case origin, (*_, inner):
            if origin is list:
                return ListOf(_SCALARS.get(inner) or Struct(fields_of(inner)))
            if origin is dict:
                return Counts() if inner is int else Strings()
            return _SCALARS[type(inner)]  # a literal
    raise TypeError(f"no field can have the type {kind}")
