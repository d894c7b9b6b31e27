"""Reads Kafka's message definitions from the table that generate.py wrote: every API, both directions, every version.

The table is JSON: api key -> {name, request: [era], response: [era]}. An era is [first version, last version, first
flexible version or null, fields]; a field is [name, type, versions or null for all of the era, nullable versions, tag,
fields of a struct] without trailing nulls, where tag is [number, first tagged version, last tagged version].
It is read on first use. This module contains only Kafka's definitions; plan.py turns them into plans.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kafka_probe.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterator


# Sizes of Kafka's fixed-size types in bytes.
WIDTHS = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16}


@dataclass(frozen=True, slots=True)
class Api:
    """One API. Each direction has its eras, newest first; together they cover the versions without overlap."""

    key: int
    name: str
    request: tuple[Era, ...]
    response: tuple[Era, ...]

    @property
    def versions(self) -> range:
        return range(self.request[-1].first, self.request[0].last + 1)

    def flexible(self, version: int) -> bool:
        """Return True if the version uses compact lengths, tagged fields (KIP-482) and request header 2."""
        start = self.request[0].flexible_from
        return start is not None and version >= start

    def flexible_response_header(self, version: int) -> bool:
        """Return True if tags follow the correlation id. ApiVersions has none: its reader may not know the version."""
        return self.key != ApiKey.API_VERSIONS and self.flexible(version)


@dataclass(frozen=True, slots=True)
class Era:
    """A range of versions that one definition file describes."""

    first: int
    last: int
    flexible_from: int | None
    fields: tuple[SchemaField, ...]


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of Kafka's definition. Version ranges are (first, last).

    `type` is Kafka's type, with `struct` instead of a struct's name; `tag` is the tag number in the versions `tagged`.
    """

    name: str
    type: str
    versions: tuple[int, int]
    nullable: tuple[int, int] | None
    tag: int | None
    tagged: tuple[int, int] | None
    fields: tuple[SchemaField, ...]


@cache
def apis() -> dict[int, Api]:
    """Return every API by its API key."""
    table = json.loads(files(__package__).joinpath("schemas.json").read_text())
    return {
        int(key): Api(int(key), row["name"], tuple(_eras(row["request"])), tuple(_eras(row["response"])))
        for key, row in table["apis"].items()
    }


def fields_of(api: Api, *, response: bool, version: int) -> tuple[SchemaField, ...]:
    """Return the top-level fields of the era of a version; some may exist in its other versions only."""
    eras = api.response if response else api.request
    return next(era.fields for era in eras if era.first <= version <= era.last)


def _eras(rows: list[list[Any]]) -> Iterator[Era]:
    for first, last, flexible_from, fields in rows:
        yield Era(first, last, flexible_from, tuple(_field(row, (first, last)) for row in fields))


def _field(row: list[Any], era: tuple[int, int]) -> SchemaField:
    name, kind, versions, nullable, tag, fields = row + [None] * (6 - len(row))
    return SchemaField(
        name,
        kind,
        tuple(versions or era),
        nullable and tuple(nullable),
        tag and tag[0],
        tag and tuple(tag[1:]),
        tuple(_field(member, era) for member in fields or ()),
    )
