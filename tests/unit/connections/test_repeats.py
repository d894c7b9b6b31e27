"""Connections that stay open are reported again: how often, evenly, and with what is known by then."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from kafka_probe.connections.identity import read_open
from kafka_probe.connections.repeats import Repeats, SocketEnds
from kafka_probe.connections.tracker import Tracker
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.workloads import WorkloadResolver
from tests.builders.bounded_tables import with_budget
from tests.builders.event_schema import assert_body_valid
from tests.builders.events import SINCE_BOOT, reported
from tests.builders.samples import closed, opened, request

SECOND_NS = 10**9
INTERVAL_S = 100


class Reports:
    """A tracker and its reports, one every 5 seconds."""

    def __init__(self) -> None:
        self.tracker = Tracker(WorkloadResolver(), open_interval_s=INTERVAL_S)
        self._times = count(0, 5 * SECOND_NS)

    def open(self, *conns: int) -> None:
        for conn in conns:
            self.tracker.take(opened(conn)[0])

    def list_older(self, *ports: int) -> None:
        for port in ports:
            identity, owner = read_open(opened(port, from_start=False, local=("10.0.0.7", port))[0])
            self.tracker.add_listed([(replace(identity, flow_id=None), owner)], 0)

    def next(self) -> list[Any]:
        """Return the events that the next report repeats."""
        again = list(self.tracker.repeat(next(self._times), SINCE_BOOT))
        reported(self.tracker)
        return again

    def within(self, seconds: int) -> list[list[Any]]:
        return [self.next() for _ in range(seconds // 5)]


@pytest.fixture
def reports() -> Reports:
    reports = Reports()
    reports.next()
    return reports


def conns(reported: list[list[Any]]) -> Counter[int]:
    return Counter(int(event["conn_id"], 16) for events in reported for event in events)


def test_each_open_connection_is_repeated_once_per_interval(reports: Reports) -> None:
    reports.open(*range(1, 51))
    assert conns(reports.within(INTERVAL_S)) == {}
    for _ in range(3):
        assert conns(reports.within(INTERVAL_S)) == dict.fromkeys(range(1, 51), 1)


def test_no_report_repeats_more_than_its_share(reports: Reports) -> None:
    reports.open(*range(1, 51))
    reports.within(INTERVAL_S)
    assert {len(events) for events in reports.within(2 * INTERVAL_S)} == {math.floor(50 * 5 / INTERVAL_S), 3}


def test_the_connections_that_are_open_longest_come_first(reports: Reports) -> None:
    reports.open(*range(1, 51))
    reports.within(INTERVAL_S)
    assert set(conns(reports.within(INTERVAL_S // 2))) == set(range(1, 26))


def test_a_connection_that_opens_during_a_pass_is_in_the_next_one(reports: Reports) -> None:
    reports.open(1)
    reports.within(INTERVAL_S)
    reports.open(2)
    assert conns(reports.within(INTERVAL_S)) == {1: 1}
    assert conns(reports.within(INTERVAL_S)) == {1: 1, 2: 1}


def test_reports_longer_than_the_interval_repeat_each_connection_once(reports: Reports) -> None:
    reports.open(1, 2)
    reports.within(INTERVAL_S)
    for now_s in (1000, 2000, 3000):
        assert conns([list(reports.tracker.repeat(now_s * SECOND_NS, SINCE_BOOT))]) == {1: 1, 2: 1}


def test_a_closed_connection_is_not_repeated_even_if_it_closes_while_the_report_is_sent(reports: Reports) -> None:
    reports.open(1, 2, 3)
    reports.within(INTERVAL_S)
    reports.tracker.close(closed(1)[0])
    reports.tracker.gone(1)
    report = reports.tracker.repeat(2 * INTERVAL_S * SECOND_NS, SINCE_BOOT)
    reports.tracker.close(closed(2)[0])
    assert conns([list(report)]) == {3: 1}


def test_listed_connections_are_repeated_until_they_have_a_sample_and_then_with_a_flow_id(reports: Reports) -> None:
    reports.list_older(40001, 40002)
    reports.within(INTERVAL_S)
    reports.tracker.take(opened(1, from_start=False, local=("10.0.0.7", 40001))[0])
    assert conns(reports.within(INTERVAL_S)) == {40002: 1}
    again = [event for events in reports.within(INTERVAL_S) for event in events]
    assert {(event["conn_id"], event["found"]) for event in again} == {
        (f"{40002:016x}", "listed"),
        (f"{40001:016x}", "midstream"),
    }


def test_keys_of_connections_that_are_no_longer_listed_are_dropped() -> None:
    repeats = Repeats(INTERVAL_S)
    listed: dict[SocketEnds, int] = {(0, f"10.0.0.7:{port}", "10.0.0.1:9092"): port for port in range(100)}
    for now_s in (0, INTERVAL_S):
        repeats.due([], listed, now_s * SECOND_NS)
    for ends in [*listed][10:]:
        del listed[ends]
    repeats.due([], listed, (INTERVAL_S + 1) * SECOND_NS)
    assert len(repeats._listed.keys) <= 2 * len(listed)


def test_a_repeated_event_has_the_facts_and_sums_of_now_and_the_time_of_the_first() -> None:
    watched = with_budget(0)
    watched.tracker._repeats = Repeats(INTERVAL_S)
    watched.tracker.take(opened(1, ts_ns=7000)[0])
    (first,) = reported(watched.tracker)
    assert not {"still_open_ts", "requests", "topics"} & first.keys()
    for now_s in (0, INTERVAL_S):
        assert list(watched.tracker.repeat(now_s * SECOND_NS, SINCE_BOOT)) == []
    watched.see(request(ApiKey.METADATA, 12, client_id="billing"))
    watched.report()
    (again,) = watched.tracker.repeat(2 * INTERVAL_S * SECOND_NS, SINCE_BOOT)
    assert_body_valid(again)
    assert (again["kind"], again["ts"], again["still_open_ts"]) == ("open", 7, 2 * INTERVAL_S * 10**6)
    assert (again["client"]["id"], again["requests"], again["nat"]) == ("billing", 1, None)
