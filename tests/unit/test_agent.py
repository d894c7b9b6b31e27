"""The agent between the ring and the sink: order, numbers and times of events, and which exchanges are reported."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

from kafka_probe.capture.programs import LOSSES
from kafka_probe.capture.sample import COUNTERS, SampleKind
from kafka_probe.connections import open_counts
from kafka_probe.events import INTERNAL_CLIENT
from kafka_probe.memory import IN_HAND_BYTES
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.sinks.outbox import encode
from kafka_probe.workloads import Owner, WorkloadResolver
from tests.builders.events import workload
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.messages import GROUP, TOPIC, TOPIC_ID, case
from tests.builders.samples import (
    Samples,
    by_hand,
    closed,
    ended,
    message,
    opened,
    produced_without_acks,
    request,
    response,
    stream,
)

METADATA, OFFSET_COMMIT, API_VERSIONS, PRODUCE = (
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.API_VERSIONS,
    ApiKey.PRODUCE,
)


def exchange(correlation_id: int, *, api_key: int = API_VERSIONS, version: int = 0, latency_us: int = 100) -> Samples:
    """Return a request and its response, in the order of correlation ids; those of ApiVersions have no errors."""
    samples = stream(request(api_key, version), response(api_key, version, latency_us=latency_us))
    samples["correlation_id"], samples["ts_ns"] = correlation_id, correlation_id * 1000
    return samples


def test_an_interval_is_reported_as_open_topics_flow_close_and_agent() -> None:
    fed = Fed()
    fed.see(opened(), request(METADATA, 12), response(METADATA, 12), ended())
    fed.report()
    assert [event["kind"] for event in fed.events()] == ["open", "topics", "flow", "close", "agent"]


@pytest.mark.parametrize("requests", ["off", "all"])
def test_offsets_are_reported_before_flows(requests: str) -> None:
    fed = Fed(requests)
    asked = [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 4, "CommittedOffset": 77}]}]
    answered = [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 4}]}]
    now_ns = time.monotonic_ns()  # offsets of the day before are forgotten
    commit = by_hand("OffsetCommit", 7, {"GroupId": GROUP, "Topics": asked}, ts_ns=now_ns)
    fed.see(opened(), commit, by_hand("OffsetCommit", 7, {"Topics": answered}, answer=True, ts_ns=now_ns + 1))
    fed.report()
    (reported,) = fed.events("offsets")
    (position,) = reported["group_positions"]
    assert (position["group"], position["topic"], position["offset"]) == (GROUP, TOPIC, 77)
    kinds = [event["kind"] for event in fed.events()]
    assert kinds.index("offsets") < kinds.index("flow")


def test_a_batch_may_hold_a_connection_from_its_first_record_to_its_last() -> None:
    fed = Fed("all")
    fed.see(opened(1), request(METADATA, 12, 1), ended(1), opened(2), request(METADATA, 12, 2))
    fed.report()
    assert [event["response_bytes"] for event in fed.events("request")] == [None]
    assert sorted(event["conn_id"] for event in fed.events("flow")) == [f"{1:016x}", f"{2:016x}"]
    assert fed.events("agent")[0]["connections"] == 1
    assert not any(fed.events("agent")[0]["losses"].values())


def test_a_close_contains_what_its_connection_did_also_in_the_interval_in_which_it_ends() -> None:
    fed = Fed()
    fed.see(opened(), request(METADATA, 12, frame_bytes=40), response(METADATA, 12, frame_bytes=500))
    fed.report()
    fed.see(request(OFFSET_COMMIT, 8, frame_bytes=60), request(PRODUCE, 9, frame_bytes=70), ended())
    fed.report()
    (opening,), (closing,) = fed.events("open"), fed.events("close")
    assert (closing["requests"], closing["request_bytes"], closing["response_bytes"]) == (3, 170, 500)
    assert closing["group"] == GROUP
    flows = [topic for flow in fed.events("flow") for topic in flow["topics"] if topic["topic"] == TOPIC]
    topic, *_ = closing["topics"]
    assert topic["topic"] == TOPIC
    assert (topic["requests"], topic["bytes"]) == tuple(sum(one[n] for one in flows) for n in ("requests", "bytes"))
    assert topic["bytes"] > 0
    assert "requests" not in opening


def test_a_close_of_a_kafka_probe_has_no_topics() -> None:
    fed = Fed()
    fed.see(opened(), request(PRODUCE, 9, client_id=f"{INTERNAL_CLIENT}agent", frame_bytes=70), ended())
    fed.report()
    (closing,) = fed.events("close")
    assert (closing["requests"], closing["request_bytes"], closing["topics"]) == (1, 70, [])


def test_names_that_were_learned_are_reported_before_the_flows_once() -> None:
    fed = Fed()
    fed.see(opened(), response(METADATA, 12))
    fed.report()
    fed.see(response(METADATA, 12))
    fed.report()
    (reported,) = fed.events("topics")
    assert reported["topics"] == [{"topic": TOPIC, "topic_id": TOPIC_ID.hex}]
    kinds = [event["kind"] for event in fed.events()]
    assert kinds.index("topics") < kinds.index("flow")


def test_requests_that_change_a_cluster_are_events_by_default() -> None:
    fed, topic = Fed(), {"Name": "invoices"}
    fed.see(opened(), request(METADATA, 12, correlation_id=1), by_hand("CreateTopics", 5, {"Topics": [topic]}))
    exists = {"Topics": [{**topic, "ErrorCode": 36}]}
    fed.see(response(METADATA, 12, correlation_id=1), by_hand("CreateTopics", 5, exists, answer=True, latency_us=7))
    fed.see(by_hand("DeleteTopics", 4, {"TopicNames": ["invoices"]}, correlation_id=3), ended())
    answered, unanswered = fed.events("request")
    assert (answered["api"], answered["latency_us"]) == ("CreateTopics", 7)
    assert [(row["topic"], row["error"]) for row in answered["topics"]] == [("invoices", 36)]
    assert (unanswered["api"], unanswered["response_bytes"]) == ("DeleteTopics", None)


def test_a_local_sink_gets_the_events_of_the_destination_and_its_losses_hide_no_ends_from_the_topic() -> None:
    fed = Fed("all")
    fed.see(opened(), request(METADATA, 12), response(METADATA, 12), ended())
    fed.report()
    assert fed.local_sink.parts == fed.sink.parts
    fed.local_sink.lost = 1
    fed.report()
    agent = fed.events("agent")[-1]
    assert (agent["losses"]["server_behind"], agent["complete_since"]) == (1, None)


def test_other_threads_see_the_open_connections() -> None:
    fed = Fed()
    fed.see(opened(1), opened(2), opened(3), closed(2), ended(3))
    assert [connection.conn_id for connection in fed.agent.connections()] == [1]


def test_since_when_no_end_was_lost_is_reported() -> None:
    fed = Fed()
    fed.report()
    fed.reporter._kernel["ring_full"] = 3  # as the kernel counts
    fed.report()
    fed.report()
    before, at, after = fed.events("agent")
    assert before["complete_since"] is None
    assert at["ts"] <= at["complete_since"] < after["ts"]
    assert after["complete_since"] == pytest.approx(at["complete_since"], abs=1000)  # by the clocks of its own report


def test_a_first_sample_that_the_kernel_had_not_filled_may_hide_an_end() -> None:
    fed, partly = Fed(), opened(1)
    partly["size"] = 0
    fed.see(partly, ended(1))
    fed.report()
    (agent,) = fed.events("agent")
    assert (fed.events("close"), agent["losses"]["open_incomplete"]) == ([], 1)
    assert agent["complete_since"] is not None


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
    assert Fed().agent._sender.agent_id != Fed().agent._sender.agent_id


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
        *("frame_incomplete", "connection_unknown"),
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


def test_hostile_names_of_processes_leave_the_agent_event_and_parts_of_a_report_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hostile(_: WorkloadResolver, owner: Owner) -> Any:
        names = {name: f"{owner.pid} {name}".ljust(5000, "\x01") for name in ("exe", "cmdline", "cgroup", "unit")}
        return workload(pid=owner.pid, start_time=owner.pid, **names)

    monkeypatch.setattr(WorkloadResolver, "_resolve", hostile)
    fed = Fed()
    groups = 2 * open_counts.MAX_COUNTS
    fed.see(*(opened(conn, tgid=conn, server_side=conn % 2 == 0) for conn in range(1, groups + 1)))
    fed.report()
    (agent,) = fed.events("agent")
    assert len({event["workload"]["exe"] for event in fed.events("open")}) == groups
    assert len(encode(agent)) < 512 << 10
    parts = [sum(len(encode(event)) for event in part) for part in fed.sink.parts]
    assert len(parts) > 1
    assert max(parts) < IN_HAND_BYTES
    connections = Counter[str]()
    for group in agent["open"]:
        connections[group["side"]] += group["count"]
    assert connections == {"server": open_counts.MAX_COUNTS, "client": open_counts.MAX_COUNTS}
    assert [group["workload"]["pid"] for group in agent["open"][-2:]] == [None, None]


def test_losses_of_every_package_reach_the_agent_event() -> None:
    fed = Fed()
    unfinished = message(case(METADATA, 12, response=True), sample_bytes=20)[:1]
    fed.see(opened(1), request(METADATA, 12, 9), ended(8), unfinished, ended(1))
    fed.report()
    losses = {reason: count for reason, count in fed.events("agent")[0]["losses"].items() if count}
    assert losses == {"connection_unknown": 2, "frame_incomplete": 1}


def test_the_agent_event_knows_of_the_closes_of_its_report_that_the_sink_lost() -> None:
    fed = Fed()
    sent: list[dict[str, Any]] = []
    fed.sink.send = lambda events: sent.extend(dict(event) for event in events)  # type: ignore[method-assign]
    fed.sink.losses = lambda: {"sink_refused": sum(event["kind"] == "close" for event in sent)}  # type: ignore[method-assign]
    fed.see(opened(1), request(METADATA, 12), ended(1))
    fed.report()
    last = sent[-1]
    assert (last["kind"], last["losses"]["sink_refused"]) == ("agent", 1)
    assert last["complete_since"] is not None


def test_another_owner_is_the_owner_of_the_flows() -> None:
    fed = Fed()
    fed.see(opened(tgid=1), request(METADATA, 12), opened(tgid=2, kind=SampleKind.OWNER))
    fed.report()
    assert [event["workload"]["pid"] for event in fed.events("flow")] == [2]


@pytest.mark.parametrize(
    ("requests", "reported"),
    [
        ("off", []),
        ("all", [0, 1, 2, 3, 4, 5]),
        ("errors", [2]),
        ("slower:2", [4, 5]),
        ("1/3", [2, 5]),
    ],
)
def test_which_exchanges_are_reported(requests: str, reported: list[int]) -> None:
    fed = Fed(requests)
    exchanges = [exchange(n, latency_us=us) for n, us in enumerate((0, 1, 100, 1999, 2000, 9000))]
    exchanges[2] = exchange(2, api_key=OFFSET_COMMIT, version=8)
    fed.see(opened(), *exchanges)
    assert [event["correlation_id"] for event in fed.events()] == reported


def test_a_request_that_nobody_answered_is_not_slow() -> None:
    fed = Fed("slower:0")
    fed.see(opened(), produced_without_acks(correlation_id=1), exchange(2))
    assert [event["correlation_id"] for event in fed.events("request")] == [2]


class Clocks:
    """A host's clocks, to be moved: its wall clock, and the monotonic one of which kernel and agent take durations."""

    def __init__(self) -> None:
        self.wall_offset_ns, self.up_ns = 1_700_000_000 * SECOND_NS, 1_000 * SECOND_NS

    def pass_by(self, seconds: int) -> None:
        self.wall_offset_ns += seconds * SECOND_NS
        self.up_ns += seconds * SECOND_NS

    def time_ns(self) -> int:
        return self.wall_offset_ns

    def monotonic_ns(self) -> int:
        return self.up_ns

    def monotonic(self) -> float:
        return self.up_ns / SECOND_NS

    def thread_time(self) -> float:
        return 0.0


def events_around(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch, between: Callable[[], None]
) -> tuple[dict[str, Any], ...]:
    """Return the events open, flow, close and agent of a connection of 20 seconds.

    After the first 10 seconds `between` is called.
    """
    fed = Fed()
    monkeypatch.setattr("kafka_probe.reporting.time", clocks)
    monkeypatch.setattr("kafka_probe.events.times.time", clocks)
    since = clocks.monotonic_ns()
    fed.see(opened(ts_ns=since), exchange(1))
    clocks.pass_by(10)
    between()
    clocks.pass_by(10)
    now = clocks.monotonic_ns()
    fed.see(ended(ts_ns=now))
    deque(fed.reporter.report(since, now, now), maxlen=0)
    return tuple(fed.events())


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_events_follow_a_step_of_the_wall_clock_and_durations_do_not(
    monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    clocks = Clocks()

    def step() -> None:
        clocks.wall_offset_ns += step_s * SECOND_NS

    opening, flow, closing, agent = events_around(clocks, monkeypatch, step)
    now_us = clocks.wall_offset_ns // 1000
    assert closing["age_us"] == 20_000_000
    assert (opening["ts"], closing["ts"]) == (now_us - 20_000_000, now_us)
    for event in (flow, agent):
        assert (event["since"], event["ts"]) == (now_us - 20_000_000, now_us)
    assert agent["complete_until"] == now_us


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_since_when_and_until_when_ends_are_complete_follow_a_step_of_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    fed, clocks = Fed(), Clocks()
    monkeypatch.setattr("kafka_probe.reporting.time", clocks)
    monkeypatch.setattr("kafka_probe.events.times.time", clocks)
    fed.reporter._kernel["ring_full"] = 3  # as the kernel counts
    lost_ns = clocks.monotonic_ns()
    for step in (0, step_s):
        clocks.wall_offset_ns += step * SECOND_NS
        now = clocks.monotonic_ns()
        deque(fed.reporter.report(now - SECOND_NS, now, now), maxlen=0)
        clocks.pass_by(10)
    agent, to_wall_ns = fed.events("agent")[-1], clocks.wall_offset_ns - clocks.up_ns
    assert agent["complete_since"] == (lost_ns + to_wall_ns) // 1000
    assert agent["complete_until"] == (now + to_wall_ns) // 1000


def test_what_a_suspended_host_slept_is_in_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()

    def sleep() -> None:
        clocks.wall_offset_ns += 8 * 3600 * SECOND_NS

    opening, _, closing, _ = events_around(clocks, monkeypatch, sleep)
    assert closing["ts"] == clocks.wall_offset_ns // 1000
    assert closing["age_us"] == 20_000_000 == closing["ts"] - opening["ts"]
