"""Tables of facts: each micro-batch once, whole, and read as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kafka_probe_pipeline.tables import TABLES, Table
from kafka_probe_pipeline.traffic import traffic
from tests.builders.spark_events import NOON_US, events, flow

pytestmark = pytest.mark.spark

DAY_US = 86_400_000_000


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[Table]:
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "a checkpoint")
    yield Table(spark, str(tmp_path), "traffic")
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]  # removes it


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    return events(spark, *(flow(number, ts=NOON_US + number * DAY_US) for number in numbers)).transform(traffic, 60)


def test_a_batch_that_is_done_again_is_there_once_and_as_it_was_written(spark: SparkSession, table: Table) -> None:
    assert not table.exists()
    assert table.read().count() == 0
    first = table.append(rows(spark, 1, 2), 7)
    schema, _ = TABLES["traffic"]
    assertDataFrameEqual(first.select(*schema.names), rows(spark, 1, 2).select(*schema.names))
    assertDataFrameEqual(table.append(rows(spark, 3), 7), first)
    table.append(rows(spark, 3), 8)
    assert sorted((str(row["date"]), row["batch_id"]) for row in table.read().collect()) == [
        ("2026-01-02", 7),
        ("2026-01-03", 7),
        ("2026-01-04", 8),
    ]


def test_a_batch_without_rows_commits_nothing(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    assert table.append(rows(spark), 0).count() == 0
    assert [*tmp_path.iterdir()] == []
