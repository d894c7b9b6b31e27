from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kafka_probe_pipeline import source
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, agent_event, closed, opened
from tests.pipeline.history import History, only

pytestmark = pytest.mark.spark

SECOND_TS = NOON_US + SECOND_US


def test_both_ends_are_one_connection_each_with_what_its_own_agent_saw(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(BROKER))
    row = only(history.current())
    assert (row["key"], row["state"], row["ends"]) == (f"{1:016x}", "open", "both")
    assert (row["client"]["peer"], row["client"]["workload"]["comm"]) == ("10.0.0.9:9092", "app")
    assert (row["server"]["peer"], row["server"]["workload"]["comm"]) == ("10.9.0.1:1", "java")
    assert row["client"]["opened_us"] == NOON_US - 3_600_000_000


def test_a_forged_age_moves_no_time_beyond_those_of_timestamps(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(closed(CLIENT, ts=source.YEAR_9999_US, age_us=-source.MOST))
    assert only(history.current())["client"]["opened_us"] == source.YEAR_9999_US


def test_a_connection_that_is_open_is_no_state(spark: SparkSession) -> None:
    history = History(spark)
    assert history.batch(opened(CLIENT), opened(BROKER)) == []
    assert history.batch(opened(CLIENT, still_open_ts=SECOND_TS), at_s=1) == []
    row = only(history.batch(closed(CLIENT), at_s=2))
    assert (row["state"], row["ends"]) == ("half closed", "both")
    assert (row["server"]["local"], row["server"]["close"]) == ("10.0.0.9:9092", None)


def test_a_connection_of_which_one_end_is_watched_says_so_and_an_end_that_comes_late_joins(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT))
    assert only(history.current())["ends"] == "client only"
    assert only(history.batch(closed(BROKER)))["state"] == "half closed"
    row = only(history.batch(closed(CLIENT, closed_by="local")))
    assert (row["ends"], row["state"]) == ("both", "closed")
    assert (row["client"]["close"]["closed_by"], row["server"]["close"]["closed_by"]) == ("local", "peer")


def test_the_open_of_an_end_may_come_after_the_close_of_the_other(spark: SparkSession) -> None:
    history = History(spark)
    assert only(history.batch(closed(CLIENT)))["ends"] == "client only"
    row = only(history.batch(opened(BROKER), at_s=1))
    assert (row["ends"], row["state"]) == ("both", "half closed")


def test_an_end_is_as_its_newest_event_has_it(spark: SparkSession) -> None:
    history = History(spark)
    topics = [{"topic": "orders", "requests": 2, "bytes": 9}, {"topic_id": "a" * 32}, {"requests": 1}]
    history.batch(opened(CLIENT))
    history.batch(opened(CLIENT, still_open_ts=SECOND_TS, requests=2, topics=topics, group="billing"), at_s=1)
    end = only(history.current())["client"]
    assert (end["requests"], end["topics"], end["group"]) == (2, ["orders", "a" * 32], "billing")
    names = {
        "pod": "orders-7c9f-x2x4z",
        "labels": {"app": "orders"},
        "owner_kind": "Deployment",
        "owner_name": "orders",
    }
    end = only(history.batch(closed(CLIENT, requests=5, workload={"pid": 101, **names}), closed(BROKER)))["client"]
    assert end["workload"].asDict().items() >= names.items()
    assert end["requests"] == 5


def test_a_close_alone_is_a_connection(spark: SparkSession) -> None:
    row = only(History(spark).batch(closed(BROKER)))
    assert (row["ends"], row["state"]) == ("server only", "closed")
    assert row["server"]["opened_us"] == NOON_US - 3_600_000_000


def test_a_listed_end_joins_when_it_has_its_flow_id(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT, flow_id=None, found="listed"), opened(BROKER))
    assert [row["ends"] for row in history.current()] == ["server only", "client only"]
    history.batch(opened(CLIENT, found="midstream"))
    row = only(history.current())
    assert (row["ends"], row["client"]["found"]) == ("both", "midstream")


def test_a_listed_end_that_never_spoke_joins_when_it_closes(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(BROKER))
    restarted: Event = {"agent_id": "restarted", "conn_id": "1", "flow_id": None, "found": "listed"}
    history.batch(opened(CLIENT, **restarted), at_s=5)
    row = only(history.batch(closed(CLIENT, **restarted), closed(BROKER), at_s=9))
    assert (row["key"], row["ends"], row["client"]["agent_id"]) == (f"{1:016x}", "both", "restarted")


def test_after_a_restart_of_an_agent_its_new_word_on_an_end_replaces_the_old_one(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(BROKER))
    row = only(history.batch(closed(CLIENT, agent_id="restarted", conn_id="1"), at_s=5))
    assert (row["client"]["agent_id"], row["ends"]) == ("restarted", "both")


def test_after_a_restart_of_an_agent_what_says_nothing_is_no_second_connection(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(BROKER))
    listed = opened(CLIENT, agent_id="restarted", conn_id="1", flow_id=None, found="listed")
    history.batch(listed, at_s=5)
    row = only(history.current())
    assert (row["key"], row["ends"]) == (f"{1:016x}", "both")
    assert (row["client"]["agent_id"], row["client"]["found"]) == ("restarted", "listed")
    # It was another one, between the same addresses.
    spoke = opened(CLIENT, 2, agent_id="restarted", conn_id="1", local=listed["local"], found="midstream")
    history.batch(spoke, at_s=10)
    assert {row["key"]: row["client"]["agent_id"] for row in history.current()} == {
        f"{1:016x}": CLIENT,
        f"{2:016x}": "restarted",
    }


def test_what_another_listed_is_another_connection(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(opened(CLIENT), opened(CLIENT, 2), closed(CLIENT, 2))
    others = {
        "another node": opened(CLIENT, node="elsewhere"),
        "another network": opened(CLIENT, netns=7),
        "another end": opened(CLIENT, peer="10.0.0.9:9093"),
        "the other side": opened(CLIENT, side="server"),
        "after it was closed": opened(CLIENT, 2),
    }
    listed = {"conn_id": "1", "flow_id": None, "found": "listed"}
    history.batch(*({**event, **listed, "agent_id": name} for name, event in others.items()), at_s=5)
    known = [f"{1:016x}", f"{2:016x}"]
    assert [row["key"] for row in history.current()] == sorted([*known, *(f"{name}/1" for name in others)])


def test_what_nobody_spoke_of_for_long_is_gone(spark: SparkSession) -> None:
    history = History(spark, open_limit=100, closed_limit=30)
    history.batch(opened(CLIENT, 1), opened(CLIENT, 2), closed(CLIENT, 3))
    history.batch(opened(CLIENT, 2, still_open_ts=SECOND_TS), at_s=50)
    assert only(history.batch(closed(BROKER, 1), at_s=120))["ends"] == "server only"
    history.batch(agent_event(BROKER), at_s=210)
    history.batch(agent_event(BROKER), at_s=260)
    assert {row["agent_id"] for row in history.agents.collect()} == {BROKER}


def test_a_close_that_comes_twice_or_late_makes_no_second_connection(spark: SparkSession) -> None:
    history = History(spark, closed_limit=30)
    reset = closed(CLIENT, 1, how="rst_received")
    history.batch(opened(CLIENT, 1), opened(BROKER, 1), opened(BROKER, 2))
    ends = [reset, closed(BROKER, 1, closed_by="local"), closed(BROKER, 2, closed_by="local")]
    rows = history.batch(*ends, agent_event(CLIENT), agent_event(BROKER), at_s=5)
    assert [row["ends"] for row in rows] == ["both", "server only"]
    assert [bool(row["verdict"]) for row in history.batch(agent_event(BROKER, until_s=25), at_s=25)] == [True, True]
    assert only(history.batch(closed(BROKER, 3), at_s=60))["key"] == f"{3:016x}"
    assert only(history.batch(reset, closed(CLIENT, 2), at_s=61))["key"] == f"{3:016x}"


def test_a_half_closed_connection_is_kept_as_long_as_its_open_end_is_reported(spark: SparkSession) -> None:
    history = History(spark, open_limit=100)
    history.batch(opened(BROKER, 1), closed(CLIENT, 1, how="timeout"), agent_event(BROKER))
    history.batch(opened(BROKER, 1, still_open_ts=SECOND_TS), closed(CLIENT, 2), at_s=90)
    rows = history.batch(closed(BROKER, 1), at_s=150)
    assert (rows[0]["state"], rows[0]["verdict"]["cause"]) == ("closed", "middlebox_silent_drop")


def test_a_batch_of_many_hours_gives_each_close_a_verdict(spark: SparkSession) -> None:
    history = History(spark)
    events = [closed(CLIENT, 1, closed_by="local"), closed(BROKER, 1)]
    row = only(history.batch(*events, agent_event(CLIENT, until_s=50_000), at_s=[0, 0, 50_000]))
    assert row["verdict"]["cause"] == "client_idle_limit"


def test_a_row_has_as_many_topics_as_an_agent_names(spark: SparkSession) -> None:
    topics = [{"topic": f"topic-{number}", "requests": 1, "bytes": 1} for number in range(100)]
    end = only(History(spark).batch(closed(CLIENT, topics=topics)))["client"]
    assert end["topics"] == [f"topic-{number}" for number in range(21)]
