"""The memory that connections and their texts take, and what the tracker does at its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kafka_probe.capture.sample import SampleKind
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.pending_closes import PendingCloses
from kafka_probe.connections.tracker import _RESETS_PER_SLOT, Tracker
from kafka_probe.flow_sums import SUMMED
from kafka_probe.memory import _ITEM_BYTES, CONNECTION_BYTES, DEFAULT, KERNEL_CONNECTION_BYTES, MIB
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.bounded_tables import FEW, RESOLVER, grown_by, let_all_go, with_budget
from tests.builders.events import INTERVAL, SINCE_BOOT, reported
from tests.builders.fed_agent import Fed
from tests.builders.samples import Samples, by_hand, closed, listener, opened, request

PRODUCE, FETCH, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA


def test_a_connection_takes_no_more_than_was_reckoned() -> None:
    """The memory of its group is counted apart."""
    tracker = Tracker(RESOLVER)
    samples = [
        opened(conn, peer=(f"10.0.{conn >> 8}.{conn & 255}", 1024 + conn), netns=1 << 31, cookie=conn, tgid=7)[0]
        for conn in range(1, 2001)
    ]

    def open_all() -> Tracker:
        for sample in samples:
            tracker.take(sample)
        reported(tracker)
        for now_ns in (0, 1 << 62):  # begins a pass over all
            list(tracker.repeat(now_ns, SINCE_BOOT))
        return tracker

    tracker.take(opened(1 << 20, tgid=7)[0])
    assert grown_by(open_all, len(samples)) < CONNECTION_BYTES - KERNEL_CONNECTION_BYTES


def test_connections_beyond_the_bound_are_not_followed() -> None:
    tracker = Tracker(RESOLVER, bounds=FEW)
    for conn in range(1, 6):
        tracker.take(opened(conn)[0])
    assert tracker.known() == {1, 2, 3}
    assert tracker.losses["connection_limit"] == 2
    assert tracker.full
    tracker.gone(2)
    tracker.take(opened(6)[0])
    assert tracker.known() == {1, 3, 6}


def test_what_a_report_has_not_reached_counts_towards_the_bounds() -> None:
    tracker = Tracker(RESOLVER, bounds=FEW)
    tracker.take(opened(1)[0])
    tracker.gone(1)  # its close was lost: only the report keeps it
    tracker.take(opened(0, kind=SampleKind.RESET)[0])
    report = tracker.report_opens(SINCE_BOOT)
    assert tracker.free == 1
    assert [event["kind"] for event in report] == ["reset", "open"]
    assert tracker.free == 3


def test_resets_leave_memory_to_closes() -> None:
    tracker = Tracker(RESOLVER, bounds=replace(FEW, closes=4))
    for conn in range(1, 4):
        tracker.take(opened(conn)[0])
    for _ in range(11):
        tracker.take(opened(0, kind=SampleKind.RESET)[0])
    for conn in range(1, 4):
        tracker.close(closed(conn)[0])
    assert (tracker.losses["reset_limit"], tracker.losses["close_limit"]) == (3, 1)


def test_resets_are_kept_until_the_next_report_in_half_of_the_slots_of_closes() -> None:
    tracker = Tracker(RESOLVER)
    kept = DEFAULT.closes * _RESETS_PER_SLOT // 2
    reset = opened(0, kind=SampleKind.RESET)[0]
    for _ in range(kept):
        tracker.take(reset)
    assert tracker.losses["reset_limit"] == 0
    for _ in range(3):
        tracker.take(reset)
    assert (tracker.losses["reset_limit"], tracker.other()) == (3, {"reset": 3})
    assert len(reported(tracker)) == kept
    tracker.take(reset)
    assert tracker.losses["reset_limit"] == 3


def test_four_resets_take_no_more_than_a_closed_connection() -> None:
    tracker = Tracker(RESOLVER)
    samples = [opened(0, kind=SampleKind.RESET)[0] for _ in range(4000)]

    def keep_all() -> object:
        for sample in samples:
            tracker.take(sample)
        return tracker._resets

    assert grown_by(keep_all, len(samples)) < _ITEM_BYTES["closes"] / 4


def test_connections_whose_close_was_lost_count_beside_those_that_are_open() -> None:
    tracker = Tracker(RESOLVER, bounds=replace(FEW, connections=10, closes=2))
    for conn in range(1, 6):
        tracker.take(opened(conn)[0])
        tracker.gone(conn)
    for conn in range(6, 16):
        tracker.take(opened(conn)[0])
    assert len(tracker.known()) + len(tracker._lost_unreported) == 12
    assert (tracker.losses["open_limit"], tracker.losses["close_limit"]) == (3, 0)
    opens = [event["conn_id"] for event in tracker.report_opens(SINCE_BOOT) if event["kind"] == "open"]
    assert len(opens) == len(set(opens)) == 12


def test_the_oldest_close_gives_way_to_a_new_connection() -> None:
    fed = Fed()
    tracker = fed.processor.tracker
    tracker._bounds = FEW
    for conn in range(1, 6):
        fed.see(opened(conn), closed(conn, ts_ns=conn))
        tracker.gone(conn)
    fed.see(opened(6))
    assert tracker.known() == {6}
    assert tracker.losses["close_limit"] == 1
    fed.report()
    (agent,) = fed.events("agent")
    assert agent["other"] == {"close/client/fin/local": 1, "open/client": 1}
    assert [event["ts"] for event in fed.events("close")] == sorted(event["ts"] for event in fed.events("close"))
    assert len(fed.events("close")) == 4


def test_opens_and_closes_beyond_the_bound_are_counted_by_how() -> None:
    fed = Fed()
    fed.processor.tracker._bounds = FEW
    for conn in range(1, 9):
        fed.see(opened(conn), closed(conn, ts_ns=conn))
        fed.processor.tracker.gone(conn)
    fed.report()
    (agent,) = fed.events("agent")
    assert (len(fed.events("open")), len(fed.events("close"))) == (4, 4)
    assert agent["other"] == {"close/client/fin/local": 4, "open/client": 4}
    assert (agent["losses"]["close_limit"], agent["losses"]["open_limit"]) == (4, 4)
    assert agent["complete_since"] >= agent["ts"]
    fed.report()
    assert fed.events("agent")[-1]["other"] == {}


@pytest.mark.parametrize("char", ["x", "\u00e9", "\N{PILE OF POO}"])
def test_what_connections_say_of_themselves_is_reckoned_and_given_back(char: str) -> None:
    watched = with_budget(60)

    def text(kind: str, conn: int) -> str:
        return f"{kind}{conn:04}" + char * 250

    messages = [
        (
            by_hand("Heartbeat", 4, {"GroupId": text("group", conn)}, conn),
            by_hand(
                "ApiVersions",
                3,
                {"ClientSoftwareName": text("name", conn), "ClientSoftwareVersion": text("version", conn)},
                conn,
            ),
            request(METADATA, 12, conn, client_id=text("client", conn)),
        )
        for conn in range(1, 61)
    ]
    tracker = watched.tracker

    def used_bytes() -> int:
        return tracker.budget.used_bytes + tracker.activity_budget.used_bytes

    def feed(some: Sequence[tuple[Samples, ...]]) -> bool:
        for samples in some:
            for one in samples:
                watched.see(one)
        list(watched.dispatcher.report(INTERVAL))
        watched.reader = FrameReader(SUMMED)
        return True

    feed(messages[:1])
    before = used_bytes()
    grown = grown_by(lambda: feed(messages[1:]), 1)
    assert grown < used_bytes() - before < 59 * 7000
    let_all_go(watched, 60)
    assert used_bytes() == 0


def test_texts_beyond_the_bound_are_null_and_counted_and_those_of_others_are_kept() -> None:
    watched = with_budget(0, 20_000)
    for conn in range(1, 100):
        watched.tracker.take(opened(conn, server_side=True, peer=("10.0.0.1", conn), local=("10.0.0.7", 9092))[0])
        watched.see(request(METADATA, 12, conn, client_id=f"{conn:0200}"))
    watched.tracker.take(opened(100, server_side=True, peer=("10.0.0.2", 1), local=("10.0.0.7", 9092))[0])
    watched.see(request(METADATA, 12, 100))
    events = watched.report()
    unknown = [event for event in events if event["client"]["id"] is None]
    assert 0 < len(unknown) < 99
    assert len(unknown) == watched.tracker.losses["text_limit"]
    assert events[-1]["client"]["id"] is not None
    assert watched.tracker.budget.used_bytes <= 20_000


def test_kafka_probe_knows_its_own_connections_also_beyond_the_bound() -> None:
    watched = with_budget(1, 0)
    for _ in range(2):
        watched.see(request(METADATA, 12, 1, client_id="kafka-probe-agent-node-1"))
        (event,) = watched.report()
        assert event["internal"]
    let_all_go(watched, 1)
    assert watched.tracker.budget.used_bytes == 0


def test_closed_listeners_take_no_more_than_a_mebibyte() -> None:
    pending = PendingCloses(RESOLVER)
    addresses = (f"2001:db8:{n:x}:4444:5555:6666:7777:8888" for n in range(600 * 12))
    samples = [listener(closed=True, local=(next(addresses), 1024 + n)) for n in range(600) for _ in range(12)]

    def listen() -> bool:
        for sample in samples:
            pending.note_listener(sample[0])
        return True

    assert 0 < grown_by(listen, 1) < MIB


def test_groups_of_open_connections_are_bounded() -> None:
    tracker = Tracker(RESOLVER, bounds=replace(DEFAULT, open_counts=2))
    for conn in range(1, 50):
        tracker.take(opened(conn, peer=(f"10.{conn}.0.1", 9092), local=(f"10.0.{conn}.1", 40001))[0])
    groups = tracker.open_now()
    assert len(groups) <= 2 * 2 + 1
    assert sum(int(str(group["count"])) for group in groups) == 49
    for conn in range(1, 50):
        tracker.close(closed(conn)[0])
    assert tracker.open_now() == []
