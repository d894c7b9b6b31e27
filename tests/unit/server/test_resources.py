"""Rows are filtered, sorted and paged as requested, and match the OpenAPI document."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from kafka_probe.events import INTERNAL_CLIENT, Field
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.server import openapi
from kafka_probe.server.query import FILTERS, MOST, PAGE_BYTES, SORTED, BadQueryError, JsonRow, Resource, page, read
from kafka_probe.server.resources import RESOURCES
from tests.builders.events import NOW_US, SECOND_US, flow, topic, view, workload
from tests.builders.fed_agent import Fed
from tests.builders.samples import opened as opened_record
from tests.builders.samples import rejected, request

CONNECTIONS, CLIENTS, TOPICS = RESOURCES
METADATA = ApiKey.METADATA
WROTE_NOTHING = {"written_bytes": 0, "written_records": 0}


def ask(resource: Any, shown: Any, *parameters: tuple[str, str]) -> dict[str, Any]:
    """Return the requested page as parsed JSON, which must match the OpenAPI document."""
    answer: dict[str, Any] = orjson.loads(asyncio.run(page(resource, shown, read(resource, parameters))))
    document = openapi.document(token=False)
    described = document["paths"][resource.path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator.check_schema(described)
    Draft202012Validator(described).validate(answer)
    return answer


CLIENT_FLOWS = (
    flow(
        client={"id": "billing", "software_name": None, "software_version": None}, topics=[topic(), topic("payments")]
    ),
    flow(
        NOW_US + SECOND_US,
        client={"id": "audit", "software_name": "librdkafka", "software_version": "2.5"},
        api="Fetch",
        group="auditors",
        requests=300,
        workload=workload("python", pid=9),
        topics=[topic("payments")],
    ),
    flow(side="server", client={"id": None, "software_name": None, "software_version": None}, requests=20),
)


def names(answer: dict[str, Any]) -> list[str | None]:
    return [row["client"]["id"] for row in answer["rows"]]


def test_its_own_clients_and_connections_are_left_out_unless_asked_for() -> None:
    clients = view(*CLIENT_FLOWS, flow(internal=True, api=None, workload=workload("python", pid=5)))
    assert [ask(CLIENTS, clients, *more)["total"] for more in ([], [("internal", "true")])] == [3, 4]
    fed = Fed()
    fed.see(
        opened_record(1),
        opened_record(2),
        request(METADATA, 12, 1),
        request(METADATA, 12, 2, client_id=f"{INTERNAL_CLIENT}x"),
    )
    connections = view(connections=fed.agent.connections())
    assert [ask(CONNECTIONS, connections, *more)["total"] for more in ([], [("internal", "true")])] == [1, 2]


def test_a_client_is_shown_with_all_that_is_known_of_it() -> None:
    answer = ask(CLIENTS, view(*CLIENT_FLOWS), ("client.id", "audit"))
    (row,) = answer["rows"]
    assert answer["total"] == 1
    assert (row["type"], row["group"], row["address"], row["side"]) == (
        "consumer",
        "auditors",
        "10.0.0.7",
        "client",
    )
    assert (row["requests"], row["request_bytes"], row["response_bytes"], row["records"]) == (300, 4000, 900, 50)
    assert row["client"] == {"id": "audit", "software_name": "librdkafka", "software_version": "2.5"}
    assert row["workload"]["comm"] == "python"
    assert row["topics"] == [{"topic": "payments", **WROTE_NOTHING, "read_bytes": 3000, "read_records": 50}]
    assert row["apis"] == [{"api": "Fetch", "lowest": 9, "highest": 9, "requests": 300}]
    assert (row["requests_per_min"], row["errors"], len(row["id"])) == (3600, {}, 16)
    assert (row["since"], row["ts"]) == (NOW_US - 4 * SECOND_US, NOW_US + SECOND_US)


def test_topics_that_no_broker_allows_are_not_shown() -> None:
    (row,) = ask(CLIENTS, view(flow(topics=[topic(""), topic("\x01" * 249), topic("o" * 250), topic()])))["rows"]
    assert [topic["topic"] for topic in row["topics"]] == ["orders"]


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ([], ["billing", "audit", None]),
        ([("type", "consumer")], ["audit"]),
        ([("topics.topic", "payments")], ["billing", "audit"]),
        ([("topics.topic", "payments"), ("workload.pid", "7")], ["billing"]),
        ([("client.id", "billing"), ("client.id", "audit")], ["billing", "audit"]),
        ([("side", "server")], [None]),
        ([("client.id", "nobody")], []),
        ([("sort", "requests")], ["billing", None, "audit"]),
        ([("sort", "-requests")], ["audit", None, "billing"]),
        ([("sort", "client.id")], ["audit", "billing", None]),
        ([("sort", "-client.id")], ["billing", "audit", None]),
        ([("sort", "-requests"), ("limit", "1")], ["audit"]),
        ([("sort", "-requests"), ("limit", "2"), ("offset", "1")], [None, "billing"]),
        ([("offset", "3")], []),
    ],
)
def test_rows_are_filtered_sorted_and_cut(parameters: list[tuple[str, str]], found: list[str | None]) -> None:
    assert names(ask(CLIENTS, view(*CLIENT_FLOWS), *parameters)) == found


def numbers_of(items: Sequence[int], row: Callable[[int], JsonRow]) -> Resource:
    return Resource("/", "", (Field("n", "long", ""),), lambda _: items, row)


def test_a_sorted_page_takes_no_more_memory_where_there_are_more_rows() -> None:
    items = range(100_000)
    numbers = numbers_of(items, lambda n: {"n": -n})
    asked = read(numbers, [("sort", "n"), ("limit", "2"), ("offset", "3")])
    tracemalloc.start()
    try:
        answer = orjson.loads(asyncio.run(page(numbers, view(), asked)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer == {"total": 100_000, "offset": 3, "rows": [{"n": -99_996}, {"n": -99_995}]}
    assert peak < 1_000_000


def test_of_equal_rows_a_sorted_page_shows_the_first() -> None:
    items = [*range(3 * MOST), *range(3 * MOST)]
    numbers = numbers_of(items, lambda n: {"n": n % 2, "exact": n})
    asked = read(numbers, [("sort", "-n"), ("limit", "2"), ("offset", "1")])
    answer = orjson.loads(asyncio.run(page(numbers, view(), asked)))
    assert [row["exact"] for row in answer["rows"]] == [3, 5]


def test_sorted_rows_far_behind_are_refused_in_a_sentence() -> None:
    last = [("sort", "requests"), ("offset", str(SORTED - 10)), ("limit", "10")]
    assert ask(CLIENTS, view(*CLIENT_FLOWS), *last)["rows"] == []
    with pytest.raises(
        BadQueryError, match=r"^Only the first 10,000 rows of a sorted list are available; add a filter, or "
    ):
        read(CLIENTS, [*last[:2], ("limit", "11")])


def test_a_page_says_how_many_rows_there_are_in_all() -> None:
    answer = ask(CLIENTS, view(*CLIENT_FLOWS), ("side", "client"), ("limit", "1"), ("offset", "1"))
    assert (answer["total"], answer["offset"], len(answer["rows"])) == (2, 1, 1)


@pytest.mark.parametrize("parameter", [("limit", "\\" * 16_000), ("sort", "x" * 16_000), ("y" * 16_000, "1")])
def test_a_refusal_repeats_little_of_what_it_refuses(parameter: tuple[str, str]) -> None:
    with pytest.raises(BadQueryError) as error:
        read(CLIENTS, [parameter])
    assert len(str(error.value)) < 4096


def test_the_fields_of_a_resource_are_looked_through_once() -> None:
    """A request may name thousands of parameters."""
    assert CLIENTS.filters is CLIENTS.filters
    assert CLIENTS.orders is CLIENTS.orders


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("limit", "0", f"limit must be a number from 1 to {MOST}, not '0'."),
        ("limit", str(MOST + 1), f"limit must be a number from 1 to {MOST}, not '1001'."),
        ("limit", "all", f"limit must be a number from 1 to {MOST}, not 'all'."),
        ("offset", "-1", "offset must be a number, not '-1'."),
        ("sort", "topics.topic", "Rows cannot be sorted by topics.topic; choose one of id, since, "),
        ("sort", "", "Rows cannot be sorted by ; choose one of id, since, "),
        ("workload.pid", "java", "workload.pid must be a number, not 'java'."),
        ("workload", "java", "Unknown parameter workload; choose from limit, offset, sort, internal, id, since, "),
        ("client", "x", "Unknown parameter client; "),
    ],
)
def test_a_parameter_that_cannot_be_used_is_reported_in_a_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(BadQueryError) as error:
        read(CLIENTS, [(name, text)])
    assert str(error.value).startswith(sentence)
    assert str(error.value).endswith(".")


def test_a_request_filters_by_a_hundred_values_at_most() -> None:
    values = [("topics.topic", f"t{n}") for n in range(FILTERS - 1)]
    assert names(ask(CLIENTS, view(*CLIENT_FLOWS), *values, ("topics.topic", "payments"))) == ["billing", "audit"]
    with pytest.raises(
        BadQueryError, match=r"^A request may have at most 100 filter values; send several requests for more.$"
    ):
        read(CLIENTS, [*values, ("topics.topic", "a"), ("client.id", "b")])


def test_a_page_ends_where_it_would_become_too_large_and_the_next_goes_on_there() -> None:
    def of(name: str) -> Any:
        return flow(client={"id": name * (PAGE_BYTES // 2), "software_name": None, "software_version": None})

    shown = view(of("a"), of("b"), of("c"))
    first = ask(CLIENTS, shown)
    assert (first["total"], len(first["rows"])) == (3, 1)
    assert ask(CLIENTS, shown, ("offset", "1"))["rows"][0]["client"]["id"][0] == "b"


def test_topics_are_shown_by_side_and_api_with_who_uses_them() -> None:
    shown = view(*CLIENT_FLOWS, flow(workload=workload("python"), topics=[topic(topic_id="ab" * 16, errors={"6": 1})]))
    (row,) = ask(TOPICS, shown, ("topic", "orders"))["rows"]
    assert (row["side"], row["api"], row["topic_id"]) == ("client", "Produce", "ab" * 16)
    assert (row["requests"], row["records"], row["bytes"]) == (20, 100, 6000)
    assert row["errors"] == {"NOT_LEADER_OR_FOLLOWER": 1}
    assert row["workloads"] == [{"workload": "", "comm": "java"}, {"workload": "", "comm": "python"}]
    assert [row["api"] for row in ask(TOPICS, shown, ("topic", "payments"))["rows"]] == ["Produce", "Fetch"]
    assert ask(TOPICS, shown, ("workloads.comm", "python"), ("api", "Fetch"))["total"] == 1


def test_connections_are_those_that_the_agent_has_open() -> None:
    fed = Fed()
    peers = [("10.0.0.1", 9092), ("10.0.0.2", 9092), ("10.0.0.3", 9093)]
    fed.see(
        *(opened_record(n, peer=peer, cookie=n) for n, peer in enumerate(peers, 1)), request(METADATA, 12), rejected(3)
    )
    shown = view(connections=fed.agent.connections())
    rows = {row["peer"]: row for row in ask(CONNECTIONS, shown)["rows"]}
    assert list(rows) == [f"{address}:{port}" for address, port in peers]
    assert rows["10.0.0.1:9092"]["found"] == "start"
    assert rows["10.0.0.1:9092"]["client"]["id"]
    assert rows["10.0.0.1:9092"]["cookie"] == 1
    assert rows["10.0.0.3:9093"]["opaque"] == "tls"
    assert [row["peer"] for row in ask(CONNECTIONS, shown, ("opaque", "tls"))["rows"]] == ["10.0.0.3:9093"]
    assert len(rows["10.0.0.2:9092"]["flow_id"]) == 16


@pytest.mark.parametrize("token", [False, True])
def test_the_document_names_every_path_and_who_may_ask(token: bool) -> None:
    document = openapi.document(token=token)
    assert document["openapi"] == "3.1.0"
    guarded = {path for path, item in document["paths"].items() if "security" in item["get"]}
    paths = {"/healthz", "/readyz", "/metrics", *(resource.path for resource in RESOURCES)}
    assert document["paths"].keys() == paths
    assert guarded == (paths - {"/healthz", "/readyz"} if token else set())


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: r.path)
def test_every_parameter_of_the_document_is_one_that_is_understood(resource: Any) -> None:
    parameters = openapi.document(token=False)["paths"][resource.path]["get"]["parameters"]
    for parameter in parameters:
        for example in parameter["schema"].get(
            "enum", [{"integer": "1", "boolean": "true"}.get(parameter["schema"].get("type"), "x")]
        ):
            read(resource, [(parameter["name"], example)])
