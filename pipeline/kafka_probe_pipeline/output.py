"""Ensures that one job at a time writes to the output, and that all its executors share it.

A job that starts takes the output over, and the one before stops itself. So a job that was left behind on another host,
such as one whose node lost its network, ends as soon as it comes back.
"""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import SparkSession

from kafka_probe.errors import StartError
from kafka_probe_pipeline import hadoop, spark_session
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.errors import OutputError, TakenOverError

# Schemes of Hadoop's file systems that copy instead of renaming. Azure's abfs renames if the account has a hierarchical
# namespace. Of these Spark has a manager of checkpoints for s3a only, whose streams can be aborted.
_OBJECT_STORES = {"cosn", "gs", "obs", "oss", "s3", "s3a", "s3n", "swift", "wasb", "wasbs"}
MANAGER_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
_JOB_ID = uuid4().hex
_EARLIEST = "earliest"


def prepare_checkpoints(spark: SparkSession, config: PipelineConfig) -> None:
    """Let Spark write its checkpoints without renames if they are on S3.

    Raises:
        StartError: Spark cannot do so there.
    """
    checkpoints = config.checkpoint_directory
    scheme = hadoop.scheme(spark, checkpoints)
    if scheme == "s3a":
        if not spark_session.has_class(spark, _MANAGER):
            raise StartError(
                f"Checkpoints cannot be in {checkpoints} without the package {spark_session.S3_CHECKPOINTS}. Add it to "
                "--packages of spark-submit, or set --checkpoint-dir to a directory that outlives the job."
            )
        spark.sparkContext._jsc.hadoopConfiguration().set(MANAGER_SETTING, _MANAGER)
    elif scheme in _OBJECT_STORES:
        raise StartError(
            f"Checkpoints cannot be in {checkpoints}: that object store does not rename atomically. Set "
            "--checkpoint-dir to a directory on a disk, HDFS or a mounted volume that outlives the job."
        )


def take_over(spark: SparkSession, config: PipelineConfig) -> None:
    """Make this process the one job that writes to the tables and the checkpoints."""
    for directory in config.directories:
        hadoop.write(spark, _owner(directory), _JOB_ID)


def require_owner(spark: SparkSession, config: PipelineConfig) -> None:
    """Raise TakenOverError if another job has taken over the tables or checkpoints since this process did."""
    for directory in config.directories:
        if hadoop.read(spark, _owner(directory)) != _JOB_ID:
            raise TakenOverError(f"Another job has taken over {directory}. Only one at a time may use it.")


def require_start(spark: SparkSession, config: PipelineConfig) -> None:
    """Raise StartError if a query has a checkpoint, and began with other records than `--start` demands."""
    for query in config.checkpoints:
        begun = _begun_with(spark, config, query)
        if config.start and begun and config.start != begun and (query != "archive" or config.archives):
            raise StartError(
                f"The tables of the query {query} in {config.output} began with --start {begun}, and the job goes on "
                "from their checkpoint. Leave --start out, or begin new tables with another --output."
            )


def begin(spark: SparkSession, config: PipelineConfig, query: str) -> str:
    """Return the records that a query begins with, earliest or latest; note them if it has no checkpoint yet."""
    begun = _begun_with(spark, config, query)
    if begun is None:
        # A job may have ended before its first look at Kafka.
        begun = config.start or hadoop.read(spark, _start(config, query)) or _EARLIEST
        hadoop.write(spark, _start(config, query), begun)
    return begun


def _begun_with(spark: SparkSession, config: PipelineConfig, query: str) -> str | None:
    # Spark keeps the first offsets of a source before the first micro-batch, which waits for a record.
    if not hadoop.names(spark, f"{config.checkpoints[query]}/sources/0/[0-9]*"):
        return None
    return hadoop.read(spark, _start(config, query)) or _EARLIEST  # earlier releases wrote no note


def _start(config: PipelineConfig, query: str) -> str:
    """Return the file with the records that a query began with."""
    return f"{config.checkpoints[query]}/start"


def require(spark: SparkSession, config: PipelineConfig, query: str, batch_id: int) -> None:
    """Check that the micro-batch of a query may write.

    Raises:
        TakenOverError: another job has taken over.
        OutputError: Spark's checkpoint lacks the micro-batch, or executors write where this process does not read.
    """
    require_owner(spark, config)
    offsets = f"{config.checkpoints[query]}/offsets/{batch_id}"
    if not hadoop.exists(spark, offsets):  # on S3 Spark logs a failed write, and goes on
        raise OutputError(f"Spark could not write {offsets}.")
    for directory in config.directories:
        hadoop.require_shared(spark, directory, query)


def _owner(directory: str) -> str:
    """Return the file with the id of the job that started last."""
    return f"{directory}/job"
