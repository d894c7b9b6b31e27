"""Accesses the file system of the output directory through Hadoop: a local one, HDFS or an object store."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kafka_probe_pipeline.errors import OutputError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _reported(access: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function raise OutputError with the path and Hadoop's reason, if the file system fails."""

    @wraps(access)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return access(*args, **kwargs)
        except Py4JJavaError as error:
            raise OutputError(f"Cannot access {args[1]}: {error.java_exception.toString()}") from None

    return call


@_reported
def exists(spark: SparkSession, name: str) -> bool:
    """Return True if there is a file or directory of the name."""
    path = _path(spark, name)
    return bool(_file_system(spark, path).exists(path))


@_reported
def names(spark: SparkSession, pattern: str) -> list[str]:
    """Return the last parts of the paths that match the pattern, such as `offsets/[0-9]*`."""
    path = _path(spark, pattern)
    return [status.getPath().getName() for status in _file_system(spark, path).globStatus(path) or ()]


@_reported
def remove(spark: SparkSession, name: str) -> None:
    """Remove a file, or a directory and what it contains; it may be missing."""
    path = _path(spark, name)
    _file_system(spark, path).delete(path, True)


@_reported
def absolute(spark: SparkSession, name: str) -> str:
    """Return the path as a URI."""
    path = _path(spark, name)
    return str(_file_system(spark, path).makeQualified(path).toString())


def scheme(spark: SparkSession, name: str) -> str:
    """Return the scheme of a path's file system, such as `file` or `s3a`, whose classes may be missing."""
    default = _jvm(spark).org.apache.hadoop.fs.FileSystem.getDefaultUri(spark.sparkContext._jsc.hadoopConfiguration())
    return str(_path(spark, name).toUri().getScheme() or default.getScheme())


@_reported
def read(spark: SparkSession, name: str) -> str:
    """Return the text of a small file; an empty one if it is missing."""
    if not exists(spark, name):
        return ""
    path = _path(spark, name)
    file = _file_system(spark, path).open(path)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(file, "UTF-8"))
    finally:
        file.close()


@_reported
def write(spark: SparkSession, name: str, text: str) -> None:
    """Write or overwrite a small file of ASCII."""
    path = _path(spark, name)
    file = _file_system(spark, path).create(path, True)
    try:
        file.writeBytes(text)
    finally:
        file.close()


def require_shared(spark: SparkSession, directory: str, query: str) -> None:
    """Raise OutputError unless this process sees the files that executors write to the directory.

    Spark does not notice if the path is one of a local disk on each host. query: the name of the query that checks;
    other queries may check at the same time.
    """
    probe = f"{directory}/_shared_{query}"
    path = _path(spark, probe)
    if spark.sparkContext._jsc.isLocal() or _file_system(spark, path).getUri().getScheme() != "file":
        return
    rows = spark.range(0, 1000, 1, 4 * spark.sparkContext.defaultParallelism)
    rows.write.mode("overwrite").parquet(probe)
    try:
        written = spark.read.schema(rows.schema).parquet(probe)
        if not written.inputFiles() or written.count() != rows.count():
            raise OutputError(
                f"The driver cannot read all files that executors wrote to {probe}. On a cluster --output must be on a "
                "file system that all of them share, such as hdfs://... or a volume that is mounted everywhere."
            )
    finally:
        remove(spark, probe)


def _path(spark: SparkSession, name: str) -> Any:
    # By its whole name: Py4J would look for a class `org`, `org.apache` and so on, each time in all jars.
    return getattr(_jvm(spark), "org.apache.hadoop.fs.Path")(name)


def _jvm(spark: SparkSession) -> Any:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return jvm


def _file_system(spark: SparkSession, path: Any) -> Any:
    return path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
