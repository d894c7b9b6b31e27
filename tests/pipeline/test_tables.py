"""Tables of facts: each micro-batch once, whole, and read as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.tables import DAYS_AHEAD, DAYS_LATE, TABLES, Table
from kafka_probe_pipeline.traffic import traffic
from tests.builders.spark_events import NOON_US, events, flow
from tests.pipeline.frames import assert_same

pytestmark = pytest.mark.spark

DAY_US = 86_400_000_000


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    config = load({"output": str(tmp_path)})
    Path(config.checkpoint).mkdir()
    Path(config.checkpoint, "metadata").write_text('{"id": "a checkpoint"}')
    return Table(spark, config, "traffic")


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    """Return rows of so many days after noon."""
    sent = (flow(seq, ts=NOON_US + number * DAY_US) for seq, number in enumerate(numbers))
    return events(spark, *sent).transform(traffic, 60)


def test_a_batch_that_is_done_again_is_there_once_and_as_it_was_written(spark: SparkSession, table: Table) -> None:
    assert not table.exists()
    assert table.read().count() == 0
    first = table.append(rows(spark, 0, 1), 7, NOON_US)
    columns = TABLES["traffic"].schema.names
    assert_same(first.select(*columns), rows(spark, 0, 1).select(*columns))
    assert_same(table.append(rows(spark, 3), 7, NOON_US), first)
    table.append(rows(spark, -1), 8, NOON_US)
    assert dates(table) == [("2025-12-31", 8), ("2026-01-01", 7), ("2026-01-02", 7)]


def test_a_wrong_clock_makes_no_date_of_its_own(spark: SparkSession, table: Table) -> None:
    table.append(rows(spark, -20_000, -40, -DAYS_LATE, DAYS_AHEAD, 2, 27_000), 0, NOON_US)
    assert dates(table) == [("2025-12-01", 0)] * 3 + [("2026-01-02", 0)] * 3
    years = sorted(row["window_start"].year for row in table.read().collect())
    assert (years[0], years[-1]) == (1971, 2099)


def test_a_batch_without_rows_commits_nothing(spark: SparkSession, table: Table) -> None:
    assert table.append(rows(spark), 0, NOON_US).count() == 0
    assert not table.exists()


def dates(table: Table) -> list[tuple[str, int]]:
    return sorted((str(row["date"]), row["batch_id"]) for row in table.read().collect())
