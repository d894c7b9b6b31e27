"""The state that is kept of each agent, and the number of agents of which it is kept."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kafka_probe_pipeline import agents
from tests.builders.spark_events import (
    BROKER,
    CLIENT,
    NOON_US,
    SECOND_US,
    Event,
    agent_event,
    closed,
    opened,
    reset_sent,
)
from tests.pipeline.history import History

pytestmark = pytest.mark.spark


def test_of_too_many_agents_those_are_kept_that_reported_last(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "MOST_AGENTS", 2)
    history = History(spark)
    history.batch(agent_event("first"), agent_event("second"))
    history.batch(agent_event("third"), at_s=1)
    history.batch(agent_event("first"), at_s=2)
    assert {row["agent_id"] for row in history.agents.collect()} == {"third", "first"}


def test_an_agent_whose_clock_is_set_back_is_complete_by_its_new_times(spark: SparkSession) -> None:
    history = History(spark)
    for until_s in (1800, 5):
        since = NOON_US + (until_s - 2) * SECOND_US
        history.batch(agent_event("agent", until_s=until_s, complete_since=since), at_s=1)
    history.batch(opened("agent"), at_s=4)
    (row,) = history.agents.collect()
    assert (row["complete_since"], row["complete_until"]) == (NOON_US + 3 * SECOND_US, NOON_US + 5 * SECOND_US)
    # A report arrives a second after its batch, see History.
    assert (row["reported_us"], row["last_seen_us"]) == (NOON_US + 2 * SECOND_US, NOON_US + 4 * SECOND_US)


def resets(count: int, at_s: float) -> list[Event]:
    """Return resets that a scan of the broker's host causes, a microsecond apart from `at_s` after noon on."""
    return [reset_sent(BROKER, 100 + n, ts=NOON_US + round(at_s * SECOND_US) + n) for n in range(count)]


@pytest.mark.parametrize(("in_vain_s", "cause"), [(20, "unknown"), (40, "middlebox_reset")])
def test_resets_that_were_dropped_may_have_been_of_any_connection(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, in_vain_s: int, cause: str
) -> None:
    """The client's connection is silent for 30 s, so earlier resets by the broker's host are of no concern."""
    monkeypatch.setattr(agents, "RESETS_KEPT", 10)
    history = History(spark)
    history.batch(opened(BROKER), *resets(1, at_s=-in_vain_s), *resets(8, at_s=5))
    history.batch(*resets(2, at_s=6))
    (row,) = history.agents.collect()
    assert [reset["ts"] for reset in row["resets"]] == sorted((reset["ts"] for reset in row["resets"]), reverse=True)
    assert len(row["resets"]) == 10
    history.batch(agent_event(BROKER, until_s=10), at_s=10)
    (row,) = history.batch(closed(CLIENT, how="rst_received"), at_s=10)
    assert row["verdict"]["cause"] == cause
    assert ("the cause would be middlebox_reset" in row["verdict"]["evidence"]) == (cause == "unknown")


def test_a_close_of_the_agents_own_end_needs_no_resets(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "RESETS_KEPT", 1)
    sent = [event | {"agent_id": CLIENT} for event in resets(2, at_s=0)]
    (row,) = History(spark).batch(
        opened(BROKER), closed(CLIENT, closed_by="local"), closed(BROKER), *sent, agent_event(CLIENT)
    )
    assert row["verdict"]["cause"] == "client_idle_limit"
