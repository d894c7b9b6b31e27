"""The silences of connections, from the kernel's times."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kafka_probe.capture.sample import CONNECTION_HEAD
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.identity import read_open
from kafka_probe.connections.silences import Silences, no_heads
from kafka_probe.connections.tracker import Tracker
from kafka_probe.workloads import WorkloadResolver
from tests.builders.events import SINCE_BOOT
from tests.builders.samples import opened

S = 10**9


def connection(conn: int) -> Connection:
    tracker = Tracker(WorkloadResolver())
    tracker.take(opened(conn, ts_ns=2 * S)[0])
    (found,) = tracker.snapshot()
    return found


@pytest.mark.parametrize(
    ("longest_s", "sent_s", "received_s", "silence_s", "whole_s"),
    [(5, 10, 8, 20, 20), (25, 8, 10, 20, 25), (0, 0, 0, 28, 28), (3, 31, 30, 0, 3)],
)
def test_the_present_silence_may_be_the_longest(
    longest_s: int, sent_s: int, received_s: int, silence_s: int, whole_s: int
) -> None:
    rows = [(conn << 8, longest_s * S, sent_s * S, received_s * S) for conn in (9, 3, 2**55)]
    silences = Silences(np.array(rows, CONNECTION_HEAD))
    found = silences.facts(connection(2**63), 30 * S)
    assert found == {"present_silence_us": silence_s * 10**6, "longest_silence_us": whole_s * 10**6}


def test_a_connection_that_the_kernel_no_longer_follows_has_no_silence() -> None:
    assert Silences(no_heads(())).facts(connection(1), 30 * S) == {}
    assert Silences(np.array([(1, 0, 0, 0)], CONNECTION_HEAD)).facts(connection(2), 30 * S) == {}


def test_a_listed_connection_has_been_silent_since_it_was_listed() -> None:
    tracker = Tracker(WorkloadResolver(), open_interval_s=1)
    identity, owner = read_open(opened(40001, from_start=False)[0])
    tracker.add_listed([(replace(identity, flow_id=None), owner)], 2 * S)
    for at_s in (0, 5):
        assert [*tracker.repeat(at_s * S, SINCE_BOOT)] == []
    (event,) = tracker.repeat(9 * S, SINCE_BOOT)
    assert (event["present_silence_us"], event["longest_silence_us"], event["keepalive_s"]) == (
        7_000_000,
        7_000_000,
        None,
    )


def test_the_kernel_is_asked_only_for_the_connections_that_are_due() -> None:
    tracker = Tracker(WorkloadResolver(), open_interval_s=60)
    asked = []

    def heads_of(conns: Collection[int]) -> npt.NDArray[Any]:
        asked.append([*conns])
        return np.array([(conn, 5 * S, 2 * S, 0) for conn in conns], CONNECTION_HEAD)

    for conn in range(1, 121):
        tracker.take(opened(conn)[0])
    for at_s in (0, 60):
        assert [*tracker.repeat(at_s * S, SINCE_BOOT, heads_of)] == []
    found = [tracker.repeat(round(at_s * S), SINCE_BOOT, heads_of) for at_s in (60.4, 60.8, 61.2)]
    assert [[event["longest_silence_us"] for event in events] for events in found] == [[], [], [59_200_000] * 2]
    assert asked == [[], [], [], [], [2, 1]]
