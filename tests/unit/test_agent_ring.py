"""How the agent reads its ring: pauses, bounds, and what is made of ends that found it full."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kafka_probe.agent import Agent
from kafka_probe.capture.programs import LOSSES
from kafka_probe.capture.record import COUNTERS, RECORD
from kafka_probe.config import Config
from tests.unit.connections.records import Records, closed, ended, opened, stream
from tests.unit.test_agent import SECOND_NS, Fed, Kept


class LateRing:
    """A ring into which a connection's end is written in the moment after each reading, for the next one to find."""

    def __init__(self, readings: int, then: Callable[[], None]) -> None:
        self._readings = readings
        self._then = then
        self._waiting = np.zeros(0, RECORD)

    def wait(self, _timeout_s: float) -> None:
        """There is always something."""

    def take(self, _most: int) -> Records:
        if not len(self._waiting):
            self._readings -= 1
            if self._readings == 0:
                self._then()
            conn = 1 + self._readings
            self._waiting = stream(opened(conn), ended(conn, ts_ns=time.monotonic_ns()))
            return np.zeros(0, RECORD)
        taken, self._waiting = self._waiting, np.zeros(0, RECORD)
        return taken


class NoPrograms:
    """Programs that count nothing."""

    def __init__(self, buffer: object) -> None:
        self.buffer = buffer

    def counters(self) -> dict[str, int]:
        return dict.fromkeys((*COUNTERS, *LOSSES), 0)

    def run_time_ns(self) -> int | None:
        return None

    def detach(self) -> None:
        """Nothing is attached."""


class WaitingRing:
    """A ring that holds one record for every pause in a report."""

    def wait(self, _timeout_s: float) -> None:
        self.waiting = opened(1 << 20)

    def take(self, _most: int) -> Records:
        taken, self.waiting = self.waiting, np.zeros(0, RECORD)
        return taken


class FloodedRing:
    """A ring that is full again whenever it is read."""

    def __init__(self) -> None:
        self.takes = 0

    def take(self, most: int) -> Records:
        self.takes += 1
        return np.zeros(most, RECORD)


class Following(NoPrograms):
    """Programs whose ring was full, and that follow connection 2 only."""

    def counters(self) -> dict[str, int]:
        return super().counters() | {"ring_full": 1}

    def followed(self) -> set[int]:
        return {2}


def forget_lost(fed: Fed, ring: object) -> None:
    programs = Following(ring)
    fed.agent._look(programs)  # type: ignore[arg-type]  # stands in for the kernel
    fed.agent._forget_lost(programs)  # type: ignore[arg-type]  # stands in for the kernel


def test_connections_whose_end_found_the_ring_full_are_forgotten() -> None:
    fed, ring = Fed(), WaitingRing()
    fed.see(opened(1), opened(2), opened(3), closed(3))
    ring.wait(0)  # what it holds was opened too late to be among those that are followed
    forget_lost(fed, ring)
    assert fed.agent._tracker.known() == {2, 1 << 20}
    fed.report()
    (told,) = fed.events("agent")
    assert (told["connections"], told["losses"]["close_unknown"]) == (2, 1)


def test_while_the_ring_is_not_read_to_its_end_nothing_is_taken_for_lost() -> None:
    fed = Fed()
    fed.see(opened(1))
    forget_lost(fed, FloodedRing())
    assert fed.agent._tracker.known() == {1}
    forget_lost(fed, LateRing(2, fed.agent.stop))
    assert fed.agent._tracker.known() == set()


def test_a_ring_that_fills_as_fast_as_it_is_read_keeps_no_report_waiting() -> None:
    fed, ring = Fed(), FloodedRing()
    assert not fed.agent._drain(ring)  # type: ignore[arg-type]  # stands in for the kernel
    assert ring.takes == 2  # as much as 8 MiB hold


def test_a_long_report_pauses_to_empty_the_ring() -> None:
    fed, ring = Fed(), WaitingRing()
    fed.see(*(opened(conn) for conn in range(3000)))
    now = time.monotonic_ns()
    fed.agent._report(now - SECOND_NS, now, now, ring)  # type: ignore[arg-type]  # stands in for the kernel
    assert len(fed.events("open")) == 3000
    assert fed.events("agent")[0]["connections"] == 3001
    fed.report()
    assert len(fed.events("open")) == 3001


def test_where_no_list_of_older_connections_will_come_none_is_waited_for() -> None:
    agent = Agent(Config(node="node-1"), Kept())
    agent._loop(NoPrograms(LateRing(3, agent.stop)), None)  # type: ignore[arg-type]  # stands in for the kernel
    assert agent._tracker._seen is None  # else it would grow with each connection


def test_what_ends_after_complete_until_may_come_later_but_nothing_before_it() -> None:
    sink = Kept()
    agent = Agent(Config(node="node-1", interval_s=1e-6), sink)
    agent._loop(NoPrograms(LateRing(20, agent.stop)), None)  # type: ignore[arg-type]  # stands in for the kernel
    complete_until, closes = 0, 0
    for event in sink.events:
        if event["kind"] == "agent":
            complete_until = event["complete_until"]
        elif event["kind"] == "close":
            closes += 1
            assert event["ts"] >= complete_until
    assert closes >= 10
