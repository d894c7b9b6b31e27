from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kafka_probe_pipeline.cause_rules import CAUSES, RULES
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.evidence import AgentProgress, End, Limits
from kafka_probe_pipeline.remedies import REMEDIES
from tests.builders.connection_ends import (
    AUTHENTICATED,
    BRIEF,
    BY_ITSELF,
    EXITED,
    IGNORED,
    RESET,
    Ends,
    after,
    closed_first,
    events_of,
    silent,
)
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, opened
from tests.pipeline.cases import CASES, COMPLETE, LATE_S, Case, connection, verdict

BROKER_ADDRESS, NAT_ADDRESS = "10.0.0.9:9092", "10.9.0.1:1"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_named_with_its_evidence(case: Case) -> None:
    case.check(case.verdict())


def test_every_cause_that_a_rule_names_is_explained() -> None:
    assert {rule.cause for rule in RULES} == CAUSES.keys() == REMEDIES.keys()


def judge(ends: Ends, opaque: str | None = None, **how: Any) -> dict[str, Any] | None:
    """Return the verdict on one connection."""
    return verdict(connection(*events_of(ends, opaque=opaque)), **how)


def cause(ends: Ends, opaque: str | None = None, **how: Any) -> str | None:
    """Return the cause of the verdict on one connection; None while it waits."""
    verdict = judge(ends, opaque, **how)
    return verdict["cause"] if verdict else None


ACKS_0: Event = {"last_api": "Produce", "last_acks": 0}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (closed_first(BROKER, after(2_000_000)), "broker_idle_limit"),
        (closed_first(BROKER, after(1_999_999)), "unknown"),
        (closed_first(CLIENT, after(2_000_000)), "client_idle_limit"),
        (closed_first(CLIENT, after(1_999_999)), "normal"),
        (closed_first(CLIENT, AUTHENTICATED | after(4_999_999)), "auth_failure"),
        (closed_first(CLIENT, AUTHENTICATED | after(5_000_000)), "client_idle_limit"),
        (closed_first(CLIENT, after(4_999_999, last_api="SaslHandshake")), "auth_failure"),
        (closed_first(BROKER, after(999_999, **ACKS_0)), "rejected_request"),
        (closed_first(BROKER, after(1_000_000, **ACKS_0)), "unknown"),
        (closed_first(BROKER, after(999_999, **ACKS_0 | {"last_acks": 1})), "unknown"),
        (closed_first(BROKER, after(999_999, **ACKS_0 | {"last_api": "Fetch"})), "unknown"),
        (closed_first(BROKER, {"in_flight": 1}), "rejected_request"),
        (closed_first(CLIENT, {"in_flight": 1}), "unknown"),
        (closed_first(BROKER, {"listener_closed_us": 300_000_000}), "broker_shutdown"),
        (closed_first(BROKER, {"listener_closed_us": 300_000_001}), "broker_idle_limit"),
        (closed_first(BROKER, {"closed_by": None, "how": "rst_sent"}), "broker_idle_limit"),
        ({BROKER: {"how": "rst_sent"}, CLIENT: BY_ITSELF}, "client_idle_limit"),
        ({BROKER: {"listener_closed_us": 0}, CLIENT: BY_ITSELF}, "client_idle_limit"),
        ({BROKER: {"owner_exiting": True}, CLIENT: BY_ITSELF}, "client_idle_limit"),
        ({BROKER: {"last_api": "SaslAuthenticate", **BRIEF}, CLIENT: BY_ITSELF}, "client_idle_limit"),
    ],
)
def test_the_cause_changes_at_the_bounds(ends: Ends, expected: str) -> None:
    assert cause(ends) == expected


@pytest.mark.parametrize(
    ("facts", "cause", "refused_request_bytes"),
    [
        (after(999_999, **ACKS_0, last_request_bytes=2_000_000), "rejected_request", 2_000_000),
        (after(1_000_000, **ACKS_0, last_request_bytes=2_000_000), "unknown", None),
        ({"in_flight": 1, "last_api": "Fetch", "last_request_bytes": 90}, "rejected_request", None),
    ],
)
def test_what_a_rejected_produce_did_not_write_is_in_its_verdict(
    facts: Event, cause: str, refused_request_bytes: int | None
) -> None:
    given = judge(closed_first(BROKER, facts))
    assert given
    assert (given["cause"], given["refused_request_bytes"]) == (cause, refused_request_bytes)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"unacked_bytes": 1, "unanswered_retransmits": 1}, "middlebox_silent_drop"),
        ({"unacked_bytes": 0}, "client_idle_limit"),
        ({"unacked_bytes": None}, "client_idle_limit"),
        ({"unanswered_retransmits": 0}, "client_idle_limit"),
        ({"unanswered_retransmits": None}, "client_idle_limit"),
        ({"silence_us": 1_999_999}, "normal"),
        ({"owner_exiting": True}, "process_exit"),
        ({"closed_by": "peer"}, "unknown"),
    ],
)
def test_data_went_unanswered_if_some_was_sent_again_after_a_silence_and_never_acknowledged(
    facts: Event, expected: str
) -> None:
    assert cause({CLIENT: IGNORED | facts, BROKER: None}) == expected


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        (after(31_000_000), "broker_idle_limit"),
        (after(31_000_001), "middlebox_reset"),
        ({"silence_us": 31_000_000}, "middlebox_reset"),
        (after(40_000_000, how="rst_sent"), "broker_idle_limit"),
    ],
)
def test_what_the_other_end_closed_before_the_reset_was_closed_by_no_middlebox(broker: Event, expected: str) -> None:
    assert cause({CLIENT: RESET, BROKER: broker}) == expected


@pytest.mark.parametrize(("late_us", "expected"), [(-1, "middlebox_reset"), (0, "broker_idle_limit")])
def test_a_reset_of_the_other_host_counts_from_the_close_of_its_socket_on(late_us: int, expected: str) -> None:
    sent = {(BROKER, BROKER_ADDRESS, NAT_ADDRESS): NOON_US + late_us}
    assert cause({CLIENT: RESET, BROKER: after(40_000_000)}, resets=sent) == expected
    assert cause({CLIENT: RESET, BROKER: None}, resets=sent) == "unknown"
    assert cause({CLIENT: {"how": "timeout"}, BROKER: None}, resets=sent) == "unknown"


@pytest.mark.parametrize(("client_us", "expected"), [(120_000, "unknown"), (120_001, "normal")])
def test_a_close_notify_came_long_after_this_end_was_silent(client_us: int, expected: str) -> None:
    assert cause({CLIENT: silent(client_us), BROKER: silent(60_000)}, "tls") == expected
    assert cause({CLIENT: silent(client_us), BROKER: silent(60_000)}) == "unknown"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"received_idle_us": 49_999, "owner_ended": True}, "unknown"),
        ({"received_idle_us": 50_000, "owner_ended": True}, "normal"),
        ({"received_idle_us": None}, "client_idle_limit"),
        ({"received_idle_us": 50_000}, "client_idle_limit"),
        ({"received_idle_us": 49_999}, "unknown"),
        ({"received_idle_us": 50_000, **BRIEF}, "unknown"),
    ],
)
def test_data_right_before_the_close_may_have_been_a_close_notify(facts: Event, expected: str) -> None:
    assert cause({CLIENT: BY_ITSELF | facts}, "tls") == expected
    assert cause({CLIENT: BY_ITSELF | facts}) != "unknown"
    if expected == "unknown":
        assert cause({CLIENT: BY_ITSELF | facts, BROKER: {}}, "tls") != "unknown"


@pytest.mark.parametrize(("greatest_us", "expected"), [(13_000_001, "normal"), (13_000_000, "client_idle_limit")])
def test_closes_of_one_process_at_one_time_after_other_silences_are_no_limit(greatest_us: int, expected: str) -> None:
    assert cause(closed_first(CLIENT, after(10_000_000)), silences_us=(10_000_000, greatest_us)) == expected


def agent(*, until_us: int = 3 * SECOND_US, seen_s: float = LATE_S, **facts: int) -> AgentProgress:
    """Return the last report of an agent; times are after noon."""
    seen_us = NOON_US + round(seen_s * SECOND_US)
    return COMPLETE._replace(complete_until=NOON_US + until_us, last_seen_us=seen_us, **facts)


@pytest.mark.parametrize(
    ("ends", "witness", "until_us"),
    [
        ({CLIENT: BY_ITSELF, BROKER: None}, BROKER, SECOND_US),  # the other end is open
        ({CLIENT: None, BROKER: BY_ITSELF}, CLIENT, SECOND_US),
        ({CLIENT: RESET, BROKER: RESET}, BROKER, SECOND_US),  # the cause rests on what the other end did not do
        ({CLIENT: BY_ITSELF, BROKER: {}}, CLIENT, 3 * SECOND_US),  # on what else the process of the end closed
    ],
)
def test_a_verdict_waits_for_the_report_of_the_margin_after_the_close(ends: Ends, witness: str, until_us: int) -> None:
    def given(report: AgentProgress) -> dict[str, Any] | None:
        agents = {CLIENT: COMPLETE, BROKER: COMPLETE, witness: report}
        return judge(ends, agents=agents, at_s=40, closed_together=3)

    reported, late = given(agent(until_us=until_us)), agent(until_us=until_us - 1)
    assert reported
    assert reported["cause"] != "unknown"
    assert (reported["judged_us"], reported["batch_id"]) == (NOON_US + 40 * SECOND_US, 0)
    assert (reported["closed_us"], reported["idle_us"]) == (NOON_US, 30 * SECOND_US)
    assert given(late) is None
    # It waits no longer for an agent that is silent.
    assert given(agent(until_us=until_us - 1, seen_s=10.000_001)) is None
    assert given(agent(until_us=until_us - 1, seen_s=10)) is not None


@pytest.mark.parametrize(
    ("clock_us", "reported"), [(0, "?"), (SECOND_US, "1970-01-01 00:00:01"), (NOON_US - SECOND_US, "11:59:59")]
)
@pytest.mark.parametrize("broker", [None, {}])
def test_a_verdict_waits_for_an_agent_that_is_never_complete_as_long_as_connections_are_kept(
    broker: Event | None, clock_us: int, reported: str
) -> None:
    wrong = COMPLETE._replace(complete_until=clock_us, last_seen_us=NOON_US + 300 * SECOND_US)
    ends, agents = {CLIENT: RESET, BROKER: broker}, {CLIENT: COMPLETE, BROKER: wrong}
    assert judge(ends, agents=agents, at_s=299) is None
    verdict = judge(ends, agents=agents, at_s=300)
    assert verdict
    assert verdict["cause"] == "unknown"
    assert f"the agent at the broker has reported only up to {reported} by its clock" in verdict["evidence"]


@pytest.mark.parametrize("facts", [EXITED, BRIEF | BY_ITSELF])
def test_a_verdict_that_did_not_wait_longer_for_an_open_end_names_its_agent(facts: Event) -> None:
    behind = COMPLETE._replace(complete_until=NOON_US - SECOND_US, last_seen_us=NOON_US + 300 * SECOND_US)
    verdict = judge({CLIENT: facts, BROKER: None}, agents={CLIENT: COMPLETE, BROKER: behind}, at_s=300)
    assert verdict
    assert verdict["cause"] != "unknown"
    assert verdict["evidence"].endswith("; the agent at the broker has reported only up to 11:59:59 by its clock")


@pytest.mark.parametrize("broker", [None, {}])
@pytest.mark.parametrize("ahead_s", [2, 900, 86_400])
def test_a_clock_that_is_ahead_does_not_change_or_delay_a_verdict(broker: Event | None, ahead_s: int) -> None:
    ahead_us = NOON_US + ahead_s * SECOND_US
    ends = {CLIENT: RESET | {"ts": ahead_us, "closing_ts": ahead_us}, BROKER: broker}
    agents = {CLIENT: COMPLETE._replace(complete_until=ahead_us + SECOND_US), BROKER: agent(until_us=SECOND_US)}
    assert cause(ends, agents=agents) == "middlebox_reset"
    # The close may have reached Kafka as late as 300 s afterwards, and the margin of clocks is a second.
    for late_us, expected in ((0, "middlebox_reset"), (1, "unknown")):
        since_us = NOON_US - (300 + 30 + 1) * SECOND_US + late_us
        agents[BROKER] = agent(until_us=SECOND_US, complete_since=since_us)
        assert cause(ends, agents=agents) == expected


def test_an_agent_whose_clock_is_ahead_is_not_complete_beyond_the_time_of_its_last_report() -> None:
    def given(reported_us: int) -> str | None:
        broker = COMPLETE._replace(complete_until=NOON_US + 60 * SECOND_US, reported_us=NOON_US + reported_us)
        return cause({CLIENT: RESET, BROKER: None}, agents={CLIENT: COMPLETE, BROKER: broker}, at_s=2)

    # The margin of clocks is a second.
    assert (given(SECOND_US - 1), given(SECOND_US)) == (None, "middlebox_reset")


@pytest.mark.parametrize(
    ("ends", "witness", "margin_us", "kinds"),
    [
        ({CLIENT: RESET, BROKER: None}, BROKER, SECOND_US, ("complete_since", "resets_since")),
        ({CLIENT: {"how": "timeout"}, BROKER: None}, BROKER, SECOND_US, ("complete_since", "resets_since")),
        ({CLIENT: BY_ITSELF, BROKER: {}}, CLIENT, 3 * SECOND_US, ("complete_since",)),
    ],
)
def test_a_cause_rests_on_no_report_of_an_agent_that_lost_something_since_the_margin_before_the_silence(
    ends: Ends, witness: str, margin_us: int, kinds: Sequence[str]
) -> None:
    since_us = NOON_US - 30 * SECOND_US - margin_us
    for kind in ("complete_since", "resets_since"):
        for late_us in (0, 1):
            lost = agent(until_us=3 * SECOND_US, **{kind: since_us + late_us})
            found = judge(ends, agents={CLIENT: COMPLETE, BROKER: COMPLETE, witness: lost}, closed_together=3)
            assert found
            assert (found["cause"] == "unknown") == (kind in kinds and late_us == 1)
            assert ("; the cause would be" in found["evidence"]) == (found["cause"] == "unknown")


@pytest.mark.parametrize(("at_s", "given"), [(14.999_999, False), (15, True)])
def test_a_verdict_waits_for_an_end_that_nobody_has_named(at_s: float, given: bool) -> None:
    assert (cause({BROKER: BY_ITSELF}, at_s=at_s) is not None) == given
    assert (cause({CLIENT: EXITED}, at_s=at_s) is not None) == given


@pytest.mark.parametrize(("broker", "seen_s", "named"), [(None, 10, True), (None, 11, False), ({}, 10, False)])
def test_an_agent_is_named_that_fell_silent_before_a_close_of_its_end(
    broker: Event | None, seen_s: float, named: bool
) -> None:
    verdict = judge(
        {CLIENT: BY_ITSELF, BROKER: broker}, agents={CLIENT: COMPLETE, BROKER: agent(seen_s=seen_s)}, at_s=40
    )
    assert verdict
    assert ("the agent at the broker has not reported since 12:00:03" in verdict["evidence"]) == named


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (
            {CLIENT: {"how": "timeout", "unacked_bytes": None, "unanswered_retransmits": None}, BROKER: None},
            "(0 bytes, 0 retransmissions)",
        ),
        (closed_first(BROKER, {**ACKS_0, **BRIEF, "in_flight": None}), "(0 requests in flight)"),
    ],
)
def test_what_an_end_does_not_count_is_nothing(ends: Ends, words: str) -> None:
    verdict = judge(ends)
    assert verdict
    assert words in verdict["evidence"]


@pytest.mark.parametrize(
    ("facts", "idle_us"),
    [
        ({"silence_us": 0, "idle_us": 2, "age_us": 3}, 0),
        ({"silence_us": None, "idle_us": 2, "age_us": 3}, 2),
        ({"silence_us": None, "idle_us": None, "age_us": 3}, 3),
        ({"silence_us": None, "idle_us": None, "age_us": None}, 0),
    ],
)
def test_where_no_payload_ever_passed_the_age_is_the_silence(facts: Event, idle_us: int) -> None:
    verdict = judge({CLIENT: BY_ITSELF | facts})
    assert verdict
    assert verdict["idle_us"] == idle_us


def test_an_end_closed_when_it_began_to_close_or_else_when_it_was_closed() -> None:
    def closed_us(close: Event | None) -> int:
        return End("client", {"close": close}, None, None, (0, 0), NOON_US, Limits.of(load({}))).closed_us

    assert closed_us({"closing_us": 1, "ended_us": 2}) == 1
    assert closed_us({"closing_us": None, "ended_us": 2}) == 2
    assert closed_us(None) == 0


@pytest.mark.parametrize(("at_s", "given"), [(29.999_999, False), (30, True)])
def test_news_of_an_open_end_do_not_delay_the_verdict_on_the_close_of_the_other(at_s: float, given: bool) -> None:
    row = connection(*events_of({CLIENT: RESET}, 1), opened(BROKER, 1))
    row["server"]["last_seen_us"] += 20 * SECOND_US
    behind = COMPLETE._replace(complete_until=NOON_US - 1, last_seen_us=NOON_US + 29 * SECOND_US)
    found = verdict(row, agents={CLIENT: COMPLETE, BROKER: behind}, at_s=at_s, closed_limit=30)
    assert (found is not None) == given
