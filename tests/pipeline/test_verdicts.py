from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.evidence import End
from kafka_probe_pipeline.verdicts import silences_together
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, agent_event, closed, opened
from tests.pipeline.cases import BY_ITSELF, CASES, EXITED, LATE_S, RESET, Case
from tests.pipeline.history import History, only

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Any]:
    """The verdict on each case by its name, all given in one batch."""
    reported = [event for number, case in enumerate(CASES) for event in case.events(number)]
    history = History(spark)
    history.batch(*reported, agent_event(CLIENT), agent_event(BROKER))
    rows = history.batch(agent_event(CLIENT), agent_event(BROKER), at_s=LATE_S)
    return {case.name: row["verdict"] for case, row in zip(CASES, rows, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_named_with_its_evidence(judged: dict[str, Any], case: Case) -> None:
    case.check(judged[case.name])


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
    rows = history.batch(agent_event(CLIENT, until_s=20), at_s=LATE_S)
    assert [row["verdict"]["cause"] for row in rows] == [cause, cause, "client_idle_limit"]
    assert ("idle for 5.0 s to 30.0 s" in rows[0]["verdict"]["evidence"]) == (cause != "client_idle_limit")


@pytest.mark.parametrize(("close_notify_within", "cause"), [(0.05, "unknown"), (0.01, "normal")])
def test_what_came_by_tls_before_the_close_may_have_been_a_close_notify(
    spark: SparkSession, close_notify_within: float, cause: str
) -> None:
    history = History(spark, close_notify_within=close_notify_within)
    close = closed(CLIENT, **BY_ITSELF, opaque="tls", owner_ended=True, received_idle_us=20_000)
    history.batch(close, agent_event(CLIENT))
    assert only(history.batch(agent_event(CLIENT), at_s=LATE_S))["verdict"]["cause"] == cause


def test_what_rests_on_an_absence_waits_for_the_word_of_the_agent_that_would_have_seen_it(spark: SparkSession) -> None:
    history = History(spark)
    dropped = [opened(BROKER, 1), closed(CLIENT, 1, **RESET)]
    explained = [opened(BROKER, 2), closed(CLIENT, 2, **RESET)]
    waiting = history.batch(*dropped, *explained, agent_event(BROKER, until_s=0.5))
    assert [row["verdict"] for row in waiting] == [None, None]
    rows = history.batch(closed(BROKER, 2, **EXITED, how="rst_sent"), agent_event(BROKER), at_s=5)
    assert [row["verdict"]["cause"] for row in rows] == ["middlebox_reset", "process_exit"]
    assert [row["verdict"]["judged_us"] for row in rows] == [NOON_US + 5 * SECOND_US] * 2


def test_an_agent_is_not_complete_far_ahead_of_kafkas_clock(spark: SparkSession) -> None:
    history = History(spark)
    ahead_us = NOON_US + 7200 * SECOND_US
    forged = agent_event(BROKER, complete_until=ahead_us, complete_since=ahead_us)
    assert only(history.batch(opened(BROKER), closed(CLIENT, **RESET), forged))["verdict"] is None
    assert only(history.batch(agent_event(BROKER), at_s=1))["verdict"]["cause"] == "middlebox_reset"


def test_where_an_agent_fell_silent_the_verdict_says_since_when_and_names_only_what_the_other_end_can_know(
    spark: SparkSession,
) -> None:
    history = History(spark)
    history.batch(agent_event(BROKER, until_s=-5), *(opened(BROKER, number) for number in (1, 2)))
    waiting = history.batch(closed(CLIENT, 1, **RESET), closed(CLIENT, 2, **EXITED), at_s=1)
    assert [row["verdict"] for row in waiting] == [None, None]
    reset, exited = (row["verdict"] for row in history.batch(agent_event(CLIENT), at_s=40))
    assert (reset["cause"], exited["cause"]) == ("unknown", "process_exit")
    since = "the agent at the broker has not reported since 11:59:55"
    assert since in reset["evidence"]
    assert since in exited["evidence"]
    assert "the cause would be middlebox_reset" in reset["evidence"]


@pytest.mark.parametrize(("lost_s", "cause"), [(-20, "unknown"), (-40, "middlebox_reset")])
def test_the_silence_of_an_agent_tells_nothing_of_a_time_of_which_it_lost_something(
    spark: SparkSession, lost_s: int, cause: str
) -> None:
    lost = agent_event(BROKER, complete_since=NOON_US + lost_s * SECOND_US)
    row = only(History(spark).batch(opened(BROKER), closed(CLIENT, **RESET), lost))
    assert row["verdict"]["cause"] == cause
    assert ("the cause would be middlebox_reset" in row["verdict"]["evidence"]) == (cause == "unknown")


def test_a_verdict_is_given_once_however_late_the_other_end_closes_and_the_row_leaves_after_that(
    spark: SparkSession,
) -> None:
    history = History(spark)
    timeout = closed(CLIENT, how="timeout")
    verdict = only(history.batch(opened(BROKER), timeout, agent_event(BROKER)))["verdict"]
    assert verdict["cause"] == "middlebox_silent_drop"
    assert only(history.batch(timeout, agent_event(BROKER), at_s=2_000))["verdict"] == verdict
    row = only(history.batch(closed(BROKER, **BY_ITSELF), agent_event(BROKER), at_s=2_001))
    assert (row["state"], row["verdict"]) == ("closed", verdict)
    another = only(history.batch(closed(CLIENT, 2), at_s=2_301))
    assert another["key"] != row["key"]


def test_a_batch_that_is_done_again_gives_the_same(spark: SparkSession) -> None:
    batch = [closed(CLIENT, **BY_ITSELF), closed(BROKER), opened(CLIENT, 2), agent_event(CLIENT), agent_event(BROKER)]
    one, other = History(spark), History(spark)
    assert one.batch(*batch) == other.batch(*reversed(batch))
    assert other.batch(*batch) == one.batch()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 20), st.integers(0, 9)), max_size=30), st.integers(0, 8))
def test_silences_together_are_those_of_all_that_the_process_closed_within_the_time(
    closes: list[tuple[int, int, int]], within_us: int
) -> None:
    def end(pid: int, closed_us: int, silence_us: int) -> End:
        close = {"closing_us": closed_us, "closed_by": "local", "how": "fin", "silence_us": silence_us}
        known = {"agent_id": CLIENT, "workload": {"pid": pid, "start_time": 1}, "close": close}
        return End("client", known, None, None, (0, 0), NOON_US, load({}))

    def company(pid: int, closed_us: int) -> list[int]:
        return [silence for other, us, silence in closes if other == pid and abs(us - closed_us) <= within_us]

    simple = [(min(company(pid, us)), max(company(pid, us))) for pid, us, _ in closes]
    assert silences_together([end(*close) for close in closes], within_us) == simple
