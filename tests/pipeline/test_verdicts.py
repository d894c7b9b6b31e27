from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kafka_probe_pipeline import agents, spark_session, verdicts
from kafka_probe_pipeline.connections import SCHEMA
from kafka_probe_pipeline.judging import together
from kafka_probe_pipeline.verdicts import with_reports, with_silences
from tests.builders.connection_ends import BY_ITSELF, EXITED, RESET
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, agent_event, closed, opened
from tests.pipeline.cases import CASES, LATE_S, Case
from tests.pipeline.history import History, only

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Any]:
    """Return the verdict on each case by its name, all given in one batch."""
    reported = [event for number, case in enumerate(CASES) for event in case.events(number)]
    history = History(spark)
    history.batch(*reported, agent_event(CLIENT), agent_event(BROKER))
    rows = history.batch(agent_event(CLIENT), agent_event(BROKER), at_s=LATE_S)
    return {case.name: row["verdict"] for case, row in zip(CASES, rows, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_named_with_its_evidence(judged: dict[str, Any], case: Case) -> None:
    case.check(judged[case.name])


@pytest.mark.parametrize(
    ("closed_together", "causes"),
    [(1, ("normal", "unknown")), (0.2, ("client_idle_limit", "client_idle_limit"))],
)
def test_what_a_process_closed_as_a_whole_was_closed_by_no_limit(
    spark: SparkSession, closed_together: float, causes: tuple[str, str]
) -> None:
    """The first of `causes` is for connections with both ends watched, the second for the client's end alone."""

    def of_process(pid: int, *, both: bool) -> list[Event]:
        def of_one(connection: int, **facts: object) -> list[Event]:
            process = {"pid": pid, "start_time": 1, "comm": "app"}
            number = 10 * pid + connection
            ends = [closed(CLIENT, number, **BY_ITSELF, workload=process, **facts), closed(BROKER, number)]
            return ends if both else ends[:1]

        whole = [*of_one(1), *of_one(2, silence_us=5 * SECOND_US, closing_ts=NOON_US + SECOND_US // 2)]
        return [*whole, *of_one(3, closing_ts=NOON_US + 10 * SECOND_US)]

    history = History(spark, closed_together=closed_together)
    history.batch(*of_process(1, both=True), *of_process(2, both=False))
    rows = history.batch(agent_event(CLIENT, until_s=20), at_s=LATE_S)
    for cause, of in zip(causes, (rows[:3], rows[3:]), strict=True):
        assert [row["verdict"]["cause"] for row in of] == [cause, cause, "client_idle_limit"]
        assert ("idle for 5.0 s to 30.0 s" in of[0]["verdict"]["evidence"]) == (cause != "client_idle_limit")


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


def test_once_all_are_judged_connections_are_judged_again_only_after_news_of_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(spark)
    history.batch(opened(BROKER, 1), closed(CLIENT, 1, **RESET))
    assert only(history.batch(agent_event(BROKER, until_s=0.5)))["verdict"] is None
    assert only(history.batch(agent_event(BROKER), at_s=1))["verdict"]["cause"] == "middlebox_reset"
    history.batch(agent_event(BROKER), at_s=2)
    with monkeypatch.context() as patched:
        patched.setattr(verdicts, "verdicts", None)
        history.batch(agent_event(BROKER), at_s=3)
    history.batch(opened(BROKER, 2), closed(CLIENT, 2, **RESET), at_s=4)
    rows = history.batch(agent_event(BROKER, until_s=5), at_s=5)
    assert [row["verdict"]["cause"] for row in rows] == ["middlebox_reset", "middlebox_reset"]


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
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=30), st.integers(0, 8))
def test_silences_together_are_those_of_all_closes_within_the_time(
    closes: list[tuple[int, int]], within_us: int
) -> None:
    def silences(at_us: int) -> list[int]:
        return [silence for us, silence in closes if abs(us - at_us) <= within_us]

    ordered = sorted((us, silence, str(number)) for number, (us, silence) in enumerate(closes))
    simple = [(key, min(silences(us)), max(silences(us))) for us, _, key in ordered]
    assert together(within_us, ordered) == simple


def test_silences_are_those_of_what_the_process_itself_closed_together(spark: SparkSession) -> None:
    cases: list[tuple[Event, tuple[int, int]]] = [
        ({}, (5, 30)),
        ({"closed_by": None, "how": "rst_sent"}, (5, 30)),
        ({"closed_by": "peer", "how": "rst_sent"}, (30, 30)),
        ({"closed_by": "peer"}, (30, 30)),
        ({"closing_us": None, "ended_us": 8}, (5, 30)),
        ({"closing_us": 9}, (30, 30)),
        ({"silence_us": None, "idle_us": 31}, (5, 31)),
        ({"silence_us": None, "idle_us": None, "age_us": 32}, (5, 32)),
        ({"agent_id": "another"}, (30, 30)),
        ({"pid": 8}, (30, 30)),
        ({"pid": None}, (30, 30)),
        ({"start_time": 2}, (30, 30)),
    ]

    def row(key: str, number: int, **facts: object) -> Event:
        close: Event = {"closed_by": "local", "how": "fin", "closing_us": 4, "silence_us": 30, **facts}
        agent_id = close.pop("agent_id", f"agent-{number}")
        workload = {"pid": close.pop("pid", 7), "start_time": close.pop("start_time", 1)}
        return {"key": key, "client": {"agent_id": agent_id, "workload": workload, "close": close}}

    rows = [row(f"one {number}", number, **facts) for number, (facts, _) in enumerate(cases)]
    rows += [row(f"other {number}", number, silence_us=5) for number in range(len(cases))]
    every = spark_session.rows(spark, rows, SCHEMA)
    found = with_silences(every, every, within_s=4e-6).select("key", "silences.*").collect()
    of_other = [silences if silences[0] == 5 else (5, 5) for _, silences in cases]
    assert {row["key"]: (row["least"], row["greatest"]) for row in found} == {
        **{f"one {number}": silences for number, (_, silences) in enumerate(cases)},
        **{f"other {number}": silences for number, silences in enumerate(of_other)},
    }


def test_a_connection_that_was_judged_is_company_of_those_that_are_judged_later(spark: SparkSession) -> None:
    process = {"pid": 7, "start_time": 1, "comm": "app"}
    history = History(spark)
    ends = [closed(CLIENT, 1, **BY_ITSELF, workload=process, silence_us=5 * SECOND_US), closed(BROKER, 1)]
    rows = history.batch(*ends, agent_event(CLIENT, until_s=20), agent_event(BROKER, until_s=20))
    assert [row["verdict"]["cause"] for row in rows] == ["client_idle_limit"]
    rows = history.batch(closed(CLIENT, 2, **BY_ITSELF, workload=process), closed(BROKER, 2), at_s=1)
    assert [row["verdict"]["cause"] for row in rows] == ["client_idle_limit", "normal"]


def test_what_an_agent_does_not_report_is_zero_and_the_last_reset_of_its_host_counts(spark: SparkSession) -> None:
    known = {"complete_until": 5, "reported_us": 4, "last_seen_us": 3, "complete_since": 2, "resets_since": 1}
    reset = {"local": "l", "peer": "p"}
    reports: list[Event] = [
        {"agent_id": "a", **known, "resets": [{**reset, "ts": 5}, {**reset, "ts": 6}, {**reset, "peer": "q", "ts": 7}]},
        {"agent_id": "b", "resets": []},
        {"agent_id": "z", "resets": [{**reset, "ts": 8}]},
    ]
    ends = {"client": {"agent_id": "a", "opaque": "tls", **reset}, "server": {"agent_id": "b", **reset}}
    rows: list[Event] = [
        {"key": "both", **ends},
        {"key": "none"},
        {"key": "unknown agent", "client": {"agent_id": "c"}},
    ]
    found = with_reports(spark_session.rows(spark, rows, SCHEMA), spark_session.rows(spark, reports, agents.SCHEMA))
    by_key = {row["key"]: row.asDict(recursive=True) for row in found.collect()}
    of_both = {side: by_key["both"][f"{side}_end"] for side in ("client", "server")}
    assert (of_both["client"]["agent"], of_both["client"]["reset_us"]) == (known, 6)
    assert (of_both["server"]["agent"], of_both["server"]["reset_us"]) == (dict.fromkeys(known, 0), None)
    assert of_both["client"]["known"]["opaque"] == "tls"
    assert by_key["none"]["client_end"] == {"known": None, "agent": None, "reset_us": None}
    assert by_key["unknown agent"]["client_end"]["agent"] is None
    assert len(by_key) == len(rows)


def test_executors_need_nothing_but_python_to_judge() -> None:
    command = "import sys; sys.path.append(sys.argv[1]); import kafka_probe_pipeline.judging"
    subprocess.run([sys.executable, "-I", "-S", "-c", command, Path(spark_session.__file__).parents[1]], check=True)
