"""Rows of micro-batches are committed together, each once, however often one is done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import buffered_table, event_rows
from kafka_probe_pipeline.buffered_table import BufferedTable, Commit
from kafka_probe_pipeline.config import PipelineConfig, load
from kafka_probe_pipeline.output import take_over
from kafka_probe_pipeline.source import Clock
from tests.builders.spark_events import CLIENT, NOON_US, SECOND_US, events, opened

pytestmark = pytest.mark.spark


@pytest.fixture
def config(spark: SparkSession, tmp_path: Path) -> PipelineConfig:
    config = load({"output": str(tmp_path), "table_interval": 30})
    metadata = Path(config.connections_checkpoint, "metadata")
    metadata.parent.mkdir()
    metadata.write_text(json.dumps({"id": "a checkpoint"}))
    take_over(spark, config)
    return config


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    reported = events(spark, *(opened(CLIENT, number) for number in numbers))
    return reported.withColumn("received_us", F.lit(NOON_US)).transform(event_rows.opens)


class Job:
    """A run of the job, up to its crash."""

    def __init__(self, spark: SparkSession, config: PipelineConfig) -> None:
        self.commits: dict[str, Commit] = {}
        self.spark, self.table = spark, BufferedTable.of(spark, config, "opens", self.commits)

    def batch(self, batch_id: int, *numbers: int, at_s: float = 0) -> None:
        if numbers:
            self.table.add(rows(self.spark, *numbers), batch_id)
        self.table.commit_if_due(Clock(batch_id, NOON_US + round(at_s * SECOND_US)))

    def committed(self) -> list[str]:
        return sorted(row["conn_id"] for row in self.table.table.read().collect())

    def known(self, batch_id: int = 99) -> list[str]:
        return sorted(row["conn_id"] for row in self.table.read(batch_id=batch_id).collect())


def names(*numbers: int) -> list[str]:
    return [f"{CLIENT}-{number}" for number in numbers]


def test_rows_are_read_at_once_and_committed_once_per_interval(spark: SparkSession, config: PipelineConfig) -> None:
    job = Job(spark, config)
    job.batch(0, 1)  # the first rows after a start do not wait
    job.batch(1, 2, at_s=10)
    job.batch(2, 3, at_s=20)
    job.batch(3, at_s=29)
    assert (job.committed(), job.known(), job.known(1)) == (names(1), names(1, 2, 3), names(1, 2))
    job.batch(4, at_s=30)
    assert (job.committed(), job.known()) == (names(1, 2, 3), names(1, 2, 3))
    job.batch(5, 4, at_s=31)
    assert (job.committed(), job.known()) == (names(1, 2, 3), names(1, 2, 3, 4))


def test_a_job_that_starts_again_commits_what_was_not_and_nothing_twice(
    spark: SparkSession, config: PipelineConfig
) -> None:
    job = Job(spark, config)
    job.batch(0, 1)
    job.batch(1, 2, at_s=10)
    again = Job(spark, config)
    again.batch(1, 2, at_s=10)
    assert (again.committed(), again.known()) == (names(1, 2), names(1, 2))
    third = Job(spark, config)
    third.batch(1, 2, at_s=10)
    assert third.known() == names(1, 2)
    third.batch(2, 3, at_s=11)
    assert third.committed() == third.known() == names(1, 2, 3)


def test_many_rows_are_committed_before_the_interval_ends(
    spark: SparkSession, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered_table, "MOST_ROWS", 2)
    job = Job(spark, config)
    job.batch(0, 1)
    job.batch(1, 2, 3, at_s=1)
    assert job.committed() == names(1)
    job.batch(2, 4, at_s=2)
    assert job.committed() == names(1, 2, 3, 4)
