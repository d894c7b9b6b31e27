"""Versions of a state: whole, in order, and removed when they are old."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe.errors import StartError
from kafka_probe_pipeline import supervisor
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.traffic_query import TrafficQuery
from kafka_probe_pipeline.versions import Versions

pytestmark = pytest.mark.spark

SCHEMA = T.StructType([T.StructField("n", T.LongType())])


def test_the_newest_before_a_batch_is_found_and_old_ones_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    state = Versions(spark, str(tmp_path / "state"), SCHEMA)
    assert state.newest() is None
    assert state.before(10).collect() == []
    for number in (2, 9, 10):
        state.write(spark.createDataFrame([(number,)], SCHEMA), number)
    assert state.before(10).collect() == [(9,)]
    state.remove_old()
    newest = state.newest()
    assert newest is not None
    assert newest.collect() == [(10,)]
    assert [state.exists(number) for number in (2, 9, 10)] == [False, True, True]
    assert state.before(10).collect() == [(9,)]


def test_files_without_a_mark_are_no_version_and_are_removed_once_they_are_old(
    spark: SparkSession, tmp_path: Path
) -> None:
    state = Versions(spark, str(tmp_path), SCHEMA)
    left = [tmp_path / f"files-{number}-left" for number in (1, 3)]
    for directory in left:
        spark.createDataFrame([(0,)], SCHEMA).write.parquet(str(directory))
    state.remove_old()
    assert state.newest() is None
    for number in (2, 3):
        state.write(spark.createDataFrame([(number,)], SCHEMA), number)
    state.remove_old()
    assert state.before(4).collect() == [(3,)]
    assert [directory.exists() for directory in left] == [False, True]  # another job may still write the second


def test_a_version_that_two_jobs_wrote_stays_readable(spark: SparkSession, tmp_path: Path) -> None:
    state = Versions(spark, str(tmp_path), SCHEMA)
    for _ in range(2):
        state.write(spark.createDataFrame([(1,)], SCHEMA), 1)
        state.remove_old()
        assert state.batch(1).collect() == [(1,)]
    for number in (2, 3):
        state.write(spark.createDataFrame([(number,)], SCHEMA), number)
    state.remove_old()
    assert sorted(path.name.split("-")[1] for path in tmp_path.glob("files-*")) == ["2", "3"]
    assert len([*tmp_path.glob("batch_id=*")]) == 2


def test_a_state_of_other_types_is_refused_in_one_sentence_and_other_columns_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    state = Versions(spark, str(tmp_path), SCHEMA)
    state.require_types()
    state.write(spark.createDataFrame([("x",)], "more string"), 0)
    state.require_types()
    assert state.batch(0).collect() == [(None,)]
    state.write(spark.createDataFrame([("x",)], "n string"), 1)
    with pytest.raises(StartError, match=r"/files-1-\w+ has columns of other types, written by another release: n\. "):
        state.require_types()


@pytest.mark.parametrize(
    ("state", "column"),
    [
        ("checkpoint/agents", "agent_id"),
        ("connections_checkpoint/agents", "agent_id"),
        ("connections_checkpoint/connections", "key"),
        ("connections_checkpoint/storms", "id"),
        ("connections_checkpoint/buffers/closes", "agent_id"),
    ],
)
def test_the_job_refuses_a_checkpoint_with_columns_of_other_types(
    spark: SparkSession, tmp_path: Path, state: str, column: str
) -> None:
    Versions(spark, str(tmp_path / state), SCHEMA).write(spark.range(1).select(F.lit(1).alias(column)), 0)
    config = load({"output": str(tmp_path)})
    with pytest.raises(StartError, match=rf"{state}/files-0-\w+ has columns of other types.*: {column}\. "):
        supervisor.require_checkpoints(spark, config, TrafficQuery.of(spark, config, Progress()))


def test_a_state_of_an_older_release_is_refused_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "batch_id=7").mkdir()
    state = Versions(spark, str(tmp_path), SCHEMA)
    assert state.newest() is None
    with pytest.raises(StartError, match="was written by an older release"):
        state.require_types()
