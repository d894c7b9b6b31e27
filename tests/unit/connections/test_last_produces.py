"""The last Produce with acks=0 counts as refused if its broker closes the connection right after it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from kafka_probe import processing
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.frames_by_connection import FramesByConnection
from kafka_probe.connections.last_produces import LastProduces
from kafka_probe.connections.reassembly import portions
from kafka_probe.connections.tracker import Tracker
from kafka_probe.flow_sums import SUMMED
from tests.builders.bounded_tables import RESOLVER, grown_by
from tests.builders.fed_agent import Fed
from tests.builders.samples import (
    ESTABLISHED_TO_CLOSE_WAIT,
    ESTABLISHED_TO_FIN_WAIT1,
    Samples,
    by_hand,
    closed,
    gone,
    listener,
    opened,
)
from tests.builders.trees import Records

SECOND_NS = 10**9
BROKER: dict[str, Any] = {"local": ("10.0.0.1", 9092), "peer": ("10.0.0.9", 40000)}
BYTES, CLOSED_NS = 900, 10 * SECOND_NS
REFUSED = {"first_state": ESTABLISHED_TO_FIN_WAIT1, "no_response": 1, "last_request_bytes": BYTES}
JUST_NOW = {"sent_ns": CLOSED_NS - SECOND_NS // 2, "received_ns": CLOSED_NS - SECOND_NS // 2}


def produced(records: int, *, topic: str = "orders", conn: int = 1, ts_ns: int = 0) -> Samples:
    sets = [{"Index": 0, "Records": Records(bytes(100 * records), records=records)}]
    tree = {"Acks": 0, "TopicData": [{"Name": topic, "PartitionData": sets}]}
    return by_hand("Produce", 9, tree, conn, frame_bytes=BYTES, ts_ns=ts_ns)


def refused_by(close: dict[str, Any], *, server_side: bool = True, before: tuple[Samples, ...] = ()) -> Fed:
    """Return an agent that has reported two requests of 3 and 7 records, and then this close."""
    fed = Fed()
    ends = BROKER if server_side else {}
    fed.see(opened(server_side=server_side, **ends), produced(3), produced(7))
    fed.report()
    fed.see(*before, closed(ts_ns=CLOSED_NS, **close))
    fed.report()
    return fed


def refused(fed: Fed) -> list[tuple[int, int, int]]:
    """Return the requests, records and refused records of each flow."""
    flows = [(flow["requests"], *flow["topics"]) for flow in fed.events("flow")]
    return [(requests, topic["records"], topic.get("refused_records", 0)) for requests, topic in flows]


@pytest.mark.parametrize("server_side", [True, False])
def test_a_close_by_the_broker_right_after_it_refuses_the_last_request(server_side: bool) -> None:
    state = ESTABLISHED_TO_FIN_WAIT1 if server_side else ESTABLISHED_TO_CLOSE_WAIT
    fed = refused_by({**REFUSED, **JUST_NOW, "first_state": state}, server_side=server_side)
    assert refused(fed) == [(2, 10, 0), (0, 0, 7)]
    _, flow = fed.events("flow")
    assert flow["topics"][0]["refused_bytes"] == 700
    assert flow["topics"][0]["codecs"] == {}
    assert not any(fed.events("agent")[-1]["losses"].values())


@pytest.mark.parametrize(
    ("close", "before"),
    [
        ({"first_state": ESTABLISHED_TO_CLOSE_WAIT}, ()),  # the client closed
        ({"received_ns": CLOSED_NS - 2 * SECOND_NS, "sent_ns": 0}, ()),
        ({"owner_exiting": 1}, ()),
        ({"no_response": 0}, ()),
        ({}, (listener(closed=True, ts_ns=CLOSED_NS - SECOND_NS),)),
        ({"error": errno.ETIMEDOUT}, ()),
        ({"error": errno.ECONNRESET}, ()),
    ],
)
def test_any_other_close_refuses_nothing(close: dict[str, Any], before: tuple[Samples, ...]) -> None:
    fed = refused_by({**REFUSED, **JUST_NOW, **close}, before=before)
    assert refused(fed) == [(2, 10, 0)]
    assert not any(fed.events("agent")[-1]["losses"].values())


def test_a_broker_that_closes_its_listener_after_the_connection_refuses_nothing() -> None:
    fed = Fed()
    fed.see(opened(server_side=True, **BROKER), produced(3))
    fed.see(closed(ts_ns=CLOSED_NS, **REFUSED, **JUST_NOW))
    fed.see(listener(closed=True, ts_ns=CLOSED_NS + SECOND_NS // 1000))
    fed.report()
    assert refused(fed) == [(1, 3, 0)]


@pytest.mark.parametrize("batches", [1, 3])
def test_the_last_request_is_refused_however_requests_for_other_topics_come_between(batches: int) -> None:
    fed = Fed()
    requests = produced(5, ts_ns=1), produced(9, topic="sales", ts_ns=2), produced(7, ts_ns=3)
    fed.see(opened(server_side=True, **BROKER))
    for batch in [requests] if batches == 1 else [[request] for request in requests]:
        fed.see(*batch)
    fed.see(closed(ts_ns=CLOSED_NS, **REFUSED, **JUST_NOW))
    fed.report()
    (flow,) = fed.events("flow")
    assert {topic["topic"]: topic.get("refused_records") for topic in flow["topics"]} == {"orders": 7, "sales": None}


def test_a_request_of_another_size_than_the_close_has_is_not_the_one_that_was_refused() -> None:
    fed = refused_by({**REFUSED, **JUST_NOW, "last_request_bytes": BYTES + 1})
    assert refused(fed) == [(2, 10, 0)]
    assert fed.events("agent")[-1]["losses"]["refusal_unmatched"] == 1


BY_CLIENT = {**REFUSED, **JUST_NOW, "first_state": ESTABLISHED_TO_CLOSE_WAIT}


@pytest.mark.parametrize("others", ["before", "in a portion before", "after", "closed by their clients"])
def test_requests_of_others_displace_none_that_a_close_refused(others: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, conns, cut = Fed(), range(2, 2000), list[int]()

    def in_portions(samples: Samples, most_bytes: int) -> list[Samples]:
        found = list(portions(samples, 100_000 if others == "in a portion before" else most_bytes))
        cut.append(len(found))
        return found

    monkeypatch.setattr(processing, "portions", in_portions)
    fed.see(opened(server_side=True, **BROKER), *(opened(conn, server_side=True) for conn in conns))
    request, refusal = produced(7), closed(ts_ns=CLOSED_NS, **REFUSED, **JUST_NOW)
    requests = [produced(1, conn=conn, ts_ns=1) for conn in conns]
    if "before" in others:
        fed.see(request, *requests, refusal)
    else:
        fed.see(request, refusal)
        closes = [closed(conn, ts_ns=CLOSED_NS, **BY_CLIENT) for conn in conns]
        fed.see(*requests, *(closes if others == "closed by their clients" else ()))
    fed.report()
    assert max(cut) == (2 if others == "in a portion before" else 1)
    assert fed.events("agent")[-1]["losses"]["refusal_unmatched"] == 0
    assert sum(records for _, _, records in refused(fed)) == 7


def test_nothing_is_kept_of_connections_that_are_gone_or_whose_close_was_left_out() -> None:
    fed = Fed()
    last = fed.processor.produces._last
    fed.see(*(opened(conn, server_side=True) for conn in (1, 2)), *(produced(1, conn=conn) for conn in (1, 2)))
    fed.see(gone(1))
    assert (last.take(1), last.take(2) is None) == (None, False)
    fed.see(produced(1, conn=2), closed(2, ts_ns=CLOSED_NS, **REFUSED, **JUST_NOW), gone(2))
    assert fed.processor.tracker._pending_closes.drop_oldest()
    assert last.held_bytes
    fed.report()
    assert last.held_bytes == 0


def test_a_refusal_without_memory_of_its_own_is_counted_as_a_loss() -> None:
    fed = Fed()
    fed.see(opened(server_side=True, **BROKER), produced(7))
    fed.report()
    fed.processor.flows._budget_bytes = 0
    fed.see(closed(ts_ns=CLOSED_NS, **REFUSED, **JUST_NOW))
    fed.report()
    assert refused(fed) == [(1, 7, 0), (0, 0, 7)]
    assert fed.events("flow")[-1]["conn_id"] is None
    assert fed.events("agent")[-1]["losses"]["flow_limit"] == 1


@pytest.fixture
def tracker() -> Tracker:
    """Return a tracker of 300 connections."""
    tracker = Tracker(RESOLVER)
    for conn in range(1, 301):
        tracker.take(opened(conn)[0])
    return tracker


def kept(tracker: Tracker, batches: list[Samples], limit_bytes: int) -> LastProduces:
    last, reader = LastProduces(limit_bytes), FrameReader(SUMMED)
    for batch in batches:
        for frames in reader.read(batch):
            last.see(FramesByConnection.of(frames, tracker.of_frames), {})
            assert last.held_bytes <= limit_bytes
    return last


@pytest.mark.parametrize("topics", [1, 300])
def test_what_is_kept_stays_below_the_limit_and_takes_what_was_counted(tracker: Tracker, topics: int) -> None:
    batches = [produced(1, topic=f"topic-{number % topics}", conn=number) for number in range(1, 301)]
    kept(tracker, batches, 100_000)  # fills caches
    assert grown_by(lambda: kept(tracker, batches, 100_000), 1) < 100_000
    last = kept(tracker, batches, 100_000)
    held = [last.take(number) for number in range(1, 301)]
    assert held[-1]
    assert 25 < sum(request is not None for request in held) < 300
    assert last.held_bytes == 0


def test_a_request_that_would_displace_those_of_others_is_not_kept(tracker: Tracker) -> None:
    tree = {"Acks": 0, "TopicData": [{"Name": f"topic-{n}", "PartitionData": []} for n in range(200)]}
    last = kept(tracker, [produced(1, conn=1), by_hand("Produce", 9, tree, 2)], 100_000)
    assert last.take(1)
    assert last.take(2) is None


def test_a_request_is_forgotten_with_a_close_that_refuses_nothing() -> None:
    fed = refused_by({**REFUSED, "first_state": ESTABLISHED_TO_CLOSE_WAIT})
    fed.see(gone())
    assert fed.processor.produces.held_bytes == 0


def test_requests_of_closed_connections_and_of_open_ones_have_half_of_the_limit_each(tracker: Tracker) -> None:
    last, reader = LastProduces(100_000), FrameReader(SUMMED)
    for conn in range(1, 301):
        for frames in reader.read(produced(1, conn=conn)):
            last.see(FramesByConnection.of(frames, tracker.of_frames), {})
        if conn % 2:
            last.close(conn, CLOSED_NS)
    kept = [conn for conn in range(1, 301) if last.take(conn)]
    of_closed, of_open = (sum(conn % 2 == odd for conn in kept) for odd in (1, 0))
    assert of_closed > 50
    assert of_open > 50
