"""A report that takes too long: nothing is lost uncounted, and ends are sent by the next report."""

from __future__ import annotations

import time
from collections import Counter, deque

import pytest

from kafka_probe.capture.sample import SampleKind
from kafka_probe.connections.tracker import LEAST_CLOSES
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.time_limit import ReportPart, TimeLimit
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.samples import Samples, closed, ended, opened, request

CONNECTIONS = 5


class Steps:
    """A clock that passes one second with each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1
        return self.now_s


def seen() -> list[Samples]:
    """Return the samples of connections with a request each, that have ended, and of a reset."""
    connections = range(1, CONNECTIONS + 1)
    began = (sample for conn in connections for sample in (opened(conn), request(ApiKey.METADATA, 12, conn)))
    return [*began, *map(ended, connections), opened(0, kind=SampleKind.RESET)]


def report(fed: Fed, limit_s: float) -> None:
    now = time.monotonic_ns()
    deque(fed.reporter.report(now - SECOND_NS, now, now, limit_s), maxlen=0)


@pytest.mark.parametrize("limit_s", [0, 4, 7, 9, 11, 14, 20, 100])
def test_what_a_report_has_no_time_for_is_counted_or_sent_by_the_next(
    monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    fed = Fed()
    fed.see(*seen())
    monkeypatch.setattr("kafka_probe.time_limit.time", Steps())
    monkeypatch.setattr("kafka_probe.connections.tracker.LEAST_CLOSES", 1)
    report(fed, limit_s)
    report(fed, limit_s=1_000)
    flows = fed.events("flow")
    assert sum(flow["requests"] for flow in flows) == CONNECTIONS
    in_other = sum(flow["requests"] for flow in flows if flow["conn_id"] is None)
    first, last = fed.events("agent")
    assert last["losses"]["flow_limit"] == in_other
    assert len(fed.events("open")) == len(fed.events("close")) == CONNECTIONS
    assert len(fed.events("reset")) == 1
    are_late = any(event["seq"] > first["seq"] for kind in ("reset", "close") for event in fed.events(kind))
    assert (first["complete_until"] < first["ts"]) == are_late
    assert last["complete_until"] == last["ts"]


def test_a_late_report_sends_some_closes_after_their_opens_and_claims_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed()
    began_ns = time.monotonic_ns() - 10 * SECOND_NS
    for conn in range(1, CONNECTIONS + 1):
        fed.see(opened(conn), closed(conn, ts_ns=began_ns + conn * SECOND_NS))
    monkeypatch.setattr("kafka_probe.connections.tracker.LEAST_CLOSES", 2)
    for sent in (2, 4, 5):
        report(fed, limit_s=0)
        lines = [(event["kind"], event["conn_id"]) for event in fed.events("open") + fed.events("close")]
        assert Counter(kind for kind, _ in lines) == {"open": sent, "close": sent}
        closes, last = fed.events("close"), fed.events("agent")[-1]
        opens = {event["conn_id"]: event["seq"] for event in fed.events("open")}
        assert all(opens[event["conn_id"]] < event["seq"] for event in closes)
        assert (last["complete_until"] == last["ts"]) == (sent == CONNECTIONS)
        assert (
            closes[-1]["ts"] <= last["complete_until"] < closes[-1]["ts"] + (1_000_000 if sent < CONNECTIONS else 10**9)
        )


def test_a_report_without_time_sends_a_thousand_closes() -> None:
    fed = Fed()
    for conn in range(1, LEAST_CLOSES + 3):
        fed.see(opened(conn), ended(conn))
    for sent in (LEAST_CLOSES, LEAST_CLOSES + 2):
        report(fed, limit_s=0)
        assert len(fed.events("close")) == sent


def test_a_flood_of_resets_delays_what_is_complete_and_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed()
    began_ns = time.monotonic_ns() - 10 * SECOND_NS
    fed.see(*(opened(0, kind=SampleKind.RESET, ts_ns=began_ns + number * SECOND_NS) for number in range(5)))
    monkeypatch.setattr("kafka_probe.time_limit.time", Steps())
    complete = []
    for _ in range(5):
        report(fed, limit_s=11)  # a step is a second: the first look is before a tenth, the second is not
        complete.append(fed.events("agent")[-1]["complete_until"])
    assert complete == sorted(set(complete))
    assert len(fed.events("reset")) == 5


def test_the_time_of_a_report_begins_with_its_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Steps()
    monkeypatch.setattr("kafka_probe.time_limit.time", clock)
    limit = TimeLimit(10)
    clock.now_s = 100
    assert [limit.is_over(ReportPart.OPENS) for _ in range(4)] == [False] * 3 + [True]
    assert [limit.is_over(part) for part in (ReportPart.FLOWS, ReportPart.CLOSES)] == [False, False]
    clock.now_s = 110
    assert limit.is_over(ReportPart.CLOSES)
