"""What /api/v1 answers: rows of connections, clients and topics, filtered, sorted and in pages.

The fields of a resource are declared once, in the terms of events.py: they give the parameters, the check of what is
asked for, and the OpenAPI document. Rows are made when somebody asks, and only those of the page are kept.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_probe.connections.tracker import Connection
from kafka_probe.events import CLIENT, COMMON, FLOW, FLOW_TOPIC, OPEN, Counts, Field, ListOf, Scalar, Struct
from kafka_probe.server.clients import Client, Key
from kafka_probe.server.traffic import Labels, Named
from kafka_probe.server.view import View

LIMIT, MOST = 100, 1000

Row = Mapping[str, Any]


class BadQuery(Exception):  # noqa: N818  # it is the client's error, and ends no command
    """Parameters that cannot be used; the text is a sentence for who sent them."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A list that can be asked for: its items at this moment, and what one is as a row."""

    path: str
    doc: str
    fields: tuple[Field, ...]
    items: Callable[[View], Sequence[Any]]
    row: Callable[[Any], Row]

    @property
    def filters(self) -> dict[str, Scalar]:
        """Types by the paths of all fields that can be filtered by; in lists any element may match."""
        return {path: kind for path, kind, _ in _paths(self.fields)}

    @property
    def orders(self) -> list[str]:
        """The paths that rows can be sorted by: those with one value per row."""
        return [path for path, _, single in _paths(self.fields) if single]


@dataclass(frozen=True, slots=True)
class Query:
    """What to show: rows whose values at every path of `wanted` are among those given."""

    wanted: Mapping[tuple[str, ...], Sequence[object]]
    sort: tuple[str, ...] | None = None
    descending: bool = False
    limit: int = LIMIT
    offset: int = 0

    def fits(self, row: Row) -> bool:
        return all(any(value in given for value in _values(row, path)) for path, given in self.wanted.items())

    def place(self, row: Row) -> tuple[bool, Any]:
        """The sort key of a row. Rows without a value come last, whichever the direction."""
        value = next(_values(row, self.sort or ()), None)
        return (value is None) != self.descending, value


def page(resource: Resource, view: View, parameters: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The rows that the parameters ask for, and how many there are in all. BadQuery says what is wrong with them."""
    query = read(resource, parameters)
    found = resource.items(view)
    if query.wanted:
        found = [item for item in found if query.fits(resource.row(item))]
    if query.sort:
        found = sorted(found, key=lambda item: query.place(resource.row(item)), reverse=query.descending)
    rows = [resource.row(item) for item in found[query.offset : query.offset + query.limit]]
    return {"total": len(found), "offset": query.offset, "rows": rows}


def read(resource: Resource, parameters: Iterable[tuple[str, str]]) -> Query:
    """Parameters as a query: a field's path with the value wanted, `sort`, `limit`, `offset`."""
    filters = resource.filters
    wanted: dict[tuple[str, ...], list[object]] = defaultdict(list)
    shape: dict[str, Any] = {}
    for name, text in parameters:
        if name in ("limit", "offset"):
            shape[name] = _number(name, text, MOST if name == "limit" else None)
        elif name == "sort":
            path = text.removeprefix("-")
            if path not in resource.orders:
                raise BadQuery(f"Rows cannot be sorted by {path}; choose one of {', '.join(resource.orders)}.")
            shape |= {"sort": tuple(path.split(".")), "descending": text.startswith("-")}
        elif name in filters:
            wanted[*name.split("."),].append(_value(name, text, filters[name]))
        else:
            raise BadQuery(f"There is no parameter {name}; there are limit, offset, sort, {', '.join(filters)}.")
    return Query(wanted, **shape)


def _number(name: str, text: str, most: int | None) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or (most is not None and not 0 < int(text) <= most):
        raise BadQuery(f"{name} must be a number{'' if most is None else f' from 1 to {most}'}, not {text!r}.")
    return int(text)


def _value(name: str, text: str, kind: Scalar) -> object:
    match kind:
        case "long" if re.fullmatch(r"-?\d{1,19}", text):
            return int(text)
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case "string":
            return text
    raise BadQuery(f"{name} must be {'a number' if kind == 'long' else 'true or false'}, not {text!r}.")


def _paths(fields: Iterable[Field], prefix: str = "", single: bool = True) -> Iterator[tuple[str, Scalar, bool]]:
    for field in fields:
        match field.type:
            case Struct(inner):
                yield from _paths(inner, f"{prefix}{field.name}.", single)
            case ListOf(element):
                yield from _paths(element.fields, f"{prefix}{field.name}.", single=False)
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


def _named(fields: Iterable[Field], *names: str) -> tuple[Field, ...]:
    by_name = {field.name: field for field in fields}
    return tuple(by_name[name] for name in names)


def _connection(connection: Connection) -> Row:
    opened_ns = connection.opened_ns + time.time_ns() - time.monotonic_ns()
    found = {"found": connection.found, "cookie": connection.identity.cookie}
    return {"since": opened_ns // 1000, **connection.common(), **found}


def _client(item: tuple[Key, Client]) -> Row:
    key, client = item
    return {
        "since": client.since,
        "ts": client.ts,
        "side": key.side,
        "address": key.address,
        "type": client.type,
        "client": {"id": key.id, "software_name": key.software_name, "software_version": key.software_version},
        "group": client.group,
        "workload": client.workload,
        "requests": client.requests,
        "request_bytes": client.request_bytes,
        "response_bytes": client.response_bytes,
        "records": client.records,
        "topics": [{"topic": topic} for topic in sorted(client.topics)],
    }


def _topics(view: View) -> Sequence[tuple[Labels, list[tuple[Labels, Named]]]]:
    """What each side did to each topic by each API, of all workloads."""
    found: dict[Labels, list[tuple[Labels, Named]]] = defaultdict(list)
    for (side, workload, comm, api, topic), named in view.traffic.topics:
        found[side, topic, api].append(((workload, comm), named))
    return list(found.items())


def _topic(item: tuple[Labels, list[tuple[Labels, Named]]]) -> Row:
    (side, topic, api), used = item
    rows = [named for _, named in used]
    return {
        "since": min(row.since for row in rows),
        "ts": max(row.ts for row in rows),
        "side": side,
        "topic": topic,
        "topic_id": next((row.topic_id for row in rows if row.topic_id), None),
        "api": api,
        "requests": sum(row.requests for row in rows),
        "records": sum(row.records for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "uncounted_bytes": sum(row.uncounted_bytes for row in rows),
        "errors": sum((row.errors for row in rows), Counter[str]()),
        "workloads": [{"workload": workload, "comm": comm} for (workload, comm), _ in used],
    }


_TOPIC = Field("topic", "string", "topic name, or its id while that has no name; other: what found no room")

RESOURCES = (
    Resource(
        "/api/v1/connections",
        "The open connections.",
        (
            Field("since", "long", "when it was seen first, µs since epoch; it is at least that old"),
            *_named(COMMON, "side", "flow_id", "conn_id", "local", "peer", "netns", "cluster_id"),
            *_named(COMMON, "workload", "client", "opaque"),
            *_named(OPEN, "found", "cookie"),
        ),
        lambda view: view.agent.connections(),
        _connection,
    ),
    Resource(
        "/api/v1/clients",
        "Who writes and reads what: the clients that spoke within the last hour.",
        (
            Field("since", "long", "start of the first interval in which it was heard, µs since epoch"),
            Field("ts", "long", "end of the last interval in which it was heard, µs since epoch"),
            *_named(COMMON, "side"),
            Field("address", "string", "address of the client's host, as the watched end sees it"),
            Field("type", "string", "producer, consumer, producer+consumer, broker, admin, internal or other"),
            Field("client", CLIENT, "the Kafka client"),
            *_named(FLOW, "group"),
            *_named(COMMON, "workload"),
            *_named(FLOW, "requests", "request_bytes", "response_bytes"),
            *_named(FLOW_TOPIC.fields, "records"),
            Field("topics", ListOf(Struct((Field("topic", "string", "name, or id"),))), "the first 1,000 it named"),
        ),
        lambda view: tuple(view.clients),
        _client,
    ),
    Resource(
        "/api/v1/topics",
        "What is done to which topic by which API, on either side, by the workloads that are there.",
        (
            Field("since", "long", "start of the first interval in which it was named, µs since epoch"),
            Field("ts", "long", "end of the last interval in which it was named, µs since epoch"),
            *_named(COMMON, "side"),
            _TOPIC,
            *_named(FLOW_TOPIC.fields, "topic_id"),
            *_named(FLOW, "api"),
            *_named(FLOW_TOPIC.fields, "requests", "records", "bytes", "uncounted_bytes"),
            Field("errors", Counts(), "name of the error code to count"),
            Field(
                "workloads",
                ListOf(
                    Struct(
                        (
                            Field("workload", "string", "pod, container or unit, as in the metrics"),
                            Field("comm", "string", "command name of its main thread"),
                        )
                    )
                ),
                "who did it",
            ),
        ),
        _topics,
        _topic,
    ),
)
