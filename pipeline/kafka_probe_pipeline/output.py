"""Ensures that one job at a time writes to the output, and that all its executors share it.

A job that starts takes the output over, and the one before stops itself. So a job that was left behind on another host,
such as one whose node lost its network, ends as soon as it comes back.
"""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import SparkSession

from kafka_probe.errors import StartError
from kafka_probe_pipeline import hadoop
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.errors import TakenOverError

# Schemes of Hadoop's file systems that copy instead of renaming. Azure's abfs renames if the account has a hierarchical
# namespace.
_OBJECT_STORES = {"cosn", "gs", "obs", "oss", "s3", "s3a", "s3n", "swift", "wasb", "wasbs"}
_JOB_ID = uuid4().hex


def require_renames(spark: SparkSession, config: PipelineConfig) -> None:
    """Raise StartError if the checkpoints would be on an object store, which does not rename atomically."""
    checkpoints = config.checkpoint_directory
    if hadoop.scheme(spark, checkpoints) in _OBJECT_STORES:
        raise StartError(
            f"Checkpoints cannot be in {checkpoints}: an object store does not rename atomically. Set --checkpoint-dir "
            "to a directory on a disk, HDFS or a mounted volume that outlives the job."
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


def require(spark: SparkSession, config: PipelineConfig, query: str) -> None:
    """Check that the micro-batch of a query may write.

    Raises:
        TakenOverError: another job has taken over.
        OutputError: executors write where this process does not read.
    """
    require_owner(spark, config)
    for directory in config.directories:
        hadoop.require_shared(spark, directory, query)


def _owner(directory: str) -> str:
    """Return the file with the id of the job that started last."""
    return f"{directory}/job"
