from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline.connections import without_overflows
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, agent_event, at_end, closed, opened
from tests.pipeline.history import History, only

pytestmark = pytest.mark.spark


def flowed(agent: str, connection: int = 1, *topics: str, **fields: object) -> dict[str, object]:
    return at_end(agent, "flow", connection, requests=2, topics=[{"topic": topic} for topic in topics], **fields)


def test_both_ends_are_one_connection_each_with_what_its_own_agent_saw(spark: SparkSession) -> None:
    row = only(History(spark).batch(opened(CLIENT), opened(BROKER)))
    assert (row["key"], row["state"], row["ends"]) == (f"{1:016x}", "open", "both")
    assert (row["client"]["peer"], row["client"]["workload"]["comm"]) == ("10.0.0.9:9092", "app")
    assert (row["server"]["peer"], row["server"]["workload"]["comm"]) == ("10.9.0.1:1", "java")
    assert row["client"]["opened_us"] == NOON_US - 3_600_000_000


def test_a_connection_of_which_one_end_is_watched_says_so_and_an_end_that_comes_late_joins(spark: SparkSession) -> None:
    history = History(spark)
    assert only(history.batch(opened(CLIENT)))["ends"] == "client only"
    assert only(history.batch(closed(BROKER)))["state"] == "half closed"
    row = only(history.batch(closed(CLIENT, closed_by="local")))
    assert (row["ends"], row["state"]) == ("both", "closed")
    assert (row["client"]["close"]["closed_by"], row["server"]["close"]["closed_by"]) == ("local", "peer")


def test_the_names_of_a_pod_that_came_after_its_connection_are_those_of_its_end(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT))
    names = {
        "pod": "orders-7c9f-x2x4z",
        "labels": {"app": "orders"},
        "owner_kind": "Deployment",
        "owner_name": "orders",
    }
    row = only(history.batch(closed(CLIENT, workload={"pid": 101, **names}), closed(BROKER)))
    assert row["client"]["workload"].asDict().items() >= names.items()


def test_a_close_alone_is_a_connection(spark: SparkSession) -> None:
    row = only(History(spark).batch(closed(BROKER)))
    assert (row["ends"], row["state"]) == ("server only", "closed")
    assert row["server"]["opened_us"] == NOON_US - 3_600_000_000


def test_a_listed_end_joins_when_it_has_its_flow_id(spark: SparkSession) -> None:
    history = History(spark)
    rows = history.batch(opened(CLIENT, flow_id=None, found="listed"), opened(BROKER))
    assert [row["ends"] for row in rows] == ["server only", "client only"]
    row = only(history.batch(opened(CLIENT, found="midstream")))
    assert (row["ends"], row["client"]["found"]) == ("both", "midstream")


def test_flows_add_up_over_batches_however_often_one_of_them_is_written(spark: SparkSession) -> None:
    history = History(spark)
    start, first, second = opened(CLIENT), flowed(CLIENT, 1, "b", "a"), flowed(CLIENT, 1, "c")
    history.batch(start, first, first)
    end = only(history.batch(first, second))["client"]
    assert (end["requests"], end["topics"], end["topics_cut"]) == (4, ["a", "b", "c"], False)


def test_a_sum_that_overflowed_stays_unknown_whatever_is_added(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(flowed(CLIENT))
    nearly = F.col("client").withField("requests", F.lit(2**63 - 2))
    history.connections = history.connections.withColumn("client", nearly)
    for _ in range(2):
        history.batch(flowed(CLIENT, request_bytes=7), flowed(CLIENT))
        end = only(history.connections.transform(without_overflows).collect())["client"]
        assert end["requests"] is None
    assert (end["request_bytes"], end["response_bytes"]) == (14, None)


def test_of_many_topics_some_are_named_and_that_it_were_more_is_reported_from_then_on(spark: SparkSession) -> None:
    history = History(spark, topics_kept=2)
    history.batch(flowed(CLIENT, 1, "c", "b", "a"))
    end = only(history.batch(flowed(CLIENT, 1, "a")))["client"]
    assert (end["topics"], end["topics_cut"]) == (["a", "b"], True)


def test_after_a_restart_of_an_agent_its_new_word_on_an_end_replaces_the_old_one(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(BROKER))
    row = only(history.batch(closed(CLIENT, agent_id="restarted", conn_id="1"), at_s=5))
    assert (row["client"]["agent_id"], row["ends"]) == ("restarted", "both")


def test_after_a_restart_of_an_agent_what_says_nothing_is_no_second_connection(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(BROKER))
    listed = opened(CLIENT, agent_id="restarted", conn_id="1", flow_id=None, found="listed")
    row = only(history.batch(listed, at_s=5))
    assert (row["key"], row["ends"]) == (f"{1:016x}", "both")
    assert (row["client"]["agent_id"], row["client"]["found"]) == ("restarted", "listed")
    # It was another one, between the same addresses.
    spoke = opened(CLIENT, 2, agent_id="restarted", conn_id="1", local=listed["local"], found="midstream")
    rows = history.batch(spoke, at_s=10)
    assert {row["key"]: row["ends"] for row in rows} == {f"{1:016x}": "server only", f"{2:016x}": "client only"}


@pytest.mark.parametrize(
    ("connection", "differs"),
    [
        (1, {"node": "elsewhere"}),
        (1, {"netns": 7}),
        (1, {"peer": "10.0.0.9:9093"}),
        (1, {"side": "server"}),
        (2, {}),
    ],
    ids=["another node", "another network", "another end", "the other side", "after it was closed"],
)
def test_what_another_listed_is_another_connection(
    spark: SparkSession, connection: int, differs: dict[str, object]
) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), closed(CLIENT, 2))
    listed = opened(CLIENT, connection, agent_id="another", conn_id="1", flow_id=None, found="listed")
    rows = history.batch({**listed, **differs}, at_s=5)
    assert [row["key"] for row in rows] == [f"{1:016x}", f"{2:016x}", "another/1"]


def test_what_nobody_spoke_of_for_long_is_forgotten(spark: SparkSession) -> None:
    history = History(spark, open_limit=100)
    history.batch(opened(CLIENT, 1), opened(CLIENT, 2))
    history.batch(flowed(CLIENT, 2), at_s=50)
    rows = history.batch(agent_event(BROKER), at_s=120)
    assert [row["key"] for row in rows] == [f"{2:016x}"]
    history.batch(agent_event(BROKER), at_s=160)
    assert {row["agent_id"] for row in history.agents.collect()} == {BROKER}
