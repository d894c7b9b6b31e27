"""The agent's reading of its ring: pauses, bounds, and closes that were lost because it was full."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kafka_probe import processing
from kafka_probe.agent import Agent
from kafka_probe.capture.programs import LOSSES
from kafka_probe.capture.sample import COUNTERS, SAMPLE, SLOT
from kafka_probe.config import Config
from kafka_probe.connections.silences import no_heads
from kafka_probe.loop import _LISTED_AT_ONCE, Loop
from kafka_probe.memory import DECODED_BYTES, DEFAULT
from kafka_probe.processing import Portion
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.fed_agent import SECOND_NS, Fed, Kept
from tests.builders.messages import case
from tests.builders.samples import Samples, by_hand, closed, ended, frame, message, opened, request, response, stream

METADATA = ApiKey.METADATA
RING_BYTES = 8 << 20


class LateRing:
    """A ring into which a connection's end is written right after each reading, for the next one to find."""

    def __init__(self, readings: int, then: Callable[[], None]) -> None:
        self._readings = readings
        self._then = then
        self._waiting = np.zeros(0, SAMPLE)

    def wait(self, _timeout_s: float) -> None:
        """Return at once: there is always a sample."""

    def take(self, _most: int) -> Samples:
        if not len(self._waiting):
            self._readings -= 1
            if self._readings == 0:
                self._then()
            conn = 1 + self._readings
            self._waiting = stream(opened(conn), ended(conn, ts_ns=time.monotonic_ns()))
            return np.zeros(0, SAMPLE)
        taken, self._waiting = self._waiting, np.zeros(0, SAMPLE)
        return taken


class NoPrograms:
    """Programs with no counts."""

    backend = "tracepoint"

    def __init__(self, buffer: object) -> None:
        self.buffer = buffer

    def counters(self) -> dict[str, int]:
        return dict.fromkeys((*COUNTERS, *LOSSES), 0)

    def run_time_ns(self) -> int | None:
        return None

    def heads_of(self, conns: Collection[int]) -> npt.NDArray[Any]:
        return no_heads(conns)

    def detach(self) -> None:
        """Do nothing: nothing is attached."""


class WaitingRing:
    """A ring that holds one sample for every pause in a report."""

    def wait(self, _timeout_s: float) -> None:
        self.waiting = opened(1 << 20)

    def take(self, _most: int) -> Samples:
        taken, self.waiting = self.waiting, np.zeros(0, SAMPLE)
        return taken


class FloodedRing:
    """A ring that is full again whenever it is read."""

    def __init__(self) -> None:
        self.samples = 0

    def take(self, most: int) -> Samples:
        self.samples += most
        return np.zeros(most, SAMPLE)


class Following(NoPrograms):
    """Programs whose ring was full, and that follow connection 2 only."""

    def counters(self) -> dict[str, int]:
        return super().counters() | {"ring_full": 1}

    def followed(self) -> set[int]:
        return {2}


class LongListing:
    """A complete list of so many older connections, none of which fits in the memory limit."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, most: int) -> list[None]:
        taken = min(most, self.left)
        self.left -= taken
        return [None] * taken


def loop_of(fed: Fed, programs: NoPrograms) -> Loop:
    """Return the loop of an agent whose intervals end at once."""
    return Loop(programs, None, fed.processor, fed.reporter, 0.0, RING_BYTES)  # type: ignore[arg-type]  # no kernel


def forget_lost(fed: Fed, ring: object) -> None:
    loop = loop_of(fed, Following(ring))
    loop._end_interval()
    loop._drain(math.inf)
    loop._forget_suspects()


def test_connections_whose_end_found_the_ring_full_are_forgotten() -> None:
    fed, ring = Fed(), WaitingRing()
    fed.see(opened(1), opened(2), opened(3), closed(3))
    ring.wait(0)  # what it holds was opened too late to be among those that are followed
    forget_lost(fed, ring)
    assert fed.processor.tracker.known() == {2, 1 << 20}
    fed.report()
    (report,) = fed.events("agent")
    assert (report["connections"], report["losses"]["close_unknown"]) == (2, 1)


def test_an_end_that_the_ring_still_holds_is_not_lost() -> None:
    fed, ring = Fed(), WaitingRing()
    fed.see(opened(1))
    ring.waiting = ended(1)
    forget_lost(fed, ring)
    assert fed.processor.tracker.losses["close_unknown"] == 0


def test_lost_connections_are_forgotten_while_the_ring_fills_as_fast_as_it_is_read() -> None:
    """The agent reads everything that the ring contains when it asks the kernel, before it forgets connections."""
    fed, ring = Fed(), FloodedRing()
    fed.see(opened(1), opened(2))
    forget_lost(fed, ring)
    assert fed.processor.tracker.known() == {2}
    assert ring.samples >= RING_BYTES // SLOT.itemsize


def test_frames_of_connections_that_nobody_knows_are_forgotten_with_them() -> None:
    fed, ring = Fed(), WaitingRing()
    unfinished = message(case(METADATA, 12, response=True), 7, sample_bytes=20)[:1]
    ring.waiting = opened(1 << 20)
    fed.see(unfinished)
    forget_lost(fed, ring)
    assert fed.processor.reader.unfinished() == set()
    assert fed.processor.reader.losses["frame_incomplete"] == 1


def test_a_request_of_a_lost_connection_is_handed_on_though_no_sample_follows() -> None:
    fed, ring = Fed("all"), WaitingRing()
    loop = Loop(NoPrograms(ring), None, fed.processor, fed.reporter, 60.0, RING_BYTES)  # type: ignore[arg-type]  # no kernel
    fed.see(opened(1), request(METADATA, 12))
    fed.processor.forget(1)
    loop.turn()
    (event,) = fed.events("request")
    assert (event["api"], event["response_bytes"]) == ("Metadata", None)


def test_the_events_of_a_portion_are_handed_on_before_the_next_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, handed_on = Fed("all"), list[int]()
    loop, consume = loop_of(fed, NoPrograms(WaitingRing())), fed.processor.consume

    def count_and_consume(portion: Portion) -> None:
        handed_on.append(len(fed.events("request")))
        consume(portion)

    monkeypatch.setattr(processing, "DECODED_AT_ONCE", 1)  # a portion for each frame
    monkeypatch.setattr(fed.processor, "consume", count_and_consume)
    exchanges = ((request(METADATA, 12, correlation_id=n), response(METADATA, 12, correlation_id=n)) for n in (1, 2))
    loop._process(stream(opened(1), *chain(*exchanges)))
    assert handed_on == [0, 0, 0, 1, 1]
    assert len(fed.events("request")) == 2


def test_a_ring_that_fills_as_fast_as_it_is_read_keeps_no_report_waiting() -> None:
    fed, ring, capacity = Fed(), FloodedRing(), RING_BYTES // SLOT.itemsize
    loop = loop_of(fed, NoPrograms(ring))
    began = time.monotonic_ns()
    loop._drain(due_s=0.0)
    assert ring.samples < capacity
    assert loop._read_ns < began
    loop._drain(math.inf)
    assert ring.samples == capacity
    assert began <= loop._read_ns


def test_a_long_report_is_handed_on_in_parts_and_what_comes_meanwhile_is_of_the_next_interval() -> None:
    fed = Fed()
    fed.see(*(opened(conn) for conn in range(4000)), request(METADATA, 12, 1))
    now = time.monotonic_ns()
    parts = fed.reporter.report(now - SECOND_NS, now, now)
    sent = []
    for _ in parts:
        sent.append(len(fed.sink.events))
        fed.see(opened(1 << 20), request(METADATA, 12, 2))
    assert len(sent) == 2
    assert [event["conn_id"] for event in fed.events("flow")] == [f"{1:016x}"]
    assert len(fed.events("open")) == 4000
    fed.report()
    assert len(fed.events("open")) == 4001
    assert [event["requests"] for event in fed.events("flow")] == [1, 2]


def test_ends_that_are_lost_while_a_report_is_sent_are_not_lost_before_its_interval_ended() -> None:
    fed = Fed()
    fed.see(*(opened(conn) for conn in range(4000)))
    now = time.monotonic_ns()
    parts = fed.reporter.report(now - SECOND_NS, now, now)
    next(parts)
    lost_us = time.time_ns() // 1000
    fed.reporter._kernel["ring_full"] = 1  # as the kernel counts
    deque(parts, maxlen=0)
    (agent,) = fed.events("agent")
    assert agent["ts"] < lost_us <= agent["complete_since"]


def test_two_reports_at_the_same_time_each_have_their_own_ends() -> None:
    fed = Fed()
    now = time.monotonic_ns()
    reports = []
    for first in (1, 3001):
        for conn in range(first, first + 3000):
            fed.see(opened(conn), ended(conn, ts_ns=now))
        reports.append(fed.reporter.report(now, now, now))
        next(reports[-1])
    for parts in reports:
        deque(parts, maxlen=0)
    assert sorted(event["conn_id"] for event in fed.events("close")) == [f"{conn:016x}" for conn in range(1, 6001)]
    assert len(fed.processor.tracker._pending_closes) == 0


class BusyRing(LateRing):
    """A ring that brings so many connections at every reading that a report is longer than an interval."""

    def __init__(self, readings: int, then: Callable[[], None]) -> None:
        super().__init__(readings, then)
        self._conn = 1 << 20

    def take(self, most: int) -> Samples:
        if len(super().take(most)):
            return np.zeros(0, SAMPLE)
        self._conn += 2000
        return stream(*(opened(self._conn + n) for n in range(2000)))


def test_reports_that_take_longer_than_an_interval_wait_for_each_other() -> None:
    sink = Kept()
    agent = Agent(Config(node="node-1", interval_s=1e-6), sink)
    agent.run(NoPrograms(BusyRing(6, agent.stop)), None)  # type: ignore[arg-type]  # stands in for the kernel
    agents = [event for event in sink.events if event["kind"] == "agent"]
    # Each report reads the wall clock's offset anew.
    ends_us = pytest.approx([event["ts"] for event in agents[1:-1]], rel=0, abs=1000)
    assert [event["since"] for event in agents[2:]] == ends_us
    assert [event["seq"] for event in sink.events] == list(range(len(sink.events)))


def test_a_reload_takes_place_after_the_turn_that_it_interrupts() -> None:
    agent, in_handler, loaded = Agent(Config(node="node-1"), Kept()), [True], list[str]()

    def load() -> Config:
        loaded.append("in the handler" if in_handler else "after it")
        return Config(node="node-1")

    def signalled() -> None:  # as a signal's handler, which interrupts a turn
        agent.reload(load)
        agent.reload(load)
        in_handler.clear()
        agent.stop()

    agent.run(NoPrograms(LateRing(3, signalled)), None)  # type: ignore[arg-type]  # stands in for the kernel
    assert loaded == ["after it"]


def test_a_turn_sends_a_part_of_a_report_even_if_the_interval_is_over() -> None:
    fed, ring = Fed(), WaitingRing()
    loop = loop_of(fed, NoPrograms(ring))
    for first in (1, 4001):
        fed.see(*(opened(conn) for conn in range(first, first + 4000)))
        loop._end_interval()
    sent = []
    while not fed.events("agent"):
        loop.turn()
        sent.append(len(fed.sink.parts))
    assert sent[0] == 1
    assert len(sent) > 3


def test_a_turn_takes_over_a_part_of_the_list_of_older_connections() -> None:
    fed, listing = Fed(), LongListing(2 * _LISTED_AT_ONCE + 1)
    loop = Loop(NoPrograms(WaitingRing()), listing, fed.processor, fed.reporter, 60.0, RING_BYTES)  # type: ignore[arg-type]  # no kernel
    left = []
    while listing.left:
        loop.turn()
        left.append(listing.left)
    assert left == [_LISTED_AT_ONCE + 1, 1, 0]
    assert fed.processor.tracker._listed._seen is None  # else it would grow with each connection
    assert len(loop._reports) == 1


def test_a_stop_takes_over_the_rest_of_a_list_that_is_complete() -> None:
    fed, listing = Fed(), LongListing(2 * _LISTED_AT_ONCE + 1)
    loop = Loop(NoPrograms(WaitingRing()), listing, fed.processor, fed.reporter, 60.0, RING_BYTES)  # type: ignore[arg-type]  # no kernel
    loop.turn()
    loop.finish()
    assert listing.left == 0


def test_a_stop_reports_the_change_of_a_cluster_that_waits_for_its_response() -> None:
    fed, ring = Fed(), WaitingRing()
    loop = loop_of(fed, NoPrograms(ring))
    fed.see(opened(), by_hand("DeleteTopics", 4, {"TopicNames": ["orders"]}), request(METADATA, 12, correlation_id=1))
    loop.turn()
    assert fed.events("request") == []
    loop.finish()
    (waiting,) = fed.events("request")
    assert (waiting["api"], waiting["response_bytes"]) == ("DeleteTopics", None)


def test_where_no_list_of_older_connections_will_come_none_is_waited_for() -> None:
    agent = Agent(Config(node="node-1"), Kept())
    agent.run(NoPrograms(LateRing(3, agent.stop)), None)  # type: ignore[arg-type]  # stands in for the kernel
    assert agent._processor.tracker._listed._seen is None  # else it would grow with each connection


def test_what_ends_after_complete_until_may_come_later_but_nothing_before_it() -> None:
    sink = Kept()
    agent = Agent(Config(node="node-1", interval_s=1e-6), sink)
    agent.run(NoPrograms(LateRing(20, agent.stop)), None)  # type: ignore[arg-type]  # stands in for the kernel
    complete_until, closes = 0, 0
    for event in sink.events:
        if event["kind"] == "agent":
            complete_until = event["complete_until"]
        elif event["kind"] == "close":
            closes += 1
            assert event["ts"] >= complete_until
    assert closes >= 10


@pytest.mark.parametrize(
    ("api_key", "version", "body", "requests"),
    [
        (METADATA, 4, (20_000).to_bytes(4, "big") + b"\0\0" * 20_000 + b"\0", "off"),
        # Entities with hidden names, in the only entry.
        (ApiKey.ALTER_CLIENT_QUOTAS, 1, b"\0\2" + b"\xa1\x9c\1" + b"\1\1\0" * 20_000 + b"\1\0\0\0", "all"),
    ],
)
def test_long_frames_that_end_at_once_are_not_decoded_at_once(
    api_key: int, version: int, body: bytes, requests: str
) -> None:
    """Each connection holds back the last sample of a frame with a long list."""
    fed = Fed(requests)
    fed.processor.flows._budget_bytes = 0
    frames = [
        frame(conn, data=b"\0\4%04d" % conn + body, api_key=api_key, api_version=version) for conn in range(1, 33)
    ]
    for conn, records in enumerate(frames, 1):
        fed.see(opened(conn), records[:-1])
    last = [records[-1:] for records in frames]
    gc.collect()
    tracemalloc.start()
    try:
        fed.see(*last)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < DECODED_BYTES + DEFAULT.shapes_bytes
    fed.report()
    assert sum(event["requests"] for event in fed.events("flow")) == len(frames)
