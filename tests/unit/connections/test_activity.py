"""The sums that a close carries: which topics have an entry of their own, and what they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from kafka_probe.connections.activity import (
    ACTIVITY_BYTES,
    ACTIVITY_LIMIT,
    MOST_TOPICS,
    REPORTED_TOPICS,
    ConnectionActivity,
)
from kafka_probe.memory import MIB
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.text import printable_json
from tests.builders.bounded_tables import Watched, grown_by, let_all_go, with_budget
from tests.builders.events import flow, reported, topic
from tests.builders.samples import closed, request

ALL = 1 << 62


HOST = "10.0.0.1"


def budget(limit_bytes: int = MIB) -> SharedBudget:
    return SharedBudget(limit_bytes, Counter({ACTIVITY_LIMIT: 0}))


def facts(*topics: dict[str, Any], of: SharedBudget | None = None) -> Any:
    """Return the sums of one flow per topic."""
    activity = taken(of or budget())
    for one in topics:
        activity.add(flow(topics=[one]))
    return activity.facts()


def taken(of: SharedBudget) -> ConnectionActivity:
    assert of.take(HOST, ACTIVITY_BYTES, ACTIVITY_LIMIT)
    return ConnectionActivity(of, HOST)


def named(names: int, **fields: object) -> list[dict[str, Any]]:
    return [topic(f"orders-{n}", **fields) for n in range(names)]


def test_flows_add_up() -> None:
    summed = facts(topic("orders"), topic("orders"), topic("payments", bytes=9000, requests=1))
    assert (summed["requests"], summed["request_bytes"], summed["response_bytes"]) == (30, 12000, 2700)
    assert summed["topics"] == [
        {"topic": "payments", "topic_id": None, "requests": 1, "bytes": 9000},
        {"topic": "orders", "topic_id": None, "requests": 20, "bytes": 6000},
    ]


def test_topics_that_an_answer_only_lists_are_no_activity() -> None:
    assert facts(topic(requests=0, bytes=0))["topics"] == []


def test_the_group_is_the_newest_and_absent_without_one() -> None:
    activity = taken(budget())
    assert "group" not in activity.facts()
    for group in ("billing", "audit", None):
        activity.add(flow(group=group))
    assert activity.facts()["group"] == "audit"


@pytest.mark.parametrize("before", [("orders", None), (None, "a" * 32), ("orders", "b" * 32)])
def test_a_topic_keeps_its_sums_when_its_name_or_id_becomes_known(before: tuple[str | None, str | None]) -> None:
    name, topic_id = before
    summed = facts(topic(name, topic_id=topic_id), topic("orders", topic_id="a" * 32), topic("orders"))
    assert summed["topics"] == [{"topic": "orders", "topic_id": "a" * 32, "requests": 30, "bytes": 9000}]


def test_sums_under_a_name_and_under_its_id_become_one() -> None:
    of = budget()
    activity = taken(of)
    for name, topic_id in (("orders", None), (None, "a" * 32), ("orders", "a" * 32)):
        activity.add(flow(topics=[topic(name, topic_id=topic_id)]))
    assert activity.facts()["topics"] == [{"topic": "orders", "topic_id": "a" * 32, "requests": 30, "bytes": 9000}]
    one = budget()
    lasting = taken(one)
    lasting.add(flow(topics=[topic("orders", topic_id="a" * 32)]))
    assert of.used_bytes == one.used_bytes


def test_an_event_names_the_topics_with_most_bytes_and_sums_the_others() -> None:
    topics = [topic(f"orders-{n}", bytes=n // 2, requests=n) for n in range(1, 31)]
    *shown, rest = facts(*topics)["topics"]
    assert [one["topic"] for one in shown] == [f"orders-{n}" for n in range(30, 30 - REPORTED_TOPICS, -1)]
    assert rest == {
        "topic": None,
        "topic_id": None,
        "requests": sum(range(1, 11)),
        "bytes": sum(n // 2 for n in range(1, 11)),
    }


def test_topics_beyond_those_that_are_kept_lose_their_name_only() -> None:
    of = budget()
    summed = facts(*named(MOST_TOPICS + 30, bytes=10), topic("orders-0", bytes=10), of=of)
    assert sum(one["bytes"] for one in summed["topics"]) == 10 * (MOST_TOPICS + 31)
    assert summed["topics"][-1]["bytes"] == 10 * (MOST_TOPICS + 30 - REPORTED_TOPICS)
    assert of._losses[ACTIVITY_LIMIT] == 0


@pytest.mark.parametrize("name", ["\x01" * 249, "a/b", "x" * 250, "\N{PILE OF POO}", "orders\n"])
def test_a_name_that_no_broker_allows_is_summed_without_a_name(name: str) -> None:
    (rest,) = facts(topic(name))["topics"]
    assert (rest["topic"], rest["topic_id"], rest["bytes"]) == (None, None, 3000)


def test_the_longest_activity_stays_below_16_kib_of_json() -> None:
    activity = taken(budget())
    names = [f"{n:0249}" for n in range(MOST_TOPICS + 1)]
    topics = [topic(name, topic_id=f"{n:032x}", bytes=1 << 62, requests=1 << 62) for n, name in enumerate(names)]
    activity.add(flow(topics=topics, group="\x01" * 256, requests=1 << 62))
    written = printable_json(orjson.dumps(activity.facts()))
    assert 8 << 10 < len(written) < 16 << 10


def test_frames_that_flow_limit_counts_are_not_in_the_activity() -> None:
    watched = Watched(30)
    for conn in range(1, 31):
        watched.see(request(ApiKey.PRODUCE, 9, conn, client_id=f"client-{conn}"))
    watched.report()
    requests = {close["requests"] for close in closes(watched, 30)}
    assert requests == {0, 1}


def closes(watched: Watched, connections: int) -> list[Any]:
    for conn in range(1, 1 + connections):
        watched.tracker.close(closed(conn)[0])
    watched.tracker.settle(ALL)
    return [event for event in reported(watched.tracker) if event["kind"] == "close"]


@pytest.mark.parametrize("topics", [0, 1, 2, 3, 5, 6, 10, 11, 20, 21, 40, MOST_TOPICS, MOST_TOPICS + 30])
@pytest.mark.parametrize("char", ["x", "\u00e9"])
def test_an_activity_takes_no_more_than_was_reckoned_and_gives_it_back(topics: int, char: str) -> None:
    of = budget(100 * MIB)
    connections = 50

    def copied(text: str) -> str:
        return "".join(list(text))

    def flows(conn: int) -> list[Any]:
        named = [
            topic(copied(f"{conn}-{n}"), topic_id=copied(f"{conn:016x}{n:016x}"), requests=1 << 40, bytes=1 << 40)
            for n in range(topics)
        ]
        sums = {"requests": 1 << 40, "request_bytes": 1 << 40, "response_bytes": 1 << 40}
        return [flow(topics=named, group=f"{conn:03}" + char * 60, **sums) for _ in range(2)]

    kept: list[ConnectionActivity] = []

    def add() -> list[ConnectionActivity]:
        for conn in range(connections):
            activity = taken(of)
            for one in flows(conn):
                activity.add(one)
            orjson.dumps(activity.facts())
            kept.append(activity)
        return kept

    assert grown_by(add, 1) < of.used_bytes
    kept.clear()
    assert of.used_bytes == 0


def full(watched: Watched) -> None:
    watched.tracker.activity_budget._limit_bytes = watched.tracker.activity_budget.used_bytes


def test_a_connection_without_memory_for_its_sums_has_none_for_good() -> None:
    watched = with_budget(2)
    full(watched)
    watched.see(request(ApiKey.METADATA, 12, 1))
    watched.report()
    watched.tracker.activity_budget._limit_bytes = MIB
    watched.see(request(ApiKey.METADATA, 12, 1), request(ApiKey.METADATA, 12, 2))
    watched.report()
    assert watched.tracker.losses[ACTIVITY_LIMIT] == 1
    refused, counted = closes(watched, 2)
    assert not {"requests", "request_bytes", "response_bytes", "topics"} & refused.keys()
    assert counted["requests"] == 1


def test_topics_and_groups_without_memory_are_counted() -> None:
    of = budget(2 * ACTIVITY_BYTES)
    activity = taken(of)
    of._limit_bytes = of.used_bytes
    activity.add(flow(topics=[topic("orders")], group="billing"))
    summed: Any = activity.facts()
    assert summed["topics"] == [{"topic": None, "topic_id": None, "requests": 10, "bytes": 3000}]
    assert "group" not in summed
    assert of._losses[ACTIVITY_LIMIT] == 1  # once per flow


@pytest.mark.parametrize("end", [lambda watched: let_all_go(watched, 20), lambda watched: closes(watched, 20)])
def test_what_the_activity_of_connections_took_is_given_back(end: Callable[[Watched], object]) -> None:
    watched = with_budget(20)
    for conn in range(1, 21):
        watched.see(request(ApiKey.PRODUCE, 9, conn))
    watched.report()
    assert watched.tracker.activity_budget.used_bytes >= 20 * ACTIVITY_BYTES
    end(watched)
    let_all_go(watched, 20)
    assert watched.tracker.activity_budget.used_bytes == 0


def test_a_flow_with_thousands_of_topics_is_refused_once() -> None:
    of = budget(2 * ACTIVITY_BYTES)
    activity = taken(of)
    of._limit_bytes = of.used_bytes
    for _ in range(2):
        activity.add(flow(topics=named(4000)))
    assert activity.facts()["topics"][0]["requests"] == 2 * 4000 * 10
    assert of._losses[ACTIVITY_LIMIT] == 2


def test_a_peer_has_its_whole_share_again_when_its_connections_are_gone() -> None:
    of = budget(100 * ACTIVITY_BYTES)
    others = [taken(of) for _ in range(60)]
    for _ in range(1000):
        activity = taken(of)
        activity.add(flow(topics=[topic("orders")]))
        assert activity.facts()["topics"][0]["topic"] == "orders"
        del activity
    assert len(others) == 60
