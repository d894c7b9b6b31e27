"""The generator of `make bench-pipeline`: valid events of both ends, as many as asked for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from kafka_probe.events import Event
from kafka_probe.sinks.outbox import encode
from tests.builders.event_schema import assert_valid
from tests.programs.bench_pipeline.facts import BROKERS, PODS, SECOND_US, Close, again
from tests.programs.bench_pipeline.fleet import STORM_CONNECTIONS, Fleet, backlog

NOW_US = 1_767_268_800 * SECOND_US
SILENCE_US = 60 * SECOND_US


def parsed(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [orjson.loads(encode(event)) for event in events]


def all_kinds(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the events of a fleet with one storm."""
    victims, _ = fleet.of_storm(0)
    return [
        *parsed(fleet.opens([*fleet.ordinary(), *victims], NOW_US)),
        *parsed(fleet.opens(fleet.ordinary(), NOW_US, {"still_open_ts": NOW_US, "requests": 0})),
        *parsed(fleet.second(NOW_US + SECOND_US, flows=200)),
        *parsed(fleet.closes(victims, NOW_US + SILENCE_US, Close(None, least_us=SILENCE_US))),
        *parsed(fleet.second(NOW_US + SILENCE_US, flows=200)),
    ]


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return all_kinds(Fleet(1_000))


def test_every_event_is_valid(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert_valid(event)


def test_both_ends_of_a_connection_have_one_flow_id(events: list[dict[str, Any]]) -> None:
    ends = defaultdict(set)
    for event in events:
        if "flow_id" in event:
            ends[event["flow_id"]].add((event["side"], event["agent_id"], event["local"], event["peer"]))
    assert len(ends) == 1_000 + STORM_CONNECTIONS
    for client, server in map(sorted, ends.values()):
        assert (client[0], server[0]) == ("client", "server")
        assert client[1] != server[1]
        assert client[2:] == server[:1:-1]


def test_each_agent_numbers_its_events_without_gaps(events: list[dict[str, Any]]) -> None:
    numbers = defaultdict(list)
    for event in events:
        numbers[event["agent_id"]].append(event["seq"])
    assert len(numbers) == 23
    assert all(of_agent == list(range(len(of_agent))) for of_agent in numbers.values())


def test_a_second_has_the_flows_that_were_asked_for_and_a_report_of_each_agent() -> None:
    fleet = Fleet(1_000)
    seconds = [parsed(fleet.second(NOW_US + number * SECOND_US, flows=200)) for number in range(10)]
    assert [Counter(event["kind"] for event in second) for second in seconds] == [{"flow": 200, "agent": 23}] * 10
    flows = Counter(event["flow_id"] for second in seconds for event in second if event["kind"] == "flow")
    assert set(flows.values()) == {2}  # both ends of a thousand connections, each once in ten seconds
    assert len(flows) == 1_000


def test_reports_count_what_is_open_at_both_ends_and_come_after_the_closes(events: list[dict[str, Any]]) -> None:
    reports = [event for event in events if event["kind"] == "agent"]
    for report in reports:
        assert report["connections"] == sum(group["count"] for group in report["open"])
    for of_second, open_now in ((reports[:23], 1_000 + STORM_CONNECTIONS), (reports[23:], 1_000)):
        sides = Counter[str]()
        for group in (group for report in of_second for group in report["open"]):
            sides[group["side"]] += group["count"]
        assert sides == {"client": open_now, "server": open_now}
    closes = {event["agent_id"] for event in events if event["kind"] == "close"}
    kinds = {agent: [event["kind"] for event in events if event["agent_id"] == agent] for agent in closes}
    assert all(of_agent[-1] == "agent" for of_agent in kinds.values())


def test_a_backlog_has_flows_and_reports_in_the_order_of_time() -> None:
    events = parsed(backlog(Fleet(1_000), flows=2_000, per_second=200, now_us=NOW_US))
    assert Counter(event["kind"] for event in events) == {"flow": 2_000, "agent": 23}
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    assert times[-1] == NOW_US


def test_pods_that_are_replaced_and_a_broker_that_restarts_close_their_connections_and_open_others() -> None:
    fleet = Fleet(PODS * BROKERS)
    fleet_opens = parsed(fleet.opens(fleet.ordinary(), NOW_US))
    of_pod, of_broker, brief = fleet.of_pod(1), fleet.of_broker(0), fleet.brief(0, 50)
    assert {each.pod.number for each in of_pod} == {1}
    assert {each.broker for each in of_broker} == {0}
    assert (len(of_pod), len(of_broker)) == (BROKERS, PODS)
    later = parsed(fleet.opens([*again(of_pod), *brief], NOW_US))
    closes = [
        *parsed(fleet.closes(of_pod, NOW_US, Close("client", ended=True, spread_us=30 * SECOND_US))),
        *parsed(fleet.closes(brief, NOW_US, Close("client"))),
        *parsed(fleet.closes(of_broker, NOW_US, Close("server", exiting=True, ended=True))),
    ]
    for event in closes:
        assert_valid(event)
    assert len({event["flow_id"] for event in (*fleet_opens, *later)}) == PODS * BROKERS + BROKERS + len(brief)
    assert len({(event["local"], event["peer"]) for event in (*fleet_opens, *later)}) == len(fleet_opens) + len(later)
    assert {event["flow_id"] for event in closes} <= {event["flow_id"] for event in (*fleet_opens, *later)}
    first = {(event["closed_by"], event["owner_exiting"], event["owner_ended"]) for event in closes[: 2 * BROKERS]}
    assert first == {("local", False, True), ("peer", False, False)}
    last = {
        (event["side"], event["closed_by"], event["owner_exiting"], event["owner_ended"], event["listener_closed_us"])
        for event in closes[-2 * PODS :]
    }
    assert last == {("server", "local", True, True, 0), ("client", "peer", False, False, None)}
    assert len({event["silence_us"] for event in closes[: 2 * BROKERS]}) == BROKERS
