from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_probe_pipeline import session
from kafka_probe_pipeline.errors import UsageError


@pytest.mark.parametrize("arguments", [("local[4]", None), (None, Path("jars"))])
def test_a_program_of_spark_submit_does_not_choose_master_or_jars_anew(
    arguments: tuple[str | None, Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(UsageError, match="pass --master and --jars to spark-submit"):
        session.start(*arguments)


@pytest.mark.spark
def test_a_shuffle_makes_a_partition_per_core(spark: SparkSession) -> None:
    anew = session.for_its_cores(spark.newSession())
    assert anew.conf.get("spark.sql.shuffle.partitions") == str(spark.sparkContext.defaultParallelism)
