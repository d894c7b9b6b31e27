"""The events of each agent that are remembered so that none counts twice, and the number of agents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline import agents, seen_events
from kafka_probe_pipeline.source import MOST_SEQ
from tests.builders.spark_events import NOON_US, Event, events, flow

pytestmark = pytest.mark.spark

_BEFORE = T.StructType([seen_events.SCHEMA["agent_id"], seen_events.SCHEMA["seen"]])


def test_seen_are_ranges_that_grow_together_whatever_comes_between(spark: SparkSession) -> None:
    def after(before: list[tuple[str, list[tuple[int, int]]]], *numbers: int) -> list[tuple[str, list[Any]]]:
        seen_before = spark.createDataFrame(before, _BEFORE)
        rows = seen_events.seen(events(spark, *map(flow, numbers)), seen_before).collect()
        return [(row["agent_id"], [tuple(one) for one in row["seen"]]) for row in rows]

    assert after([], 0, 1, 2, 2, 1) == [("agent-1", [(0, 2)])]
    assert after([("agent-1", [(0, 2)])], 3, 1) == [("agent-1", [(0, 3)])]
    assert after([("agent-1", [(0, 2), (9, 9)])], 4, MOST_SEQ) == [
        ("agent-1", [(0, 2), (4, 4), (9, 9), (MOST_SEQ, MOST_SEQ)])
    ]
    assert after([("agent-1", [(0, 2), (4, 4), (6, 9)])], 5, 3) == [("agent-1", [(0, 9)])]
    assert after([("agent-1", [(0, 1021)])], *range(1022, 3100)) == [("agent-1", [(0, 3099)])]


def test_events_that_were_seen_before_are_left_out_and_counted(spark: SparkSession) -> None:
    before = spark.createDataFrame([("agent-1", [(0, 9)])], _BEFORE)
    reported = [*map(flow, (3, 4, 4, 10)), flow(4, agent_id="agent-2")]
    fresh, left_out = seen_events.fresh(events(spark, *reported), before)
    assert sorted((row["agent_id"], row["seq"]) for row in fresh.collect()) == [("agent-1", 10), ("agent-2", 4)]
    assert left_out == 3
    assert seen_events.fresh(events(spark), before)[1] == 0


def test_of_an_agent_with_many_holes_the_widest_ranges_are_kept(spark: SparkSession) -> None:
    forged = range(10_000, 10_000 + 4 * seen_events.RANGES_KEPT, 2)
    (row,) = seen_events.seen(
        events(spark, *map(flow, (*range(20), *forged))), spark.createDataFrame([], _BEFORE)
    ).collect()
    assert len(row["seen"]) == seen_events.RANGES_KEPT
    assert tuple(row["seen"][0]) == (0, 19)


def seen_after(spark: SparkSession, day: int, *of: Event, before: Iterable[Row] = ()) -> list[Row]:
    """Return the state of agents after a batch that Kafka got on a day."""
    reported = events(spark, *of).withColumn("received_us", F.lit(NOON_US + day * 86_400_000_000))
    return seen_events.seen_events(reported, spark.createDataFrame(before, seen_events.SCHEMA)).collect()


def test_an_agent_that_did_not_report_for_a_month_is_forgotten(spark: SparkSession) -> None:
    first = seen_after(spark, 0, flow(3), flow(7, agent_id="gone"))
    later = seen_after(spark, 29, flow(5, kind="agent"), before=first)
    seen = {row["agent_id"]: [tuple(one) for one in row["seen"]] for row in later}
    assert seen == {"agent-1": [(3, 3), (5, 5)], "gone": [(7, 7)]}
    assert [row["agent_id"] for row in seen_after(spark, 31, flow(4), before=later)] == ["agent-1"]


def test_of_too_many_agents_those_are_remembered_that_reported_last(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "MOST_AGENTS", 2)
    first = seen_after(spark, 0, flow(agent_id="first"), flow(agent_id="second"))
    second = seen_after(spark, 1, flow(agent_id="third"), before=first)
    third = seen_after(spark, 2, flow(1, agent_id="first"), before=second)
    assert {row["agent_id"] for row in third} == {"third", "first"}


@pytest.mark.parametrize("most", [0, 10_000], ids=["many", "few"])
def test_of_different_events_with_one_number_the_first_in_the_topic_counts(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(seen_events, "MOST_REPEATED", most)
    sent = [flow(3), flow(4, requests=1), flow(5), flow(4, requests=2), flow(4, agent_id="agent-2")]
    fresh, left_out = seen_events.fresh(events(spark, *sent), spark.createDataFrame([], _BEFORE))
    assert left_out == 1
    assert [(row["seq"], row["agent_id"], row["requests"]) for row in fresh.orderBy("position").collect()] == [
        (event["seq"], event["agent_id"], event["requests"]) for event in (*sent[:3], sent[4])
    ]
