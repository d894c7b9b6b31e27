"""One job at a time writes to an output, and its checkpoints are where Spark can keep them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_probe.errors import StartError
from kafka_probe_pipeline import supervisor
from kafka_probe_pipeline.archive_query import ArchiveQuery
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.diagnosis_query import Diagnosis
from kafka_probe_pipeline.errors import TakenOverError
from kafka_probe_pipeline.output import prepare_checkpoints, require_owner, take_over
from kafka_probe_pipeline.traffic_query import TrafficQuery
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def test_after_a_takeover_the_job_before_writes_nothing(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    run = Run(broker, tmp_path)
    run.send(records=1)
    run.once(spark)
    traffic, diagnosis = TrafficQuery.of(spark, run.config, run.progress), Diagnosis(run.config, run.progress)
    archive = ArchiveQuery(run.config, run.progress)
    for directory in run.config.directories:
        (Path(directory) / "job").write_text("another")
        with pytest.raises(TakenOverError, match=f"Another job has taken over {directory}"):
            supervisor.start(spark, run.config, traffic, diagnosis, archive)
        for query in (traffic, diagnosis, archive):
            with pytest.raises(TakenOverError):
                query(spark.range(0), 1)
        take_over(spark, run.config)
    require_owner(spark, run.config)


def test_only_new_tables_begin_with_the_records_that_start_names(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    run = Run(broker, tmp_path)
    run.send(records=1)
    run.once(spark, start="latest")
    run.send(records=1)
    with pytest.raises(StartError, match=r"query traffic in .* began with --start latest.* another --output"):
        run.once(spark, start="earliest")
    run.once(spark)
    run.once(spark, start="latest")
    written = TrafficQuery.of(spark, run.config, run.progress).table.read().where("level = 'api'")
    (total,) = written.agg({"request_bytes": "sum"}).collect()
    assert total[0] == 6 * 103  # of the second record alone


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("s3a://bucket/kafka-probe", " without the package org.apache.spark:spark-hadoop-cloud_2.13:"),
        ("gs://bucket/kafka-probe", ": that object store does not rename atomically"),
    ],
)
def test_checkpoints_on_an_object_store_where_spark_cannot_keep_them_are_refused(
    spark: SparkSession, tmp_path: Path, output: str, reason: str
) -> None:
    with pytest.raises(StartError, match="--checkpoint-dir"):
        prepare_checkpoints(spark, load({"output": str(tmp_path), "checkpoint_dir": output}))
    with pytest.raises(StartError, match=f"cannot be in {output}{reason}"):
        prepare_checkpoints(spark, load({"output": output}))
