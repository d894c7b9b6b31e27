"""Maintenance of tables: fewer files, the same rows, only the dates that are kept, readers that are not disturbed."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_probe_pipeline import maintenance
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.maintenance import Maintenance
from kafka_probe_pipeline.output import take_over
from kafka_probe_pipeline.tables import Table
from kafka_probe_pipeline.traffic import traffic
from tests.builders.spark_events import (
    NOON_US,
    events,
    flow,
)
from tests.lab.processes import wait_until

pytestmark = pytest.mark.spark

DAY_US, HOUR_S = 86_400_000_000, 3600
NOON = datetime.fromtimestamp(NOON_US / 1e6, UTC)
TODAY = NOON.date()
BATCHES, DAYS = 3, 4


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an output with a table that has a file per micro-batch and day: today and the days before."""
    output = tmp_path_factory.mktemp("written")
    config = load({"output": str(output)})
    Path(config.checkpoint).mkdir()
    Path(config.checkpoint, "metadata").write_text('{"id": "a checkpoint"}')
    take_over(spark, config)
    for batch_id in range(BATCHES):
        Table(spark, config, "traffic").append(rows(spark, batch_id), batch_id, NOON_US)
    return output


@pytest.fixture
def table(spark: SparkSession, written: Path, tmp_path: Path) -> Table:
    """Return a copy of the table of its own. Its path is relative, as by default."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    config = load({"output": os.path.relpath(tmp_path)})
    take_over(spark, config)
    return Table(spark, config, "traffic")


def rows(spark: SparkSession, batch_id: int) -> DataFrame:
    sent = (flow(DAYS * batch_id + day, ts=NOON_US - day * DAY_US) for day in range(DAYS))
    return events(spark, *sent).transform(traffic, 60).coalesce(1)


def maintain(table: Table, **settings: object) -> None:
    Maintenance(table.spark, load({"output": table.config.output, **settings})).run(NOON)


def counts(rows: DataFrame) -> dict[str, int]:
    return {str(row["date"]): row["count"] for row in rows.groupBy("date").count().collect()}


def files(table: Table) -> int:
    return len(table.read().inputFiles())


def test_files_of_a_date_become_one_and_no_row_is_lost_or_doubled(table: Table) -> None:
    before = counts(table.read())
    assert (files(table), before) == (BATCHES * DAYS, {str(TODAY - timedelta(day)): BATCHES for day in range(DAYS)})
    maintain(table)
    assert (files(table), counts(table.read())) == (DAYS, before)
    table.append(rows(table.spark, BATCHES), BATCHES, NOON_US)
    assert counts(table.read()) == dict.fromkeys(before, BATCHES + 1)


def test_only_dates_older_than_a_table_keeps_are_deleted(table: Table) -> None:
    maintain(table, retain="traffic=2d")
    assert sorted(counts(table.read())) == [str(TODAY - timedelta(day)) for day in (2, 1, 0)]


def test_a_reader_that_opened_a_table_before_its_maintenance_finishes(table: Table) -> None:
    names = table.read().inputFiles()
    maintain(table, retain="traffic=1d")
    assert table.spark.read.parquet(*names).count() == BATCHES * DAYS


def test_files_that_no_reader_of_today_needs_leave_the_directory(table: Table) -> None:
    maintain(table)
    directory = Path(table.path).resolve()
    assert len([*directory.glob("date=*/*.parquet")]) == BATCHES * DAYS + DAYS
    two_days_ago_s = time.time() - 48 * HOUR_S
    for number, path in enumerate(sorted(directory.glob("_delta_log/[0-9]*"))):
        os.utime(path, (two_days_ago_s + number,) * 2)
    commits = len([*directory.glob("_delta_log/*.json")])
    # The removal of a file has its time in the log, where no test can make it older.
    shorter = "'delta.checkpointInterval' = '1', 'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    table.spark.sql(f"ALTER TABLE delta.`{directory}` SET TBLPROPERTIES ({shorter})")
    maintain(table)
    assert len([*directory.glob("date=*/*.parquet")]) == DAYS
    assert len([*directory.glob("_delta_log/*.json")]) < commits
    assert counts(table.read()) == {str(TODAY - timedelta(day)): BATCHES for day in range(DAYS)}


def test_a_late_row_does_not_make_its_whole_date_be_written_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SMALL_BYTES", 1)
    monkeypatch.setattr(maintenance, "_LARGE_BYTES", 2)
    maintain(table)
    assert files(table) == BATCHES * DAYS


def test_the_job_maintains_its_tables_at_intervals_and_goes_on_after_a_failure(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Path(table.path)
    assert files(table) == BATCHES * DAYS
    hidden = directory.rename(tmp_path / "hidden")
    (directory / "_delta_log").mkdir(parents=True)
    (directory / "_delta_log" / f"{0:020}.json").write_text("no commit\n")
    with Maintenance(table.spark, load({"output": table.config.output, "maintenance_interval": 0.1, "retain": ""})):
        wait_until(lambda: "Table traffic was not maintained" in caplog.text, "the failure", timeout_s=60)
        directory.rename(tmp_path / "broken")
        hidden.rename(directory)
        wait_until(lambda: files(table) == DAYS, "the maintenance", timeout_s=120)


def test_a_job_that_ends_by_itself_maintains_its_tables_at_its_end(table: Table) -> None:
    with Maintenance(table.spark, load({"output": table.config.output, "once": True, "retain": ""})):
        assert files(table) == BATCHES * DAYS
    assert files(table) == DAYS
