"""The last Produce with acks=0 counts as refused if its broker closes the connection right after it."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_probe.connections.frames import FrameReader
from kafka_probe.connections.grouping import FramesByConnection
from kafka_probe.connections.last_produces import LastProduces
from kafka_probe.connections.tracker import Tracker
from kafka_probe.flows import SUMMED
from tests.builders.bounded_tables import RESOLVER, grown_by
from tests.builders.fed_agent import Fed
from tests.builders.samples import (
    ESTABLISHED_TO_CLOSE_WAIT,
    ESTABLISHED_TO_FIN_WAIT1,
    Samples,
    by_hand,
    closed,
    listener,
    opened,
)
from tests.builders.trees import Records

SECOND_NS = 10**9
BROKER: dict[str, Any] = {"local": ("10.0.0.1", 9092), "peer": ("10.0.0.9", 40000)}
BYTES, CLOSED_NS = 900, 10 * SECOND_NS
REFUSED = {"first_state": ESTABLISHED_TO_FIN_WAIT1, "no_response": 1, "last_request_bytes": BYTES}
JUST_NOW = {"sent_ns": CLOSED_NS - SECOND_NS // 2, "received_ns": CLOSED_NS - SECOND_NS // 2}


def produced(records: int, *, topic: str = "orders", conn: int = 1) -> Samples:
    sets = [{"Index": 0, "Records": Records(bytes(100 * records), records=records)}]
    tree = {"Acks": 0, "TopicData": [{"Name": topic, "PartitionData": sets}]}
    return by_hand("Produce", 9, tree, conn, frame_bytes=BYTES)


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
    ],
)
def test_any_other_close_refuses_nothing(close: dict[str, Any], before: tuple[Samples, ...]) -> None:
    fed = refused_by({**REFUSED, **JUST_NOW, **close}, before=before)
    assert refused(fed) == [(2, 10, 0)]
    assert not any(fed.events("agent")[-1]["losses"].values())


def test_a_request_of_another_size_than_the_close_has_is_not_the_one_that_was_refused() -> None:
    fed = refused_by({**REFUSED, **JUST_NOW, "last_request_bytes": BYTES + 1})
    assert refused(fed) == [(2, 10, 0)]
    assert fed.events("agent")[-1]["losses"]["refusal_unmatched"] == 1


def test_what_is_kept_stays_below_the_limit_and_takes_no_more_memory_than_was_counted() -> None:
    tracker = Tracker(RESOLVER)
    for conn in range(1, 301):
        tracker.take(opened(conn)[0])
    batches = [produced(1, topic=f"topic-{number}", conn=number) for number in range(1, 301)]
    last = LastProduces(200_000)

    def keep_all(last: LastProduces = last) -> LastProduces:
        reader = FrameReader(SUMMED)
        for batch in batches:
            for frames in reader.read(batch):
                last.see(FramesByConnection.of(frames, tracker.of_frames))
                assert last.held_bytes <= 200_000
        return last

    keep_all(LastProduces(200_000))  # fills caches
    assert grown_by(keep_all, 1) < 200_000
    assert last.take(1) is None
    request = last.take(300)
    assert request
    assert request.shape.facts.topics[0].name == "topic-300"
