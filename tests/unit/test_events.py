"""The event schema: latency buckets that add up, and the declaration as documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypedDict
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.events import (
    BUCKETS_PER_DOUBLING,
    COMMON,
    KINDS,
    ClientFacts,
    Counts,
    Field,
    ListOf,
    Strings,
    Struct,
    bucket_middle_us,
    bucket_of,
    fields_of,
    own_fields,
)
from kafka_probe.flows import _buckets
from tests.builders.event_schema import misfits

LONGEST_US = 2**32 - 1


def upper_us(bucket: int) -> float:
    upper: float = 1e6 * 2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING)
    return upper


# Neighbours of every boundary, where rounding would show, and all short latencies.
BUCKETS = range(bucket_of(0), bucket_of(LONGEST_US) + 1)
EDGES = {int(upper_us(bucket)) + around for bucket in BUCKETS for around in (-1, 0, 1, 2)} | set(range(20_000))
LATENCIES = np.array(sorted(edge for edge in EDGES if 0 <= edge <= LONGEST_US), np.uint32)


def fields(declared: tuple[Field, ...]) -> Iterator[Field]:
    for field in declared:
        yield field
        inner = field.type.element if isinstance(field.type, ListOf) else field.type
        if isinstance(inner, Struct):
            yield from fields(inner.fields)


def test_the_array_of_buckets_is_the_bucket_of_each() -> None:
    assert _buckets(LATENCIES).tolist() == [bucket_of(latency) for latency in LATENCIES.tolist()]


@given(st.integers(0, LONGEST_US))
def test_any_latency_is_in_the_same_bucket_either_way(latency_us: int) -> None:
    assert _buckets(np.array([latency_us], np.uint32)).tolist() == [bucket_of(latency_us)]


def test_a_bucket_holds_the_latencies_between_its_bounds() -> None:
    for latency in LATENCIES[1:].tolist():
        bucket = bucket_of(latency)
        assert upper_us(bucket - 1) < latency <= upper_us(bucket)


def test_a_bucket_stands_for_each_of_its_latencies_within_the_error_promised() -> None:
    errors = [abs(bucket_middle_us(bucket_of(latency)) / latency - 1) for latency in LATENCIES[1:].tolist()]
    assert max(errors) < 0.044


@pytest.mark.parametrize("latency", [0, 0.4, 1])
def test_what_took_no_time_counts_as_a_microsecond(latency: float) -> None:
    assert bucket_of(latency) == bucket_of(1)


@pytest.mark.parametrize(("latency_us", "bucket"), [(1e6, -1), (1e6 + 1, 0), (2e6, 7), (500_000, -9), (15_625, -49)])
def test_a_boundary_belongs_to_the_bucket_below_it(latency_us: float, bucket: int) -> None:
    assert bucket_of(latency_us) == bucket


def test_buckets_rise_with_latency() -> None:
    buckets = _buckets(LATENCIES)
    assert (np.diff(buckets) >= 0).all()
    assert buckets[[0, -1]].tolist() == [-160, 96]


def test_every_field_is_described_in_one_line() -> None:
    for field in fields(tuple(field for declared in KINDS.values() for field in declared)):
        assert field.doc
        assert "\n" not in field.doc
        assert "|" not in field.doc, "the documentation is a table"


class Declared(TypedDict, total=False):
    """One field of each type that an event may have."""

    text: Annotated[str | None, "a text"]
    which: Annotated[Literal["this", "that"], "one of two texts"]
    number: Annotated[int, "a number"]
    truth: Annotated[bool | None, "a truth value"]
    counts: Annotated[dict[str, int], "counts"]
    labels: Annotated[dict[str, str] | None, "labels"]
    client: Annotated[ClientFacts | None, "an object"]
    clients: Annotated[list[ClientFacts], "a list"]
    numbers: Annotated[list[int], "a list of numbers"]


def test_the_type_of_a_field_is_that_of_its_declaration() -> None:
    client = Struct(tuple(Field(name, "string", ANY) for name in ("id", "software_name", "software_version")))
    assert fields_of(Declared) == (
        Field("text", "string", "a text"),
        Field("which", "string", "one of two texts"),
        Field("number", "long", "a number"),
        Field("truth", "boolean", "a truth value"),
        Field("counts", Counts(), "counts"),
        Field("labels", Strings(), "labels"),
        Field("client", client, "an object"),
        Field("clients", ListOf(client), "a list"),
        Field("numbers", ListOf("long"), "a list of numbers"),
    )


def test_the_fields_of_all_kinds_are_those_of_every_event() -> None:
    assert {field.name for field in COMMON} == {"v", "kind", "ts", "node", "agent_id", "seq"}
    assert "closed_by" in {field.name for field in own_fields("close")}
    assert not {field.name for field in own_fields("close")} & {"v", "side", "workload"}


@pytest.mark.parametrize(
    ("event", "misfit"),
    [
        ({"kind": "flown"}, "kind 'flown'"),
        ({"kind": "open", "surprise": 1}, "open.surprise is not declared"),
        ({"kind": "open", "netns": "4026531840"}, "open.netns: '4026531840' is no long"),
        ({"kind": "flow", "internal": 1}, "flow.internal: 1 is no boolean"),
        ({"kind": "flow", "requests": True}, "flow.requests: True is no long"),
        ({"kind": "flow", "errors": {3: 1}}, "flow.errors: 3: 1 is no count"),
        ({"kind": "flow", "workload": {"labels": {"app": 1}}}, "flow.workload.labels: 'app': 1 is no string"),
        ({"kind": "flow", "topics": {"topic": "orders"}}, "flow.topics: {'topic': 'orders'} is no list"),
        ({"kind": "flow", "topics": [{"name": "orders"}]}, "flow.topics[0].name is not declared"),
        ({"kind": "close", "client": {"library": "java"}}, "close.client.library is not declared"),
    ],
)
def test_an_event_that_departs_from_the_schema_is_noticed(event: dict[str, object], misfit: str) -> None:
    assert list(misfits(event)) == [misfit]
