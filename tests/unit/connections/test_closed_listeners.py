"""Listening sockets that were closed before or just after a connection: the sign of a broker that stops."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_probe.connections.tracker import Tracker
from kafka_probe.workloads import WorkloadResolver
from tests.builders.events import reported
from tests.builders.samples import Samples, closed, listener, opened

SECOND_NS = 10**9
BROKER, STRANGER = 1 << 23, (1 << 23) + 1  # process ids that no process has
LOCAL, NETNS = ("10.0.0.1", 9092), 7
SHUT = listener(closed=True, netns=NETNS, tgid=BROKER, ts_ns=3 * SECOND_NS)


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(WorkloadResolver())


def listener_of_a_close(tracker: Tracker, *listeners: Samples, **fields: Any) -> object:
    end = opened(1, **{"server_side": True, "local": LOCAL, "netns": NETNS, "tgid": BROKER, **fields})
    for sample in (*listeners, end):
        tracker.take(sample[0])
    tracker.close(closed(1, closing_ns=5 * SECOND_NS)[0])
    tracker.settle(1 << 62)
    return reported(tracker)[-1]["listener_closed_us"]


def test_a_listener_that_was_closed_is_reported_at_the_server_end(tracker: Tracker) -> None:
    assert listener_of_a_close(tracker, SHUT) == 2_000_000


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_one_of_every_address_was_that_of_each(tracker: Tracker, address: str) -> None:
    shut = listener(closed=True, netns=NETNS, tgid=BROKER, local=(address, 9092), ts_ns=3 * SECOND_NS)
    assert listener_of_a_close(tracker, shut) == 2_000_000


def test_the_last_of_any_process_counts_if_the_owner_of_the_connection_is_unknown(tracker: Tracker) -> None:
    earlier = listener(closed=True, netns=NETNS, tgid=STRANGER, ts_ns=SECOND_NS)
    elsewhere = listener(closed=True, netns=NETNS, tgid=STRANGER, local=("10.0.0.2", 9092), ts_ns=4 * SECOND_NS)
    assert listener_of_a_close(tracker, earlier, SHUT, elsewhere, tgid=0) == 2_000_000


def test_a_listener_that_another_process_opens_does_not_hide_that_it_was_closed(tracker: Tracker) -> None:
    opened_again = listener(closed=False, netns=NETNS, tgid=STRANGER, local=("0.0.0.0", 9092))
    assert listener_of_a_close(tracker, SHUT, opened_again) == 2_000_000


def test_one_that_is_closed_just_after_the_connection_counts_too(tracker: Tracker) -> None:
    assert listener_of_a_close(tracker, listener(closed=True, netns=NETNS, tgid=BROKER, ts_ns=5 * SECOND_NS + 1)) == 0


@pytest.mark.parametrize(
    ("listeners", "fields"),
    [
        ((), {}),
        ((SHUT, listener(closed=False, netns=NETNS, tgid=BROKER)), {}),
        ((SHUT,), {"netns": 8}),
        ((SHUT,), {"local": ("10.0.0.1", 9093)}),
        ((SHUT,), {"local": ("10.0.0.2", 9092)}),
        ((SHUT, listener(closed=False, netns=NETNS, tgid=BROKER, local=("0.0.0.0", 9092))), {}),
        ((SHUT,), {"server_side": False}),
        ((listener(closed=True, netns=NETNS, tgid=STRANGER, local=("::", 9092), ts_ns=3 * SECOND_NS),), {}),
    ],
    ids=[
        *("none", "open again", "another namespace", "another port", "another address", "open for every address"),
        *("the client end", "another process"),
    ],
)
def test_no_listener_of_this_end_was_closed(
    tracker: Tracker, listeners: tuple[Samples, ...], fields: dict[str, Any]
) -> None:
    assert listener_of_a_close(tracker, *listeners, **fields) is None


@pytest.mark.parametrize(
    ("later", "remembered"),
    [
        ([(f"10.0.1.{n}", 9092) for n in range(3)], True),
        ([(f"10.0.1.{n}", 9092) for n in range(4)], False),
        ([("10.0.0.1", 10_000 + n) for n in range(255)], True),
        ([("10.0.0.1", 10_000 + n) for n in range(256)], False),
    ],
    ids=["4 addresses", "5 addresses", "256 ports", "257 ports"],
)
def test_closed_listeners_of_256_ports_are_remembered_at_four_addresses_each(
    tracker: Tracker, later: list[tuple[str, int]], remembered: bool
) -> None:
    others = [listener(closed=True, netns=NETNS, tgid=BROKER, local=local, ts_ns=3 * SECOND_NS) for local in later]
    assert (listener_of_a_close(tracker, SHUT, *others) is not None) == remembered
