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


def test_a_draft_that_a_killed_job_left_is_no_version_and_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    state = Versions(spark, str(tmp_path), SCHEMA)
    spark.createDataFrame([(1,)], SCHEMA).write.parquet(str(tmp_path / "_draft_of_another"))
    assert state.newest() is None
    state.write(spark.createDataFrame([(2,)], SCHEMA), 0)
    assert state.batch(0).collect() == [(2,)]
    state.remove_old()
    assert not (tmp_path / "_draft_of_another").exists()


def test_a_state_of_other_types_is_refused_in_one_sentence_and_other_columns_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    state = Versions(spark, str(tmp_path), SCHEMA)
    state.require_types()
    state.write(spark.createDataFrame([("x",)], "more string"), 0)
    state.require_types()
    assert state.batch(0).collect() == [(None,)]
    state.write(spark.createDataFrame([("x",)], "n string"), 1)
    with pytest.raises(StartError, match=r"batch_id=1 has columns of other types, written by another release: n\. "):
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
    spark.range(1).select(F.lit(1).alias(column)).write.parquet(str(tmp_path / state / "batch_id=0"))
    config = load({"output": str(tmp_path)})
    with pytest.raises(StartError, match=f"{state}/batch_id=0 has columns of other types.*: {column}"):
        supervisor.require_checkpoints(spark, config, TrafficQuery.of(spark, config, Progress()))
