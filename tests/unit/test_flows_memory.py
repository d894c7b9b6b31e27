"""The memory that counts of an interval take, and the counts by side and API beyond their bound."""

from __future__ import annotations

from collections import Counter

import pytest

from kafka_probe import flow_events
from kafka_probe.events import FlowEvent, bucket_of
from kafka_probe.flow_events import CHARACTERS, TOPICS
from kafka_probe.memory import MIB, event_bytes
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.sinks.outbox import encode
from kafka_probe.time_limit import TimeLimit
from tests.builders.bounded_tables import Watched, grown_by, with_budget
from tests.builders.events import INTERVAL
from tests.builders.samples import by_hand, fetch, opened, request, response

PRODUCE, FETCH, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA


def test_beyond_the_bound_all_frames_are_counted_by_side_and_api() -> None:
    watched = Watched(30)
    for conn in range(1, 31):
        watched.see(
            request(PRODUCE, 9, conn, client_id=f"client-{conn}", frame_bytes=100),
            response(PRODUCE, 9, conn, frame_bytes=50, latency_us=300),
        )
    events = watched.report()
    other = [event for event in events if event["conn_id"] is None]
    assert 2 <= len(events) - 1 < 30
    assert [(event["side"], event["api"], event["api_version"]) for event in other] == [("client", "Produce", None)]
    for name, total in (("requests", 30), ("responses", 30), ("request_bytes", 3000), ("response_bytes", 1500)):
        assert sum(int(str(event[name])) for event in events) == total
    latencies: list[dict[str, int]] = [event["latency"] for event in events]
    assert sum((Counter(latency) for latency in latencies), Counter()) == {str(bucket_of(300)): 30}
    records = [sum(topic["records"] for topic in event["topics"]) for event in events]
    whole = Watched(1)
    whole.see(request(PRODUCE, 9), response(PRODUCE, 9))
    (one,) = whole.report()
    assert sum(records) == 30 * sum(topic["records"] for topic in one["topics"])
    lost = watched.flows.losses["flow_limit"]
    assert lost == sum(int(str(event["requests"])) + int(str(event["responses"])) for event in other) > 0


def test_errors_without_a_name_are_summed_beyond_the_budget() -> None:
    watched = Watched(1)
    watched.flows._budget_bytes = 0
    watched.see(*(by_hand("Fetch", 12, {"ErrorCode": code}, answer=True) for code in (999, 998, 999, 3)))
    (other,) = watched.report()
    assert other["errors"] == {"-1": 3, "3": 1}


def test_counts_beyond_the_time_of_a_report_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_events, "_SUMMED_AT_ONCE", 10)
    connections = 21
    watched = with_budget(connections)
    watched.see(*(request(METADATA, 12, conn) for conn in range(1, 1 + connections)))
    *parts, other = watched.dispatcher.report(INTERVAL, limit=TimeLimit(0))
    assert parts == [None] * 3
    assert other
    assert (other["conn_id"], other["requests"]) == (None, connections)
    assert watched.flows.losses["flow_limit"] == connections


def test_latencies_stay_within_the_budget() -> None:
    watched = Watched(2)
    watched.flows._budget_bytes = 10_000
    watched.flows._shares = Shares(10_000)
    watched.see(fetch(0, ("orders",)), response(FETCH, 12))
    latencies = [int(1.2**n) for n in range(120)]
    for latency_us in latencies:
        watched.see(response(FETCH, 12, latency_us=latency_us), response(METADATA, 12, 2, latency_us=latency_us))
        assert watched.flows._held_bytes <= 10_000
    watched.see(fetch(1))
    events = watched.report()
    other = [event for event in events if event["conn_id"] is None]
    assert watched.flows.losses["flow_limit"] == sum(int(str(event["responses"])) for event in other) > 100
    assert sum(int(str(event["responses"])) for event in events) == 1 + 2 * len(latencies)
    found: list[dict[str, int]] = [event["latency"] for event in events]
    assert sum((Counter(latency) for latency in found), Counter()).total() == 1 + 2 * len(latencies)
    asked = {topic["topic"]: topic["requests"] for topic in events[0]["topics"]}
    assert asked["orders"] == 2


@pytest.mark.parametrize("flood", ["address", "network", "process"])
def test_connections_of_one_peer_leave_budget_to_others(flood: str) -> None:
    watched = Watched(0)
    for conn in range(2, 200):
        server_side, address = flood != "process", f"2001:db8::{conn:x}" if flood == "network" else "10.0.0.1"
        local = ("2001:db8:1::1" if flood == "network" else "10.0.0.7", 9092)
        watched.tracker.take(opened(conn, server_side=server_side, peer=(address, conn), local=local, tgid=7)[0])
        watched.see(request(METADATA, 12, conn, client_id=f"client-{conn}"))
    assert watched.flows.losses["flow_limit"] > 0
    watched.tracker.take(opened(1, server_side=True, peer=("10.0.0.2", 40001), local=("10.0.0.7", 9092))[0])
    watched.see(request(METADATA, 12, 1))
    assert f"{1:016x}" in [event["conn_id"] for event in watched.report()]


def test_what_a_fetch_session_keeps_of_a_count_is_reckoned() -> None:
    watched = Watched(60)
    watched.flows._budget_bytes = 100 * MIB
    watched.flows._shares = Shares(100 * MIB)
    names = tuple(f"topic-{n}" for n in range(300))
    requests = [fetch(3, names, conn=conn) for conn in range(1, 42)]
    watched.see(requests[0])
    before = watched.flows._held_bytes

    def see_all() -> bool:
        for one in requests[1:]:
            watched.see(one)
        return True

    assert grown_by(see_all, 1) < watched.flows._held_bytes - before < 20 * MIB


def test_the_next_interval_has_the_whole_budget_again() -> None:
    watched = Watched(2)
    for _ in range(20):
        watched.see(request(METADATA, 12, 1), request(METADATA, 11, 2))
        assert [event["conn_id"] for event in watched.report()] == [f"{1:016x}", f"{2:016x}"]


def test_topics_beyond_those_of_one_event_are_counted_in_one_row() -> None:
    watched = Watched(1)
    watched.flows._budget_bytes = 100 * MIB
    names = [f"topic-{n}" for n in range(TOPICS + 10)]
    watched.see(by_hand("Metadata", 4, {"Topics": [{"Name": name} for name in names]}))
    (event,) = watched.report()
    topics = event["topics"]
    assert isinstance(topics, list)
    assert len(topics) == TOPICS + 1
    assert (topics[-1]["topic"], topics[-1]["topic_id"], topics[-1]["requests"]) == (None, None, 1)
    assert watched.flow_events.losses["topic_limit"] == 10


def test_long_names_beyond_those_of_one_event_are_counted_in_one_row() -> None:
    watched = with_budget(1)
    names = [f"{n:0256}" for n in range(CHARACTERS // 256 + 10)]
    for start in range(0, len(names), 200):
        watched.see(by_hand("Metadata", 4, {"Topics": [{"Name": name} for name in names[start : start + 200]]}))
    (event,) = watched.report()
    topics = event["topics"]
    assert isinstance(topics, list)
    assert sum(topic["requests"] for topic in topics if topic["topic"] is not None) == CHARACTERS // 256
    assert watched.flow_events.losses["topic_limit"] == 10
    assert len(encode(event)) < 2 * MIB


@pytest.mark.parametrize(("topics", "answers"), [(0, 0), (1, 0), (500, 0), (1, 200)])
def test_an_event_takes_no_more_than_was_reckoned(topics: int, answers: int) -> None:
    watched = with_budget(40)
    for conn in range(1, 41):
        asked = {"Topics": [{"Name": f"topic-{n}"} for n in range(topics)]}
        answered = (response(METADATA, 12, conn, latency_us=int(1.1**n)) for n in range(answers))
        watched.see(by_hand("Metadata", 4, asked, conn), *answered)
    report = watched.dispatcher.report(INTERVAL)
    events: list[FlowEvent] = []

    def take_all() -> bool:
        events.extend(event for event in report if event)
        return len(events) >= 40

    assert 0 < grown_by(take_all, 1) < sum(map(event_bytes, events))
