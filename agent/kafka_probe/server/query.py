"""The lists of the API: rows filtered by their fields, sorted and in pages.

The fields of a resource determine its parameters and their types. Rows are built for each request, and only those of
the page are kept. This module never changes the agent's data.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from kafka_probe.events import Field, ListOf, Scalar, Struct
from kafka_probe.server.limits import Turns
from kafka_probe.server.view import View
from kafka_probe.text import as_json

LIMIT, MOST = 100, 1000
SORTED = 10_000
"""Most rows of a sorted list that a client can request: so many are kept while the list is built."""
FILTERS = 100
"""Most filter values in one request."""
PARAMETERS = FILTERS + 4
"""Most parameters in one request: filters, `sort`, `limit`, `offset` and `internal`."""
_QUOTED = 64
PAGE_BYTES = 1 << 20
"""Most bytes of the rows in a page; a page contains one row in any case."""

JsonRow = Mapping[str, Any]


class BadQueryError(Exception):
    """Raised for parameters that cannot be used; the text is a sentence for the client."""


class TooManyFiltersError(BadQueryError):
    """Raised for more filter values than a request may have."""

    def __init__(self) -> None:
        super().__init__(f"A request may have at most {FILTERS} filter values; send several requests for more.")


@dataclass(frozen=True)
class Resource:
    """A list that clients can request. `items` returns its current items, `row` makes a row of one item."""

    path: str
    doc: str
    fields: tuple[Field, ...]
    items: Callable[[View], Sequence[Any]]
    row: Callable[[Any], JsonRow]
    is_own: Callable[[Any], bool] = lambda _: False
    """Test for kafka-probe's own items, which are left out unless the request contains `internal=true`."""

    @cached_property
    def filters(self) -> dict[str, Scalar]:
        """Return the types of the fields that rows can be filtered by, by path. Any element of a list may match."""
        return {path: kind for path, kind, _ in _paths(self.fields)}

    @cached_property
    def orders(self) -> list[str]:
        """Return the paths of the fields that rows can be sorted by: those with one value per row."""
        return [path for path, _, single in _paths(self.fields) if single]


@dataclass(frozen=True, slots=True)
class Query:
    """A client's query: it selects rows that have, at every path of `wanted`, one of the given values."""

    wanted: Mapping[tuple[str, ...], AbstractSet[object]]
    sort: tuple[str, ...] | None = None
    descending: bool = False
    limit: int = LIMIT
    offset: int = 0
    internal: bool = False

    def fits(self, row: JsonRow) -> bool:
        return all(any(value in given for value in _values(row, path)) for path, given in self.wanted.items())

    def sort_key(self, row: JsonRow) -> tuple[bool, Any]:
        """Return the sort key of a row. Rows without a value come last in both directions."""
        value = next(_values(row, self.sort or ()), None)
        return (value is None) != self.descending, value

    def first(self, keyed: list[tuple[tuple[bool, Any], Any]]) -> list[tuple[tuple[bool, Any], Any]]:
        """Sort pairs of sort key and item in place, and return those up to the end of the page."""
        keyed.sort(key=lambda one: one[0], reverse=self.descending)
        return keyed[: self.offset + self.limit]


async def page(resource: Resource, view: View, query: Query) -> bytes:
    """Return the query's page of rows, and the number of all rows, as JSON. Other coroutines run every 10 ms."""
    turns = Turns()
    total, end = 0, query.offset + query.limit
    found: list[Any] = []
    keyed: list[tuple[tuple[bool, Any], Any]] = []
    for item in resource.items(view):
        await turns.end()
        if not query.internal and resource.is_own(item):
            continue
        row = resource.row(item) if query.wanted or query.sort else {}
        if not query.fits(row):
            continue
        total += 1
        if query.sort:
            keyed.append((query.sort_key(row), item))
            if len(keyed) == end + MOST:
                keyed = query.first(keyed)
        elif query.offset < total <= end:
            found.append(item)
    if query.sort:
        found = [item for _, item in query.first(keyed)[query.offset :]]
    rows: list[orjson.Fragment] = []
    size = 0
    for item in found:
        text = as_json(resource.row(item))
        size += len(text)
        if rows and size > PAGE_BYTES:
            break
        rows.append(orjson.Fragment(text))
        await turns.end()
    page = orjson.dumps({"total": total, "offset": query.offset, "rows": rows})
    return bytes(memoryview(page))  # a copy: what orjson returns occupies up to twice its size


def read(resource: Resource, parameters: Iterable[tuple[str, str]]) -> Query:
    """Return the query of parameters: field paths with wanted values, `sort`, `limit`, `offset`, `internal`.

    Raises:
        BadQueryError: a parameter cannot be used.
    """
    filters = resource.filters
    wanted: dict[tuple[str, ...], set[object]] = defaultdict(set)
    shape: dict[str, Any] = {}
    for name, text in parameters:
        if name in ("limit", "offset"):
            shape[name] = _number(name, text, MOST if name == "limit" else None)
        elif name == "internal":
            shape[name] = _value(name, text, "boolean")
        elif name == "sort":
            path = text.removeprefix("-")
            if path not in resource.orders:
                raise BadQueryError(
                    f"Rows cannot be sorted by {_short(path)}; choose one of {', '.join(resource.orders)}."
                )
            shape |= {"sort": tuple(path.split(".")), "descending": text.startswith("-")}
        elif name in filters:
            wanted[*name.split("."),].add(_value(name, text, filters[name]))
            if sum(map(len, wanted.values())) > FILTERS:
                raise TooManyFiltersError
        else:
            known = ", ".join(("limit", "offset", "sort", "internal", *filters))
            raise BadQueryError(f"Unknown parameter {_short(name)}; choose from {known}.")
    query = Query(wanted, **shape)
    if query.sort and query.offset + query.limit > SORTED:
        raise BadQueryError(
            f"Only the first {SORTED:,} rows of a sorted list are available; add a filter, or leave out sort."
        )
    return query


def _number(name: str, text: str, most: int | None) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or (most is not None and not 0 < int(text) <= most):
        raise BadQueryError(
            f"{name} must be a number{'' if most is None else f' from 1 to {most}'}, not {_short(text)!r}."
        )
    return int(text)


def _value(name: str, text: str, kind: Scalar) -> object:
    match kind:
        case "long" if re.fullmatch(r"-?[0-9]{1,19}", text):
            return int(text)
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case "string":
            return text
    raise BadQueryError(f"{name} must be {'a number' if kind == 'long' else 'true or false'}, not {_short(text)!r}.")


def _short(text: str) -> str:
    """Return the beginning of a client's text, so that the answer is short."""
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def _paths(fields: Iterable[Field], prefix: str = "", single: bool = True) -> Iterator[tuple[str, Scalar, bool]]:
    for field in fields:
        match field.type:
            case Struct(inner):
                yield from _paths(inner, f"{prefix}{field.name}.", single)
            case ListOf(Struct(inner)):
                yield from _paths(inner, f"{prefix}{field.name}.", single=False)
            case str(scalar):
                yield prefix + field.name, scalar, single


def _values(value: Any, path: tuple[str, ...]) -> Iterator[object]:
    if isinstance(value, list):
        for element in value:
            yield from _values(element, path)
    elif not path:
        yield value
    elif value is not None:
        yield from _values(value.get(path[0]), path[1:])
