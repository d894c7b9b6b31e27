from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.evidence import End
from kafka_probe_pipeline.rules import CAUSES, RULES
from kafka_probe_pipeline.verdicts import silences_together
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, at_end, closed, opened, word
from tests.pipeline.history import History, only

pytestmark = pytest.mark.spark

LATE_S = 20  # later than anybody waits for an end that nobody has named


@dataclass(frozen=True)
class Case:
    """The reports of the ends (None: open; absent: not watched), the cause, and words of the evidence."""

    name: str
    ends: dict[str, Event | None]
    cause: str
    words: str
    opaque: str | None = None
    resets: bool = False  # the broker's host answers the client with an RST, as it has no such socket any more

    def events(self, number: int) -> list[Event]:
        reported = [opened(end, number, opaque=self.opaque) for end in self.ends]
        reported += [closed(end, number, **facts) for end, facts in self.ends.items() if facts is not None]
        if self.resets:
            sent = at_end(BROKER, "reset", number, ts=NOON_US + SECOND_US, direction="sent", conn_id=None, flow_id=None)
            reported.append(sent)
        return reported


BY_ITSELF: Event = {"closed_by": "local"}
RESET: Event = {"how": "rst_received"}
BRIEF: Event = {"silence_us": SECOND_US // 5}
IGNORED: Event = {**BY_ITSELF, "unacked_bytes": 80, "unanswered_retransmits": 3}
EXITED: Event = {**BY_ITSELF, "owner_exiting": True}
AUTHENTICATED: Event = {**BY_ITSELF, "last_api": "SaslAuthenticate", "silence_us": 3 * SECOND_US}


CLOSE_NOTIFY_US = 60_000


def silent(us: int) -> Event:
    """Return facts of an end that closed by itself this long after its last exchange."""
    return {**BY_ITSELF, "silence_us": us, "received_idle_us": us}


def closed_first(end: str, facts: Event) -> dict[str, Event | None]:
    """Both ends are watched, and one closed first."""
    return {end: BY_ITSELF | facts, CLIENT if end == BROKER else BROKER: {}}


CASES = [
    Case(
        "the broker's limit", closed_first(BROKER, {}), "broker_idle_limit", "the broker closed after 30.0 s of silence"
    ),
    Case(
        "the broker's limit, of its end alone", {BROKER: BY_ITSELF}, "broker_idle_limit", "no agent watched the client"
    ),
    Case(
        "the client's limit", closed_first(CLIENT, {}), "client_idle_limit", "the client closed after 30.0 s of silence"
    ),
    Case(
        "the client's limit, of its end alone", {CLIENT: BY_ITSELF}, "client_idle_limit", "no agent watched the broker"
    ),
    Case("limit of a TLS client", closed_first(CLIENT, {"last_api": None, "in_flight": None}), "client_idle_limit", ""),
    Case(
        "a TLS client that closes as it hears something, of its end alone",
        {CLIENT: BY_ITSELF | {"owner_ended": True, "received_idle_us": 500}},
        "unknown",
        "may have been a close_notify",
        opaque="tls",
    ),
    Case(
        "a TLS client that closes soon after and lives on, of its end alone",
        {CLIENT: BY_ITSELF | {**BRIEF, "received_idle_us": 200_000}},
        "unknown",
        "may have been a close_notify",
        opaque="tls",
    ),
    Case(
        "a TLS client that ends later than that, of its end alone",
        {CLIENT: BY_ITSELF | {"owner_ended": True, "received_idle_us": 500_000}},
        "normal",
        "its process",
        opaque="tls",
    ),
    Case("limit of a TLS broker", closed_first(BROKER, {"last_api": None, "in_flight": None}), "broker_idle_limit", ""),
    Case("kill -9 of the broker", closed_first(BROKER, EXITED), "process_exit", "java[9]"),
    Case(
        "a broker that ends before it has closed all",
        closed_first(BROKER, {**EXITED, "listener_closed_us": 0}),
        "broker_shutdown",
        "after its listening socket",
    ),
    Case("kill -9 of the client", closed_first(CLIENT, EXITED), "process_exit", "the client's process app["),
    Case(
        "kill -9 of a client that had data unread",
        {CLIENT: {**EXITED, "how": "rst_sent"}, BROKER: RESET},
        "process_exit",
        "",
    ),
    Case("both exited at once", {CLIENT: EXITED, BROKER: EXITED}, "process_exit", "the broker's process"),
    Case(
        "the broker stops",
        closed_first(BROKER, {"listener_closed_us": 2 * SECOND_US}),
        "broker_shutdown",
        "2.0 s after its listening socket",
    ),
    Case("no listener since last year", closed_first(BROKER, {"listener_closed_us": 10**13}), "broker_idle_limit", ""),
    Case("no such mechanism", closed_first(BROKER, {"auth_error": 33, **BRIEF}), "auth_failure", "error 33"),
    Case("no such mechanism, of the client alone", {CLIENT: {"auth_error": 33}}, "auth_failure", "error 33"),
    Case("raw tokens refused", closed_first(BROKER, AUTHENTICATED), "auth_failure", "3.0 s after SaslAuthenticate"),
    Case("the client leaves while it authenticates", closed_first(CLIENT, AUTHENTICATED), "auth_failure", ""),
    Case(
        "idle since it authenticated", closed_first(CLIENT, {"last_api": "SaslAuthenticate"}), "client_idle_limit", ""
    ),
    Case(
        "too large a batch with acks=0",
        closed_first(BROKER, {"last_api": "Produce", "last_acks": 0, "last_request_bytes": 2_000_000, **BRIEF}),
        "rejected_request",
        "0.2 s after Produce with acks=0 of 2,000,000 bytes, without a response",
    ),
    Case("idle after acks=0", closed_first(BROKER, {"last_api": "Produce", "last_acks": 0}), "broker_idle_limit", ""),
    Case(
        "a version that the broker lacks",
        {BROKER: {**BY_ITSELF, "in_flight": 1, "how": "rst_sent"}, CLIENT: RESET},
        "rejected_request",
        "1 requests in flight",
    ),
    Case(
        "the broker closes at once, nobody knows why",
        closed_first(BROKER, BRIEF),
        "unknown",
        "too soon for an idle limit",
    ),
    Case(
        "the process of the client ended",
        closed_first(CLIENT, {"owner_ended": True}),
        "normal",
        "exited right after",
    ),
    Case(
        "the client closes in the middle of its work",
        closed_first(CLIENT, BRIEF),
        "normal",
        "0.2 s after its last exchange (Fetch)",
    ),
    Case("the client leaves its group", closed_first(CLIENT, {"last_api": "LeaveGroup"}), "normal", "LeaveGroup"),
    Case(
        "the client gave up",
        closed_first(CLIENT, {"in_flight": 2}),
        "unknown",
        "with 2 requests in flight, after 30.0 s without a response",
    ),
    Case(
        "a firewall resets the client",
        {CLIENT: RESET, BROKER: None},
        "middlebox_reset",
        "that the broker's host never sent",
    ),
    Case(
        "a firewall resets the broker",
        {CLIENT: None, BROKER: RESET},
        "middlebox_reset",
        "that the client's host never sent",
    ),
    Case("a firewall resets both", {CLIENT: RESET, BROKER: RESET}, "middlebox_reset", ""),
    Case(
        "a firewall resets the client, the broker's limit comes later",
        {CLIENT: RESET, BROKER: {**BY_ITSELF, "silence_us": 60 * SECOND_US}},
        "middlebox_reset",
        "",
    ),
    Case(
        "the broker closed before, its host resets",
        {CLIENT: RESET, BROKER: BY_ITSELF},
        "broker_idle_limit",
        "",
        resets=True,
    ),
    Case("the broker resets", {CLIENT: RESET, BROKER: {**BY_ITSELF, "how": "rst_sent"}}, "broker_idle_limit", ""),
    Case("a reset, of the client alone", {CLIENT: RESET}, "unknown", "rst_received"),
    Case(
        "a firewall drops what the client sends",
        {CLIENT: {"how": "timeout"}, BROKER: None},
        "middlebox_silent_drop",
        "the broker kept the connection open",
    ),
    Case(
        "a firewall drops until the client gives up",
        {CLIENT: {**IGNORED, "in_flight": 1}, BROKER: None},
        "middlebox_silent_drop",
        "80 bytes, 3 retransmissions",
    ),
    Case("a firewall drops, each end gives up", {CLIENT: IGNORED, BROKER: BY_ITSELF}, "middlebox_silent_drop", ""),
    Case(
        "a firewall drops what the broker sends",
        {CLIENT: None, BROKER: {"how": "timeout"}},
        "middlebox_silent_drop",
        "the client kept the connection open",
    ),
    Case(
        "no answer, of the client alone",
        {CLIENT: IGNORED},
        "unknown",
        "it is unknown whether the broker kept the connection open",
    ),
    Case("a FIN of the client, of the broker alone", {BROKER: {}}, "unknown", "no agent watched the client"),
    Case("a FIN of the broker, of the client alone", {CLIENT: {}}, "unknown", "no agent watched the broker"),
    Case("each says that the other was first", {CLIENT: {}, BROKER: {}}, "unknown", "received the other end's close"),
    Case("both close at once", {CLIENT: BY_ITSELF, BROKER: BY_ITSELF}, "unknown", "before either received"),
    Case(
        "both close at once, by TLS, and neither sent close_notify",
        {CLIENT: silent(BRIEF["silence_us"]), BROKER: silent(BRIEF["silence_us"])},
        "unknown",
        "before either received",
        opaque="tls",
    ),
    Case(
        "a TLS client sent close_notify, the FINs cross",
        {CLIENT: silent(BRIEF["silence_us"]), BROKER: silent(CLOSE_NOTIFY_US)},
        "normal",
        "the client closed 0.2 s after",
        opaque="tls",
    ),
    Case(
        "a TLS client sent close_notify after a silence, the FINs cross",
        {CLIENT: silent(30 * SECOND_US), BROKER: silent(CLOSE_NOTIFY_US)},
        "client_idle_limit",
        "the client closed after 30.0 s of silence",
        opaque="tls",
    ),
    Case(
        "a TLS broker sent close_notify, the FINs cross",
        {CLIENT: silent(CLOSE_NOTIFY_US), BROKER: silent(30 * SECOND_US)},
        "broker_idle_limit",
        "the broker closed after 30.0 s of silence",
        opaque="tls",
    ),
]


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Any]:
    """The verdict on each case by its name, all given in one batch."""
    reported = [event for number, case in enumerate(CASES) for event in case.events(number)]
    history = History(spark)
    history.batch(*reported, word(CLIENT), word(BROKER))
    rows = history.batch(word(CLIENT), word(BROKER), at_s=LATE_S)
    return {case.name: row["verdict"] for case, row in zip(CASES, rows, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_named_with_its_evidence(judged: dict[str, Any], case: Case) -> None:
    verdict = judged[case.name]
    assert verdict["cause"] == case.cause, verdict["evidence"]
    assert case.words in verdict["evidence"]
    assert verdict["closed_us"] == NOON_US


@pytest.mark.parametrize(
    ("closed_together", "both", "cause"),
    [(1, True, "normal"), (1, False, "unknown"), (0.2, True, "client_idle_limit"), (0.2, False, "client_idle_limit")],
)
def test_what_a_process_closed_as_a_whole_was_closed_by_no_limit(
    spark: SparkSession, closed_together: float, both: bool, cause: str
) -> None:
    def of_one(connection: int, **facts: object) -> list[Event]:
        process = {"pid": 7, "start_time": 1, "comm": "app"}
        ends = [closed(CLIENT, connection, **BY_ITSELF, workload=process, **facts), closed(BROKER, connection)]
        return ends if both else ends[:1]

    history = History(spark, closed_together=closed_together)
    whole = [*of_one(1), *of_one(2, silence_us=5 * SECOND_US, closing_ts=NOON_US + SECOND_US // 2)]
    history.batch(*whole, *of_one(3, closing_ts=NOON_US + 10 * SECOND_US))
    rows = history.batch(word(CLIENT, until_s=20), at_s=LATE_S)
    assert [row["verdict"]["cause"] for row in rows] == [cause, cause, "client_idle_limit"]
    assert ("idle for 5.0 s to 30.0 s" in rows[0]["verdict"]["evidence"]) == (cause != "client_idle_limit")


@pytest.mark.parametrize(("close_notify_within", "cause"), [(0.05, "unknown"), (0.01, "normal")])
def test_what_came_by_tls_before_the_close_may_have_been_a_close_notify(
    spark: SparkSession, close_notify_within: float, cause: str
) -> None:
    history = History(spark, close_notify_within=close_notify_within)
    close = closed(CLIENT, **BY_ITSELF, owner_ended=True, received_idle_us=20_000)
    history.batch(opened(CLIENT, opaque="tls"), close, word(CLIENT))
    assert only(history.batch(word(CLIENT), at_s=LATE_S))["verdict"]["cause"] == cause


def test_what_rests_on_an_absence_waits_for_the_word_of_the_agent_that_would_have_seen_it(spark: SparkSession) -> None:
    history = History(spark)
    dropped = [opened(BROKER, 1), closed(CLIENT, 1, **RESET)]
    explained = [opened(BROKER, 2), closed(CLIENT, 2, **RESET)]
    waiting = history.batch(*dropped, *explained, word(BROKER, until_s=0.5))
    assert [row["verdict"] for row in waiting] == [None, None]
    rows = history.batch(closed(BROKER, 2, **EXITED, how="rst_sent"), word(BROKER), at_s=5)
    assert [row["verdict"]["cause"] for row in rows] == ["middlebox_reset", "process_exit"]
    assert [row["verdict"]["judged_us"] for row in rows] == [NOON_US + 5 * SECOND_US] * 2


def test_an_agent_is_not_complete_far_ahead_of_kafkas_clock(spark: SparkSession) -> None:
    history = History(spark)
    ahead_us = NOON_US + 7200 * SECOND_US
    forged = word(BROKER, complete_until=ahead_us, complete_since=ahead_us)
    assert only(history.batch(opened(BROKER), closed(CLIENT, **RESET), forged))["verdict"] is None
    assert only(history.batch(word(BROKER), at_s=1))["verdict"]["cause"] == "middlebox_reset"


def test_where_an_agent_fell_silent_the_verdict_says_since_when_and_names_only_what_the_other_end_can_know(
    spark: SparkSession,
) -> None:
    history = History(spark)
    history.batch(word(BROKER, until_s=-5), *(opened(BROKER, number) for number in (1, 2)))
    waiting = history.batch(closed(CLIENT, 1, **RESET), closed(CLIENT, 2, **EXITED), at_s=1)
    assert [row["verdict"] for row in waiting] == [None, None]
    reset, exited = (row["verdict"] for row in history.batch(word(CLIENT), at_s=40))
    assert (reset["cause"], exited["cause"]) == ("unknown", "process_exit")
    since = "the agent at the broker has not reported since 11:59:55"
    assert since in reset["evidence"]
    assert since in exited["evidence"]
    assert "the cause would be middlebox_reset" in reset["evidence"]


@pytest.mark.parametrize(("lost_s", "cause"), [(-20, "unknown"), (-40, "middlebox_reset")])
def test_the_silence_of_an_agent_tells_nothing_of_a_time_of_which_it_lost_something(
    spark: SparkSession, lost_s: int, cause: str
) -> None:
    lost = word(BROKER, complete_since=NOON_US + lost_s * SECOND_US)
    row = only(History(spark).batch(opened(BROKER), closed(CLIENT, **RESET), lost))
    assert row["verdict"]["cause"] == cause
    assert ("the cause would be middlebox_reset" in row["verdict"]["evidence"]) == (cause == "unknown")


def test_a_verdict_is_given_once_however_late_the_other_end_closes_and_the_row_leaves_after_that(
    spark: SparkSession,
) -> None:
    history = History(spark)
    timeout = closed(CLIENT, how="timeout")
    verdict = only(history.batch(opened(BROKER), timeout, word(BROKER)))["verdict"]
    assert verdict["cause"] == "middlebox_silent_drop"
    assert only(history.batch(timeout, word(BROKER), at_s=2_000))["verdict"] == verdict
    row = only(history.batch(closed(BROKER, **BY_ITSELF), word(BROKER), at_s=2_001))
    assert (row["state"], row["verdict"]) == ("closed", verdict)
    assert history.batch(word(BROKER), at_s=2_901) == []


def test_a_batch_that_is_done_again_gives_the_same(spark: SparkSession) -> None:
    batch = [closed(CLIENT, **BY_ITSELF), closed(BROKER), opened(CLIENT, 2), word(CLIENT), word(BROKER)]
    one, other = History(spark), History(spark)
    assert one.batch(*batch) == other.batch(*reversed(batch))
    assert other.batch(*batch) == one.batch()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 20), st.integers(0, 9)), max_size=30), st.integers(0, 8))
def test_silences_together_are_those_of_all_that_the_process_closed_within_the_time(
    closes: list[tuple[int, int, int]], within_us: int
) -> None:
    def end(pid: int, closed_us: int, silence_us: int) -> End:
        close = {"closing_ts": closed_us, "closed_by": "local", "how": "fin", "silence_us": silence_us}
        known = {"agent_id": CLIENT, "workload": {"pid": pid, "start_time": 1}, "close": close}
        return End("client", known, None, None, (0, 0), NOON_US, load({}))

    def company(pid: int, closed_us: int) -> list[int]:
        return [silence for other, us, silence in closes if other == pid and abs(us - closed_us) <= within_us]

    simple = [(min(company(pid, us)), max(company(pid, us))) for pid, us, _ in closes]
    assert silences_together([end(*close) for close in closes], within_us) == simple


def test_every_cause_that_a_rule_names_is_explained() -> None:
    assert {rule.cause for rule in RULES} == CAUSES.keys()
