"""State of a query as Parquet files: a micro-batch writes a whole version, and the newest ones are kept.

Spark repeats a micro-batch after a crash, with the same number and the same records. A version is complete or absent,
and never written twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from kafka_probe_pipeline import hadoop, spark_session
from kafka_probe_pipeline.column_types import require_types

KEPT = 2
_DRAFTS = "_draft_"
_DRAFT = f"{_DRAFTS}{uuid4().hex}"  # of this process: a job that was replaced may still write its own


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of a state below `path`, each in a directory `batch_id=N`, with rows of `schema`."""

    spark: SparkSession
    path: str
    schema: T.StructType

    def exists(self, batch_id: int) -> bool:
        """Return True if the micro-batch has written its version."""
        return hadoop.exists(self.spark, self._of(batch_id))

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the version of a micro-batch, which must not exist yet.

        The files are written into a directory that readers skip, and appear by one rename, atomic on local disks and
        HDFS.
        """
        draft = f"{self.path}/{_DRAFT}"
        rows.write.mode("overwrite").parquet(draft)
        hadoop.rename(self.spark, draft, self._of(batch_id))

    def batch(self, batch_id: int) -> DataFrame:
        """Return the version of a micro-batch, as written."""
        return self.spark.read.schema(self.schema).parquet(self._of(batch_id))

    def before(self, batch_id: int) -> DataFrame:
        """Return the newest version that is older than that of the micro-batch; no rows if there is none."""
        number = self.number_before(batch_id)
        return self.none() if number is None else self.batch(number)

    def rows_before(self, batch_id: int) -> list[Row]:
        """Return the rows of `before`, of a small state."""
        number = self.number_before(batch_id)
        return [] if number is None else self.batch(number).collect()

    def number_before(self, batch_id: int) -> int | None:
        """Return the number of the newest version that is older than that of the micro-batch; None without one."""
        return max((number for number in self._numbers() if number < batch_id), default=None)

    def none(self) -> DataFrame:
        """Return no rows."""
        return spark_session.rows(self.spark, (), self.schema)

    def newest(self) -> DataFrame | None:
        """Return the newest version; None while there is none."""
        numbers = self._numbers()
        return self.batch(numbers[-1]) if numbers else None

    def require_types(self) -> None:
        """Raise StartError if another release gave a column of the newest version another type."""
        if numbers := self._numbers():
            path = self._of(numbers[-1])
            require_types(path, self.spark.read.parquet(path).schema, self.schema)

    def remove_old(self) -> None:
        """Remove all but the newest versions, and drafts of killed attempts."""
        for number in self._numbers()[:-KEPT]:
            hadoop.remove(self.spark, self._of(number))
        for draft in hadoop.names(self.spark, f"{self.path}/{_DRAFTS}*"):
            if draft != _DRAFT:
                hadoop.remove(self.spark, f"{self.path}/{draft}")

    def _numbers(self) -> list[int]:
        """Return the numbers of the micro-batches whose versions exist, ascending."""
        return sorted(int(name.split("=")[1]) for name in hadoop.names(self.spark, f"{self.path}/batch_id=*"))

    def _of(self, batch_id: int) -> str:
        return f"{self.path}/batch_id={batch_id}"
