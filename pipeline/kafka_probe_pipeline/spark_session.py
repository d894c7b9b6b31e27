"""Starts and stops the Spark session: a small local one, or the session of spark-submit if that runs the job.

Owns the settings of Spark: memory, time zone, logging, and where the Kafka connector and Delta Lake come from, which
the pyspark package does not ship. Master, resources and partitions that are set by spark-submit stay. Never reads or
writes data.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from threading import Thread
from typing import Any
from zipfile import ZipFile

import pyspark
from py4j.java_gateway import JavaClass, java_import
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from kafka_probe.errors import StartError, UsageError

PACKAGES = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__},io.delta:delta-spark_2.13:4.0.1"
S3_CHECKPOINTS = f"org.apache.spark:spark-hadoop-cloud_2.13:{pyspark.__version__}"
FETCHED_JARS = Path(__file__).parents[2] / "build" / "jars" / f"spark-{pyspark.__version__}"
LOGGING = Path(__file__).with_name("log4j2.properties")

# Any session: sums that overflow become null instead of ending the job, and a time is printed the same everywhere.
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    # The long tasks of traffic and of maintenance do not hold up alerts.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.ansi.enabled": "false",
    # A forged event may name a key twice. The default would end the job.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    # Each micro-batch uses some hundred compiled expressions. Spark keeps 100, and would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Else each function of a column first reports its place in the code to the JVM: most of the time that a plan takes.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Else Spark clones the session for each DataFrame that is persisted. No table has buckets.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    # To read a table's log is a Spark job of this many tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    # No checksum of the table beside each commit: it would double the files of the log, and nothing reads it.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # Spark's own type overflows after 2262 in readers that use nanoseconds, and has no statistics that let them skip.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Histograms are summed as objects: from so many groups on Spark would sort all rows instead. The default is 128.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "10000",
    # Rows that a task reads at once of persisted events. The default is 10,000: with events of a few KiB, each of the
    # tasks took a hundred megabytes.
    "spark.sql.inMemoryColumnarStorage.batchSize": "500",
    # VACUUM lists files in this many tasks. The default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
# A local session is one JVM for one small job: no page on port 4040, and nothing listening beyond loopback.
_LOCAL = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Each of the job's queries may run two tasks at a time.
    "spark.default.parallelism": "2",
    # Without a file of checksums beside each file.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # By default S3A buffers uploads through LocalFileSystem, which the class above replaces. A buffer in memory takes
    # the size of a part at once.
    "spark.hadoop.fs.s3a.fast.upload.buffer": "array",
    "spark.hadoop.fs.s3a.multipart.size": "8M",
    "spark.ui.enabled": "false",
    # Without its page Spark keeps in memory what the page would show, too.
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.showConsoleProgress": "false",
}
# In a brief session the JVM's thorough compiler costs more than it saves. With the quick compiler alone the JVM keeps
# at most 48 MB of code by default. That is full within minutes: then it would compile nothing more.
_QUICK_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
# Takes less time in all, and pauses of half a second do not matter here.
_COLLECTOR = "-XX:+UseSerialGC"
_ANY_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_VARIABLES_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
# Many wide expressions on few rows: to compile them takes longer than to interpret them, and to plan each stage anew
# longer than what a better plan saves.
_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# Classes that PySpark names without their package in each function of a column.
_NAMED_BY_PYSPARK = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
    "org.apache.spark.sql.functions",
)
_PARTITIONS = "spark.sql.shuffle.partitions"
_STOP_S, _END_S = 5, 3


def start(master: str | None = None, jars_dir: Path | None = None, *, brief: bool = False) -> SparkSession:
    """Return a session on `master`; None means what spark-submit named, else `local[4]`.

    brief: it works for some minutes at most.

    Raises:
        StartError: there is no Java, the master does not answer, or `jars_dir` holds no jars.
        UsageError: spark-submit started this program: both are settings of spark-submit then.
    """
    # pyspark: set in a program that spark-submit started. Its JVM runs already, with the class path it was given.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted and (master or jars_dir):
        raise UsageError(
            "--master and --jars-dir have no effect in a program that spark-submit started: "
            "pass --master and --jars to spark-submit, before the name of the program."
        )
    master = None if submitted else master or "local[4]"
    is_local = master is not None and master.startswith("local")
    builder = SparkSession.builder.appName("kafka-probe-pipeline")
    options = dict(_ALWAYS)
    if master:
        builder = builder.master(master)
        if is_local:
            options |= _LOCAL | {"spark.driver.extraJavaOptions": _java_options(brief=brief)}
        options |= {"spark.jars": ",".join(jars)} if (jars := _jars(jars_dir)) else {}
    for name, value in options.items():
        builder = builder.config(name, value)
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # else executors take the first python3 of the path
    try:
        session = builder.getOrCreate()
    except (PySparkException, PySparkRuntimeError) as error:
        raise StartError(f"Spark did not start: {error}; is a Java 17 runtime installed?") from None
    _find_once(session.sparkContext._jvm)
    if not is_local:
        _send_package(session)
    return for_its_cores(session) if is_local else session


def _find_once(jvm: Any) -> None:
    """Register with Py4J the classes that PySpark looks up often.

    Else Py4J looks for each in one imported package after the other, each time in all jars. That took a sixth of the
    JVM's time.
    """
    for name in _NAMED_BY_PYSPARK:
        java_import(jvm, name)
    # `java_import` takes no packages. An attribute keeps the package, so that Py4J finds TypeUtil without a search.
    jvm.py4j = jvm.py4j
    jvm.py4j.reflection = jvm.py4j.reflection
    jvm.py4j.reflection.TypeUtil = jvm.py4j.reflection.TypeUtil


def _java_options(*, brief: bool) -> str:
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", *(_QUICK_COMPILER if brief else ())]
    # Java refuses two collectors. If one of these variables sets a collector, add none.
    if not any(_ANY_COLLECTOR.search(os.environ.get(name, "")) for name in _VARIABLES_OF_JAVA):
        options.append(_COLLECTOR)
    return " ".join(options)


def _send_package(session: SparkSession) -> None:
    """Send this package to the executors, which judge connections with it."""
    package = Path(__file__).parent
    archive = Path(SparkFiles.getRootDirectory()) / "sent" / f"{package.name}.zip"  # removed with the context
    archive.parent.mkdir(exist_ok=True)
    with ZipFile(archive, "w", strict_timestamps=False) as written:
        for file in package.glob("*.py"):
            written.write(file, f"{package.name}/{file.name}")
    session.sparkContext.addPyFile(str(archive))


def stop(session: SparkSession) -> None:
    """Stop Spark within some seconds, whatever it is doing.

    Until then it logs nothing: its threads print thousands of lines about their interruption.
    """
    stopping = Thread(target=_stop, args=(session,), daemon=True)
    stopping.start()
    stopping.join(_STOP_S)
    if process := _jvm_process():
        process.stdin.close()  # the JVM then ends by itself, and removes its files
        with suppress(TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.wait()


def _stop(session: SparkSession) -> None:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)
    # Uncaught exceptions of threads are printed without a logger.
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    session.stop()


def kill() -> None:
    """Kill the JVM, if this process started it.

    It does not wait: a signal handler that interrupted `Popen.wait` would wait for the lock of that for ever.
    """
    if process := _jvm_process():
        process.kill()


def _jvm_process() -> Any:
    return getattr(SparkContext._gateway, "proc", None)


def for_its_cores(session: SparkSession) -> SparkSession:
    """Return the session, with a partition per available core after each shuffle, unless the number is set.

    Else it makes 200 of a micro-batch, most of them empty.
    """
    if not session.sparkContext._conf.contains(_PARTITIONS):
        session.conf.set(_PARTITIONS, session.sparkContext.defaultParallelism)
    return session


def for_few_rows(session: SparkSession) -> SparkSession:
    """Return the session, with settings for micro-batches of few rows and many columns."""
    for name, value in _FEW_ROWS.items():
        session.conf.set(name, value)
    return for_its_cores(session)


def rows(session: SparkSession, values: Iterable[Mapping[str, Any]], schema: StructType) -> DataFrame:
    """Return a few rows of this process, by the names of the schema.

    They are passed as JSON, which the JVM reads by itself: what `createDataFrame` makes is read by Python on the
    executors.
    """
    text = F.lit(json.dumps(list(values)))
    return session.range(0, 1, 1, 1).select(F.inline(F.from_json(text, ArrayType(schema))))


def require_jars(spark: SparkSession) -> None:
    """Raise StartError unless the jars of the Kafka connector and Delta Lake are on the class path."""
    needed = "org.apache.spark.sql.kafka010.KafkaSourceProvider", "org.apache.spark.sql.delta.DeltaLog"
    if not all(has_class(spark, name) for name in needed):
        raise StartError(
            f"Jars of Spark's Kafka connector or of Delta Lake are missing: run `make setup` in the checkout, "
            f"set --jars-dir to a folder with the jars, or start with `spark-submit --packages {PACKAGES}`."
        )


def has_class(spark: SparkSession, name: str) -> bool:
    """Return True if a Java class is on the class path."""
    return isinstance(getattr(spark.sparkContext._jvm, name), JavaClass)


def _jars(folder: Path | None) -> list[str]:
    jars = sorted(str(jar) for jar in (folder or FETCHED_JARS).glob("*.jar"))
    if folder and not jars:
        raise StartError(
            f"No jars in {folder}: --jars-dir must name a folder with Spark's Kafka connector and Delta Lake."
        )
    return jars
