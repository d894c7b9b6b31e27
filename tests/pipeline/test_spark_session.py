from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from kafka_probe.errors import UsageError
from kafka_probe_pipeline import spark_session


@pytest.mark.parametrize("arguments", [("local[4]", None), (None, Path("jars"))])
def test_a_program_of_spark_submit_does_not_choose_master_or_jars_anew(
    arguments: tuple[str | None, Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(UsageError, match="pass --master and --jars to spark-submit"):
        spark_session.start(*arguments)


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
@pytest.mark.parametrize("options", ["-XX:MaxGCPauseMillis=500", "-XX:+UseG1GC"])
def test_java_starts_whatever_collector_the_variables_name(
    variable: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, options)
    for brief in (True, False):
        command = ["java", *spark_session._java_options(brief=brief).split(), "-XX:+PrintFlagsFinal", "-version"]
        flags = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        collectors = re.findall(r"bool (Use(?:Serial|G1)GC) += true", flags)
        assert collectors == ["UseG1GC" if "G1" in options else "UseSerialGC"]
        assert bool(re.search(r"TieredStopAtLevel += 1 ", flags)) == brief


def test_a_signal_that_interrupts_the_wait_for_the_jvm_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        with jvm._waitpid_lock:  # type: ignore[attr-defined]  # as `Popen.wait` does
            killing = Thread(target=spark_session.kill, daemon=True)
            killing.start()
            killing.join(10)
            assert not killing.is_alive()
        assert jvm.wait(10) == -signal.SIGKILL


@pytest.mark.spark
def test_a_shuffle_makes_a_partition_per_core(spark: SparkSession) -> None:
    anew = spark_session.for_its_cores(spark.newSession())
    assert anew.conf.get("spark.sql.shuffle.partitions") == str(spark.sparkContext.defaultParallelism)
