"""Ids become names across nodes, as transformations."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import names
from kafka_probe_pipeline.traffic import traffic
from tests.builders.spark_events import NOON_US, events, flow

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS, SALES, UNNAMED = "aa" * 16, "bb" * 16, "cc" * 16


def topic(topic_id: str | None = None, name: str | None = None) -> dict[str, object]:
    return {"topic_id": topic_id, "topic": name, "requests": 1}


def contents(pairs: DataFrame) -> set[tuple[str, str]]:
    return {(row["topic_id"], row["topic"]) for row in pairs.collect()}


def test_pairs_come_from_events_of_every_kind_and_an_id_has_its_first_name(spark: SparkSession) -> None:
    sent = (
        flow(0, topics=[topic(ORDERS, "orders"), topic(SALES), topic(name="old client")]),
        flow(1, topics=[topic(ORDERS, "orders")]),
        flow(2, kind="topics", topics=[{"topic_id": SALES, "topic": "sales"}]),
        flow(3, kind="request", topics=[{"topic_id": SALES, "topic": "a"}]),
    )
    pairs = events(spark, *sent).withColumn("received_us", NOON_US + F.col("seq")).transform(names.pairs)
    assert contents(pairs) == {(ORDERS, "orders"), (SALES, "sales")}
    known = spark.createDataFrame([(NOON, ORDERS, "orders")], names.SCHEMA)
    assert contents(pairs.transform(names.unlike, known)) == {(SALES, "sales")}


def test_flows_of_a_topic_with_and_without_its_name_are_one_row(spark: SparkSession) -> None:
    known = spark.createDataFrame([(NOON, ORDERS, "orders")], names.SCHEMA)
    sent = flow(0, topics=[topic(ORDERS)]), flow(1, topics=[topic(ORDERS, "orders")])
    rows = events(spark, *sent).transform(traffic, 60, partial(names.named, known=known)).where("level = 'topic'")
    assert [(row["topic"], row["topic_id"], row["requests"]) for row in rows.collect()] == [("orders", ORDERS, 2)]


def test_rows_are_named_by_their_id_and_no_row_is_lost_or_doubled(spark: SparkSession) -> None:
    known = spark.createDataFrame([(NOON, ORDERS, "orders"), (NOON, SALES, "sales")], names.SCHEMA)
    sent = flow(topics=[topic(ORDERS), topic(SALES, "sales"), topic(UNNAMED), topic(name="old client")])
    rows = events(spark, sent).transform(traffic, 60)
    by_id = {(row["level"], row["topic_id"], row["topic"]) for row in rows.transform(names.named, known).collect()}
    named = {("topic", ORDERS, "orders"), ("topic", SALES, "sales"), ("topic", UNNAMED, None)}
    assert by_id == {("api", None, None), ("topic", None, "old client"), *named}
    assert {row["topic"] for row in rows.transform(names.named_late, known).collect()} == {"orders"}
