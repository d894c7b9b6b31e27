"""Connections from their first sample to their last, and the events between."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.capture.sample import Protocol, SampleKind
from kafka_probe.connections import open_counts
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.identity import Identity, read_open
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import INTERNAL_CLIENT, Nat
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, Status
from kafka_probe.time_limit import TimeLimit
from kafka_probe.workloads import Owner, WorkloadResolver, present
from tests.builders.event_schema import assert_body_valid
from tests.builders.events import SINCE_BOOT, reported
from tests.builders.messages import case
from tests.builders.samples import Samples, closed, opened, rejected
from tests.lab.processes import wait_until

API_VERSIONS, METADATA = ApiKey.API_VERSIONS, ApiKey.METADATA
SECOND_NS = 10**9
ALL = 1 << 62


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(WorkloadResolver())


def events(tracker: Tracker) -> list[dict[str, Any]]:
    tracker.settle(ALL)
    sent = reported(tracker)
    for event in sent:
        assert_body_valid(event)
    return sent


def kinds(tracker: Tracker) -> list[object]:
    return [event["kind"] for event in events(tracker)]


def take(tracker: Tracker, *samples: Samples) -> None:
    for sample in samples:
        tracker.take(sample[0])


@pytest.mark.parametrize("fields", [("kind", "size"), ("size",)], ids=["all", "the last field"])
def test_a_first_sample_that_the_kernel_had_not_filled_is_a_loss(tracker: Tracker, fields: tuple[str, ...]) -> None:
    partly = opened()
    for field in fields:
        partly[field] = 0
    tracker.take(partly[0])
    assert events(tracker) == []
    assert tracker.losses["open_incomplete"] == 1
    tracker.take(opened()[0])
    assert [event["kind"] for event in events(tracker)] == ["open"]


def test_a_second_close_of_a_connection_changes_nothing(tracker: Tracker) -> None:
    take(tracker, opened(1))
    tracker.close(closed(1, ts_ns=20)[0])
    tracker.close(closed(1, ts_ns=30)[0])
    assert len(tracker) == 0
    assert kinds(tracker) == ["open", "close"]
    assert tracker.losses["connection_unknown"] == 1


def test_closes_are_sent_in_the_order_of_their_times(tracker: Tracker) -> None:
    for conn, ts_ns in ((1, 5_000), (2, 9_000), (3, 7_000), (4, 8_000)):
        take(tracker, opened(conn))
        tracker.close(closed(conn, ts_ns=ts_ns)[0])
    tracker.settle(8_500)
    assert tracker.sent_until(8_500) == 4_000
    assert [event["ts"] for event in reported(tracker) if event["kind"] == "close"] == [5, 7, 8]
    assert tracker.sent_until(8_500) == 8_500


class _SlowNat(Conntrack):
    """Connection tracking that takes longer than a report may take, by a clock of its own."""

    def __init__(self) -> None:
        self.not_asked = 0
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def translations(self, identities: Sequence[Identity]) -> list[Nat | None]:
        self.now_s += 10
        return [None] * len(identities)


def test_queries_for_nat_take_no_time_from_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    nat = _SlowNat()
    monkeypatch.setattr("kafka_probe.time_limit.time", nat)
    tracker = Tracker(WorkloadResolver(), nat)
    take(tracker, opened(1), opened(0, kind=SampleKind.RESET))
    sent = [event["kind"] for event in tracker.report_opens(SINCE_BOOT, TimeLimit(1.0))]
    assert sent == ["reset", "open"]


def test_a_connection_opens_and_closes_once(tracker: Tracker) -> None:
    take(tracker, opened(1, ts_ns=10))
    assert len(tracker) == 1
    assert kinds(tracker) == ["open"]
    tracker.close(closed(1, ts_ns=20)[0])
    assert len(tracker) == 0
    assert tracker.gone(1) is not None
    assert len(tracker) == 0
    assert kinds(tracker) == ["close"]
    assert kinds(tracker) == []


def test_one_that_opened_and_closed_between_two_reports_is_reported_in_that_order(tracker: Tracker) -> None:
    take(tracker, opened(1, ts_ns=10_000))
    tracker.close(closed(1, ts_ns=5_010_000)[0])
    tracker.settle(ALL)
    opening, closing = reported(tracker)
    assert (opening["ts"], closing["ts"]) == (10, 5_010)
    assert closing["kind"] == "close"
    assert closing["age_us"] == 5_000


def test_both_events_say_whose_connection_it_was(tracker: Tracker) -> None:
    broker, client = ("10.0.0.1", 9092), ("10.0.0.7", 40001)
    owner = os.getpid()
    take(tracker, opened(0xABC, server_side=True, local=broker, peer=client, tgid=owner, netns=7, tx_base=1, rx_base=2))
    tracker.close(closed(0xABC)[0])
    both = events(tracker)
    assert [event["kind"] for event in both] == ["open", "close"]
    for event in both:
        assert event["side"] == "server"
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
        tracker.learn(connection, facts)
    (event,) = events(tracker)
    assert event["client"] == {"id": "billing-1", "software_name": "librdkafka", "software_version": "2.16.1"}
    assert event["cluster_id"] == "the-cluster"


def test_another_process_that_uses_the_connection_owns_it_from_then_on(tracker: Tracker) -> None:
    take(tracker, opened(1, tgid=1), opened(1, tgid=os.getpid(), kind=SampleKind.OWNER))
    (event,) = events(tracker)
    assert event["workload"]["pid"] == os.getpid()


def test_a_connection_whose_opening_was_lost_is_known_by_its_next_owner(tracker: Tracker) -> None:
    take(tracker, opened(1, kind=SampleKind.OWNER))
    assert kinds(tracker) == ["open"]


@pytest.mark.parametrize(("protocol", "opaque"), [(Protocol.TLS, "tls"), (Protocol.UNKNOWN, "unknown")])
def test_a_connection_without_plain_kafka_keeps_its_owner_and_its_end(
    tracker: Tracker, protocol: Protocol, opaque: str
) -> None:
    take(tracker, opened(1), rejected(1, protocol), rejected(2, protocol))
    tracker.close(closed(1)[0])
    assert [event["opaque"] for event in events(tracker)] == [opaque, opaque]


def test_an_end_without_a_beginning_is_counted(tracker: Tracker) -> None:
    tracker.close(closed(1)[0])
    assert tracker.gone(1) is None
    assert tracker.losses["connection_unknown"] == 1
    assert kinds(tracker) == []


def test_a_connection_that_is_gone_without_a_close_is_counted(tracker: Tracker) -> None:
    take(tracker, opened(1))
    tracker.gone(1)
    assert (len(tracker), tracker.losses["close_unknown"]) == (0, 1)
    assert kinds(tracker) == ["open"]


def test_what_is_read_after_the_end_still_finds_its_connection(tracker: Tracker) -> None:
    take(tracker, opened(1))
    tracker.close(closed(1)[0])
    assert tracker.get(1) is not None


def test_a_close_is_reported_when_it_is_settled(tracker: Tracker) -> None:
    take(tracker, opened(1))
    tracker.close(closed(1, ts_ns=3 * SECOND_NS)[0])
    tracker.settle(3 * SECOND_NS - 1)
    assert [event["kind"] for event in reported(tracker)] == ["open"]
    tracker.settle(3 * SECOND_NS)
    assert [event["kind"] for event in reported(tracker)] == ["close"]


def owner_of_a_close(tracker: Tracker, pid: int, start_ns: int) -> object:
    take(tracker, opened(1, tgid=pid, start_ns=start_ns))
    tracker.close(closed(1)[0])
    _, closing = events(tracker)
    return closing["owner_ended"]


def test_a_process_that_lives_on_has_not_ended(tracker: Tracker) -> None:
    start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert owner_of_a_close(tracker, os.getpid(), start_ticks * (SECOND_NS // os.sysconf("SC_CLK_TCK"))) is False


def test_a_process_that_nobody_has_waited_for_has_ended(tracker: Tracker) -> None:
    child = subprocess.Popen(["true"])
    stat = Path(f"/proc/{child.pid}/stat")
    start_ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    wait_until(lambda: ") Z " in stat.read_text(), "the process to end")
    try:
        ended = owner_of_a_close(tracker, child.pid, start_ticks * (SECOND_NS // os.sysconf("SC_CLK_TCK")))
    finally:
        child.wait()
    assert ended is True


def test_the_end_of_an_unknown_owner_is_unknown(tracker: Tracker) -> None:
    assert owner_of_a_close(tracker, 0, 0) is None


BROKER = ("10.0.0.1", 9092)


def test_a_reset_without_a_socket_is_reported_with_its_addresses(tracker: Tracker) -> None:
    take(tracker, opened(0, kind=SampleKind.RESET, local=BROKER, netns=7))
    (event,) = events(tracker)
    assert (event["kind"], event["local"], event["peer"]) == ("reset", "10.0.0.1:9092", "10.0.0.1:9092")


def test_open_connections_are_counted_by_owner_and_far_network(tracker: Tracker) -> None:
    for conn in (1, 2, 3):
        take(tracker, opened(conn, tgid=conn // 3 + 1, server_side=True, local=BROKER, peer=("10.0.7.1", 40000 + conn)))
    take(tracker, opened(4, local=("2001:db8::7", 40004), peer=("2001:db8::1", 9092)), opened(5))
    tracker.close(closed(5)[0])
    counted = [(now["side"], now["local"], now["peer_network"], now["count"]) for now in tracker.open_now()]
    assert counted == [
        ("server", "10.0.0.1:9092", "10.0.7.0/24", 2),
        ("server", "10.0.0.1:9092", "10.0.7.0/24", 1),
        ("client", "[2001:db8::7]", "2001:db8::/64", 1),
    ]


def test_of_very_many_far_networks_the_smallest_are_reported_as_one(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_counts, "MAX_COUNTS", 2)
    networks = (1, 2, 2, 3, 3, 3, 4)
    for conn, number in enumerate(networks):
        take(tracker, opened(conn, tgid=1, server_side=True, local=BROKER, peer=(f"10.0.{number}.1", 40000 + conn)))
    counted = [(now["peer_network"], now["count"]) for now in tracker.open_now()]
    assert counted == [("10.0.3.0/24", 3), ("10.0.2.0/24", 2), (None, 2)]


def test_resets_that_come_while_a_report_is_read_are_for_the_next_one(tracker: Tracker) -> None:
    reset = opened(0, kind=SampleKind.RESET, local=BROKER, netns=7)
    take(tracker, reset)
    for _ in tracker.report_opens(SINCE_BOOT):
        take(tracker, reset)
    assert len(reported(tracker)) == 1


def test_who_takes_a_connection_over_is_counted_for_it(tracker: Tracker) -> None:
    take(tracker, opened(1, tgid=1), opened(2, tgid=1), opened(2, tgid=2, kind=SampleKind.OWNER))
    assert [now["count"] for now in tracker.open_now()] == [1, 1]
    take(tracker, opened(1, tgid=2, kind=SampleKind.OWNER))
    assert [now["count"] for now in tracker.open_now()] == [2]


def test_connections_of_our_own_are_not_counted_once_they_are_known(tracker: Tracker) -> None:
    take(tracker, opened(1), opened(2))
    connection = tracker.get(1)
    assert connection
    tracker.learn(
        connection, Facts(False, METADATA, 12, Status.COMPLETE, values=((Fact.CLIENT_ID, f"{INTERNAL_CLIENT}x"),))
    )
    assert [now["count"] for now in tracker.open_now()] == [1]
    for conn in (1, 2):
        tracker.gone(conn)
    assert tracker.open_now() == []


def identity(sample: Samples, **changes: Any) -> tuple[Identity, Owner]:
    """Return a connection as in the list of open sockets."""
    found, owner = read_open(sample[0])
    return replace(found, flow_id=None, from_start=False, **changes), owner


def test_a_listed_connection_is_reported_again_when_it_has_a_flow_id(tracker: Tracker) -> None:
    tracker.add_listed([identity(opened(9, tgid=os.getpid()))], 0)
    assert (len(tracker), [event["found"] for event in events(tracker)]) == (1, ["listed"])
    take(tracker, opened(1, tgid=0, from_start=False))
    tracker.close(closed(1)[0])
    opening, closing = events(tracker)
    assert (opening["found"], opening["conn_id"], closing["conn_id"]) == ("midstream", f"{9:016x}", f"{9:016x}")
    assert opening["flow_id"] is not None
    assert closing["workload"]["pid"] == os.getpid()
    assert len(tracker) == 0


def test_a_listed_connection_without_a_free_slot_is_counted(tracker: Tracker) -> None:
    tracker.add_listed([None, identity(opened(9)), None], 0)
    assert (len(tracker), tracker.losses["connection_limit"]) == (1, 2)


def test_listed_connections_of_a_process_that_has_ended_can_be_forgotten(tracker: Tracker) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        mine, its = present(os.getpid(), 0), present(process.pid, 0)
        tracker.add_listed([(identity(opened(9))[0], mine), (identity(opened(10), local="10.0.0.7:40002")[0], its)], 0)
        assert tracker.orphans() == []
        process.kill()
    orphans = tracker.orphans()
    tracker.forget_listed(orphans)
    tracker.forget_listed(orphans)
    assert [connection.identity.local for connection in tracker.snapshot()] == ["10.0.0.7:40001"]
    assert (len(tracker), tracker.losses["close_unknown"]) == (1, 1)


def test_what_was_seen_before_the_list_came_is_not_listed(tracker: Tracker) -> None:
    take(tracker, opened(1))
    tracker.close(closed(1)[0])
    tracker.gone(1)
    tracker.add_listed([identity(opened(9))], 0)
    tracker.add_listed([identity(opened(10), local="10.0.0.7:40002")], 0)
    tracker.end_list()
    reported = [(event["kind"], event["local"]) for event in events(tracker)]
    assert reported == [("open", "10.0.0.7:40001"), ("open", "10.0.0.7:40002"), ("close", "10.0.0.7:40001")]
    assert len(tracker) == 1
