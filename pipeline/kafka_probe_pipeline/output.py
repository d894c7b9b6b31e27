"""Guards the directories that the job writes to: for one job at a time, and seen by all its executors.

A job that starts takes the tables over, and the one before stops itself. So a job that was left behind on another host,
such as one whose node lost its network, ends as soon as it comes back.
"""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import SparkSession

from kafka_probe_pipeline import hadoop
from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.errors import OutputError, StartError

# Schemes of Hadoop's file systems that copy instead of renaming. Those of Azure's hierarchical namespace (abfs) rename.
_OBJECT_STORES = {"cosn", "gs", "obs", "oss", "s3", "s3a", "s3n", "swift", "wasb", "wasbs"}
_JOB_ID = uuid4().hex


def take_over(spark: SparkSession, config: Config) -> None:
    """Make this process the one job that writes to the tables.

    Raises:
        StartError: the checkpoints would be on an object store.
    """
    checkpoints = config.directories[-1]
    if hadoop.scheme(spark, checkpoints) in _OBJECT_STORES:
        raise StartError(
            f"Checkpoints cannot be in {checkpoints}: an object store does not rename atomically. Set --checkpoint-dir "
            "to a directory on a disk, HDFS or a mounted volume that outlives the job."
        )
    hadoop.write(spark, _owner(config), _JOB_ID)


def require(spark: SparkSession, config: Config, query: str) -> None:
    """Return if the micro-batch of a query may write.

    Raises:
        OutputError: another job has taken over the tables, or executors write where this process does not read.
    """
    if hadoop.read(spark, _owner(config)) != _JOB_ID:
        raise OutputError(f"Another job has taken over {config.output}. Only one at a time may use an --output.")
    for directory in config.directories:
        hadoop.require_shared(spark, directory, query)


def _owner(config: Config) -> str:
    """Return the file with the id of the job that started last."""
    return f"{config.output}/job"
