"""State of a query as Parquet files: a micro-batch writes a whole version, and the newest ones are kept.

Spark repeats a micro-batch after a crash, with the same number and the same records. A version is complete or absent on
every file system: its files are in a directory of their own, and an empty file, which is made last, has the number of
the micro-batch and the directory in its name. A job that was replaced may still write a version, beside that of its
successor with the same rows. So only what is older than all kept versions is removed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from kafka_probe.errors import StartError
from kafka_probe_pipeline import hadoop, spark_session
from kafka_probe_pipeline.column_types import ANOTHER_OUTPUT, require_types

KEPT = 2
_FILES = "files-"
_BATCH = "batch_id="


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of a state below `path`, with rows of `schema`."""

    spark: SparkSession
    path: str
    schema: T.StructType

    def exists(self, batch_id: int) -> bool:
        """Return True if the micro-batch has written its version."""
        return batch_id in self._directories()

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the version of a micro-batch, which must not exist yet."""
        directory = f"{_FILES}{batch_id}-{uuid4().hex}"
        rows.write.parquet(f"{self.path}/{directory}")
        hadoop.write(self.spark, f"{self.path}/{_BATCH}{batch_id}.{directory}", "")

    def batch(self, batch_id: int) -> DataFrame:
        """Return the version of a micro-batch, as written."""
        return self._read(self._directories()[batch_id])

    def before(self, batch_id: int) -> DataFrame:
        """Return the newest version that is older than that of the micro-batch; no rows if there is none."""
        found = self._before(batch_id)
        return self.none() if found is None else found

    def rows_before(self, batch_id: int) -> list[Row]:
        """Return the rows of `before`, of a small state."""
        found = self._before(batch_id)
        return [] if found is None else found.collect()

    def number_before(self, batch_id: int) -> int | None:
        """Return the number of the newest version that is older than that of the micro-batch; None without one."""
        return max((number for number in self._directories() if number < batch_id), default=None)

    def none(self) -> DataFrame:
        """Return no rows."""
        return spark_session.rows(self.spark, (), self.schema)

    def newest(self) -> DataFrame | None:
        """Return the newest version; None while there is none."""
        return self._before(sys.maxsize)

    def require_types(self) -> None:
        """Raise StartError if another release wrote the newest version in another way, or with other types."""
        if any("." not in name for name in self._names(f"{_BATCH}*")):
            raise StartError(f"{self.path} was written by an older release. {ANOTHER_OUTPUT}")
        if directories := self._directories():
            path = f"{self.path}/{directories[max(directories)]}"
            require_types(path, self.spark.read.parquet(path).schema, self.schema)

    def remove_old(self) -> None:
        """Remove all but the newest versions, and older files of killed attempts."""
        if kept := sorted(self._directories())[-KEPT:]:
            marks = [(int(name.removeprefix(_BATCH).split(".")[0]), name) for name in self._names(f"{_BATCH}*.*")]
            files = [(int(name.split("-")[1]), name) for name in self._names(f"{_FILES}[0-9]*")]
            for number, name in (*marks, *files):
                if number < kept[0]:
                    hadoop.remove(self.spark, f"{self.path}/{name}")

    def _before(self, batch_id: int) -> DataFrame | None:
        directories = self._directories()
        number = max((number for number in directories if number < batch_id), default=None)
        return None if number is None else self._read(directories[number])

    def _read(self, directory: str) -> DataFrame:
        return self.spark.read.schema(self.schema).parquet(f"{self.path}/{directory}")

    def _directories(self) -> dict[int, str]:
        """Return by micro-batch the directory with its version."""
        marks = (name.removeprefix(_BATCH).split(".") for name in self._names(f"{_BATCH}*.*"))
        return {int(number): directory for number, directory in marks}

    def _names(self, pattern: str) -> list[str]:
        return hadoop.names(self.spark, f"{self.path}/{pattern}")
