"""The agent between the ring and the sink: order, numbers and times of events, and which exchanges are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from kafka_probe.agent import Agent
from kafka_probe.capture.programs import LOSSES
from kafka_probe.capture.record import COUNTERS, RECORD, Kind
from kafka_probe.config import Config, RequestEvents
from kafka_probe.sinks import Event
from tests.unit.connections.records import (
    Records,
    closed,
    ended,
    message,
    opened,
    produced_without_acks,
    request,
    response,
    stream,
)
from tests.unit.protocol.messages import TOPIC, TOPIC_ID, case
from tests.unit.schema import assert_valid

METADATA, OFFSET_COMMIT, API_VERSIONS = 3, 8, 18
SECOND_NS = 10**9


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def send(self, events: Sequence[Event]) -> None:
        self.events += [dict(event) for event in events]

    def close(self, timeout_s: float) -> None:
        """Nothing waits."""

    def losses(self) -> Mapping[str, int]:
        return {"sink_refused": 0}

    def counters(self) -> Mapping[str, int]:
        return {"sink_events": len(self.events)}

    def trouble(self) -> str | None:
        return None


class Fed:
    """An agent that is given records instead of a ring."""

    def __init__(self, requests: str = "off") -> None:
        self.sink = Kept()
        self.agent = Agent(Config(node="node-1", requests=RequestEvents.parse(requests)), self.sink)

    def see(self, *records: Records) -> None:
        self.agent._consume(stream(*records))

    def report(self) -> None:
        now = time.monotonic_ns()
        self.agent._report(now - SECOND_NS, now, now)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        for event in self.sink.events:
            assert_valid(event)
        return [event for event in self.sink.events if kind in (None, event["kind"])]


def exchange(correlation_id: int, *, api_key: int = API_VERSIONS, version: int = 0, latency_us: int = 100) -> Records:
    """A request and its response, in the order of correlation ids; those of ApiVersions have no errors."""
    records = stream(request(api_key, version), response(api_key, version, latency_us=latency_us))
    records["correlation_id"], records["ts_ns"] = correlation_id, correlation_id * 1000
    return records


def test_an_interval_is_told_as_open_close_flow_and_agent() -> None:
    fed = Fed()
    fed.see(opened(), request(METADATA, 12), response(METADATA, 12), ended())
    fed.report()
    assert [event["kind"] for event in fed.events()] == ["open", "close", "topics", "flow", "agent"]


def test_a_batch_may_hold_a_connection_from_its_first_record_to_its_last() -> None:
    fed = Fed("all")
    fed.see(opened(1), request(METADATA, 12, 1), ended(1), opened(2), request(METADATA, 12, 2))
    fed.report()
    assert [event["response_bytes"] for event in fed.events("request")] == [None]
    assert sorted(event["conn_id"] for event in fed.events("flow")) == [f"{1:016x}", f"{2:016x}"]
    assert fed.events("agent")[0]["connections"] == 1
    assert not any(fed.events("agent")[0]["losses"].values())


def test_names_that_were_learned_are_told_before_the_flows_once() -> None:
    fed = Fed()
    fed.see(opened(), response(METADATA, 12))
    fed.report()
    fed.see(response(METADATA, 12))
    fed.report()
    (told,) = fed.events("topics")
    assert told["topics"] == [{"topic": TOPIC, "topic_id": TOPIC_ID.hex}]
    kinds = [event["kind"] for event in fed.events()]
    assert kinds.index("topics") < kinds.index("flow")


def test_a_listener_gets_the_events_of_the_sink() -> None:
    fed = Fed("all")
    heard: list[Mapping[str, object]] = []
    fed.agent.listener = heard.extend
    fed.see(opened(), request(METADATA, 12), response(METADATA, 12), ended())
    fed.report()
    assert heard == fed.sink.events


def test_other_threads_see_the_open_connections() -> None:
    fed = Fed()
    fed.see(opened(1), opened(2), opened(3), closed(2), ended(3))
    assert [connection.conn_id for connection in fed.agent.connections()] == [1]


def test_since_when_no_end_was_lost_is_told() -> None:
    fed = Fed()
    fed.report()
    fed.agent._kernel["ring_full"] = 3  # as the kernel counts
    fed.report()
    fed.report()
    before, at, after = fed.events("agent")
    assert before["complete_since"] is None
    assert at["complete_since"] == at["ts"] == after["complete_since"]


def test_events_are_numbered_without_gaps_across_intervals() -> None:
    fed = Fed("all")
    for conn in range(1, 600):
        fed.see(opened(conn), request(METADATA, 12, conn), response(METADATA, 12, conn))
    fed.report()
    fed.report()
    events = fed.events()
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert len({event["agent_id"] for event in events}) == 1
    assert {event["node"] for event in events} == {"node-1"}
    assert fed.events("agent")[-1]["counters"]["events"] == len(events) - 1


def test_two_runs_are_two_agents() -> None:
    assert Fed().agent._id != Fed().agent._id


def test_events_of_a_moment_have_the_time_of_the_kernel_as_time_of_day() -> None:
    fed = Fed("all")
    ten_s_ago = time.monotonic_ns() - 10 * SECOND_NS
    fed.see(opened(ts_ns=ten_s_ago), exchange(1), ended(ts_ns=ten_s_ago + SECOND_NS))
    fed.report()
    now_us = time.time_ns() // 1000
    ages = {event["kind"]: now_us - event["ts"] for event in fed.events()}
    assert 10_000_000 <= ages["open"] < 11_000_000
    assert 9_000_000 <= ages["close"] < 10_000_000
    assert fed.events("close")[0]["age_us"] == 1_000_000


def test_flows_and_agent_have_the_bounds_of_their_interval() -> None:
    fed = Fed()
    fed.see(opened(), request(METADATA, 12))
    fed.report()
    for event in (*fed.events("flow"), *fed.events("agent")):
        assert event["ts"] - event["since"] == 1_000_000
    (agent,) = fed.events("agent")
    assert agent["complete_until"] == agent["ts"]


def test_every_loss_and_counter_is_there_from_the_start() -> None:
    fed = Fed()
    fed.report()
    (agent,) = fed.events("agent")
    assert set(agent["losses"]) >= {
        *LOSSES,
        *("frame_incomplete", "connection_unknown", "frame_unconfirmed"),
        *("kubernetes_failed", "sink_refused"),
    }
    assert not any(agent["losses"].values())
    assert set(agent["counters"]) >= {*COUNTERS, "events", "sink_events"}
    assert fed.agent.summary()["losses"] == agent["losses"]


def test_the_agent_event_says_what_it_costs_and_where_it_runs() -> None:
    fed = Fed()
    fed.report()
    (agent,) = fed.events("agent")
    assert agent["cpu_us"] > 0
    assert 10 << 20 < agent["rss_bytes"] < 1 << 30
    assert agent["kernel"]
    assert agent["version"]


def test_losses_in_every_room_reach_the_agent_event() -> None:
    fed = Fed()
    unfinished = message(case(METADATA, 12, response=True), record_bytes=20)[:1]
    fed.see(opened(1), request(METADATA, 12, 9), ended(8), unfinished, ended(1))
    fed.report()
    losses = {reason: count for reason, count in fed.events("agent")[0]["losses"].items() if count}
    assert losses == {"connection_unknown": 2, "frame_incomplete": 1}


def test_another_owner_is_the_owner_of_the_flows() -> None:
    fed = Fed()
    fed.see(opened(tgid=1), request(METADATA, 12), opened(tgid=2, kind=Kind.OWNER))
    fed.report()
    assert [event["workload"]["pid"] for event in fed.events("flow")] == [2]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ("off", []),
        ("all", [0, 1, 2, 3, 4, 5]),
        ("errors", [2]),
        ("slower:2", [4, 5]),
        ("sample:3", [2, 5]),
    ],
)
def test_which_exchanges_are_told(requests: str, told: list[int]) -> None:
    fed = Fed(requests)
    exchanges = [exchange(n, latency_us=us) for n, us in enumerate((0, 1, 100, 1999, 2000, 9000))]
    exchanges[2] = exchange(2, api_key=OFFSET_COMMIT, version=8)
    fed.see(opened(), *exchanges)
    assert [event["correlation_id"] for event in fed.events()] == told


def test_a_request_that_nobody_answered_is_not_slow() -> None:
    fed = Fed("slower:0")
    fed.see(opened(), produced_without_acks(correlation_id=1), exchange(2))
    assert [event["correlation_id"] for event in fed.events("request")] == [2]


class Clocks:
    """A host's clocks, to be moved: its wall clock, and the monotonic one of which kernel and agent take durations."""

    def __init__(self) -> None:
        self.wall_ns, self.up_ns = 1_700_000_000 * SECOND_NS, 1_000 * SECOND_NS

    def pass_by(self, seconds: int) -> None:
        self.wall_ns += seconds * SECOND_NS
        self.up_ns += seconds * SECOND_NS

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.up_ns

    def monotonic(self) -> float:
        return self.up_ns / SECOND_NS

    def process_time(self) -> float:
        return 0.0


def told_by(clocks: Clocks, monkeypatch: pytest.MonkeyPatch, between: Callable[[], None]) -> tuple[dict[str, Any], ...]:
    """The events open, close, flow and agent of a connection of 20 seconds; something happens after the first 10."""
    fed = Fed()
    monkeypatch.setattr("kafka_probe.agent.time", clocks)
    since = clocks.monotonic_ns()
    fed.see(opened(ts_ns=since), exchange(1))
    clocks.pass_by(10)
    between()
    clocks.pass_by(10)
    now = clocks.monotonic_ns()
    fed.see(ended(ts_ns=now))
    fed.agent._report(since, now, now)
    return tuple(fed.events())


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_events_follow_a_step_of_the_wall_clock_and_durations_do_not(
    monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    clocks = Clocks()

    def step() -> None:
        clocks.wall_ns += step_s * SECOND_NS

    opening, closing, flow, agent = told_by(clocks, monkeypatch, step)
    now_us = clocks.wall_ns // 1000
    assert closing["age_us"] == 20_000_000
    assert (opening["ts"], closing["ts"]) == (now_us - 20_000_000, now_us)
    for event in (flow, agent):
        assert (event["since"], event["ts"]) == (now_us - 20_000_000, now_us)
    assert agent["complete_until"] == now_us


def test_what_a_suspended_host_slept_is_in_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()

    def sleep() -> None:
        clocks.wall_ns += 8 * 3600 * SECOND_NS

    opening, closing, *_ = told_by(clocks, monkeypatch, sleep)
    assert closing["ts"] == clocks.wall_ns // 1000
    assert closing["age_us"] == 20_000_000 == closing["ts"] - opening["ts"]


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
