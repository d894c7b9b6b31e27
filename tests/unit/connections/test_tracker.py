"""Connections from their first record to their last, and the events in between."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kafka_probe.capture.record import Kind, Protocol
from kafka_probe.connections.tracker import Tracker
from kafka_probe.workloads import WorkloadResolver
from tests.unit.connections.records import Records, closed, opened, rejected
from tests.unit.protocol.messages import case
from tests.unit.schema import assert_body_valid

API_VERSIONS, METADATA = 18, 3


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(WorkloadResolver())


def events(tracker: Tracker) -> list[dict[str, Any]]:
    reported = [event for _, event in tracker.report()]
    for event in reported:
        assert_body_valid(event)
    return reported


def kinds(tracker: Tracker) -> list[object]:
    return [event["kind"] for event in events(tracker)]


def take(tracker: Tracker, *records: Records) -> None:
    for record in records:
        tracker.take(record[0])


def test_a_connection_opens_and_closes_once(tracker: Tracker) -> None:
    take(tracker, opened(1, ts_ns=10))
    assert len(tracker) == 1
    assert kinds(tracker) == ["open"]
    assert tracker.close(closed(1, ts_ns=20)[0]) is not None
    assert len(tracker) == 0
    assert kinds(tracker) == ["close"]
    assert kinds(tracker) == []


def test_one_that_opened_and_closed_between_two_reports_is_reported_in_that_order(tracker: Tracker) -> None:
    take(tracker, opened(1, ts_ns=10_000))
    tracker.close(closed(1, ts_ns=5_010_000)[0])
    opening, closing = tracker.report()
    assert (opening[0], closing[0]) == (10_000, 5_010_000)
    assert closing[1]["age_us"] == 5_000


def test_both_events_say_whose_connection_it_was(tracker: Tracker) -> None:
    broker, client = ("10.0.0.1", 9092), ("10.0.0.7", 40001)
    owner = os.getpid()
    take(tracker, opened(0xABC, accepting=True, local=broker, peer=client, tgid=owner, netns=7, tx_base=1, rx_base=2))
    tracker.close(closed(0xABC)[0])
    for event in events(tracker):
        assert event["side"] == "accepting"
        assert (event["local"], event["peer"]) == ("10.0.0.1:9092", "10.0.0.7:40001")
        assert (event["flow_id"], event["conn_id"]) == ("0000000200000001", "0000000000000abc")
        assert (event["netns"], event["found"]) == (7, "start")
        assert event["workload"]["pid"] == owner


def test_a_connection_that_was_open_before_the_agent_was_found_midstream(tracker: Tracker) -> None:
    take(tracker, opened(1, from_start=False))
    assert [event["found"] for event in events(tracker)] == ["midstream"]


def test_frames_teach_client_library_and_cluster(tracker: Tracker) -> None:
    take(tracker, opened(1))
    connection = tracker.get(1)
    assert connection is not None
    for facts in (
        case(API_VERSIONS, 3, response=False).facts,
        case(API_VERSIONS, 3, response=True).facts,
        case(METADATA, 12, response=True).facts,
        case(METADATA, 12, response=False).facts,
    ):
        connection.learn(facts)
    (event,) = events(tracker)
    assert event["client"] == {"id": "billing-1", "software_name": "librdkafka", "software_version": "2.16.1"}
    assert event["cluster_id"] == "the-cluster"


def test_another_process_that_uses_the_connection_owns_it_from_then_on(tracker: Tracker) -> None:
    take(tracker, opened(1, tgid=1), opened(1, tgid=os.getpid(), kind=Kind.OWNER))
    (event,) = events(tracker)
    assert event["workload"]["pid"] == os.getpid()


def test_a_connection_whose_opening_was_lost_is_known_by_its_next_owner(tracker: Tracker) -> None:
    take(tracker, opened(1, kind=Kind.OWNER))
    assert kinds(tracker) == ["open"]


@pytest.mark.parametrize(("protocol", "opaque"), [(Protocol.TLS, "tls"), (Protocol.UNKNOWN, "unknown")])
def test_a_connection_without_plain_kafka_keeps_its_owner_and_its_end(
    tracker: Tracker, protocol: Protocol, opaque: str
) -> None:
    take(tracker, opened(1), rejected(1, protocol), rejected(2, protocol))
    tracker.close(closed(1)[0])
    assert [event["opaque"] for event in events(tracker)] == [opaque, opaque]


def test_an_end_without_a_beginning_is_counted(tracker: Tracker) -> None:
    assert tracker.close(closed(1)[0]) is None
    assert tracker.losses["connection_unknown"] == 1
    assert kinds(tracker) == []
