"""The tables of facts: Delta Lake tables below the output directory, to which micro-batches append their rows.

Facts are never rewritten. Each commit carries the id of the query's checkpoint and the number of the micro-batch, so
that a micro-batch which Spark repeats after a crash finds its rows there. This module never computes a row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline import hadoop, names, session, traffic, verdicts
from kafka_probe_pipeline.errors import StartError

TABLES = {
    "traffic": (traffic.SCHEMA, "window_start"),
    "topic_names": (names.SCHEMA, "ts"),
    "verdicts": (verdicts.SCHEMA, "ts"),
}
"""Columns of each table, without `date` and `batch_id`, and the timestamp whose day is the date."""
DATE = "date"
"""Column of the UTC date by which the tables are partitioned."""
BATCH_ID = "batch_id"

_UNUSED_KEPT = "interval 24 hours"  # a reader that opened the table before finishes
_LOG_KEPT = "interval 4 hours"
_PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.deletedFileRetentionDuration": _UNUSED_KEPT,
    "delta.logRetentionDuration": _LOG_KEPT,
    # With each checkpoint it would keep the log of the whole day before: `remove_unused` is exact.
    "delta.enableExpiredLogCleanup": "false",
}


@dataclass(frozen=True, slots=True)
class Table:
    """One of `TABLES`, partitioned by `date`; readers see whole micro-batches only."""

    spark: SparkSession
    output: str
    name: str

    @property
    def path(self) -> str:
        """Return its directory."""
        return f"{self.output}/{self.name}"

    def exists(self) -> bool:
        """Return True if a micro-batch has written to it. Half of the first commit is none."""
        return bool(hadoop.names(self.spark, f"{self.path}/_delta_log/[0-9]*"))

    def append(self, rows: DataFrame, batch_id: int) -> DataFrame:
        """Append the rows of a micro-batch, unless an earlier attempt did, and return what the table has of it."""
        rows = rows.persist()
        try:
            if not rows.isEmpty():
                self._write(rows, batch_id)
        finally:
            rows.unpersist()
        return self.batch(batch_id)

    def batch(self, batch_id: int) -> DataFrame:
        """Return the rows of a micro-batch."""
        return self.read().where(F.col(BATCH_ID) == batch_id)

    def read(self) -> DataFrame:
        """Return all rows, with `date` and `batch_id`; none before the first micro-batch."""
        if self.exists():
            return self.spark.read.format("delta").load(self.path)
        return session.rows(self.spark, (), self._columns)

    def require_checkpoint(self, checkpoint: str) -> None:
        """Return if the rows of the table are those of the checkpoint's micro-batches.

        Raises:
            StartError: the table is of an older release or of another checkpoint, or has later micro-batches.
        """
        if hadoop.names(self.spark, f"{self.path}/{BATCH_ID}=*"):
            raise StartError(f"{self.path} was written by an older release. Move it away or choose another --output.")
        if not self.exists():
            return
        if (checkpoint_id := _id_of(self.spark, checkpoint)) is None:
            raise StartError(
                f"{self.path} has batches, but its checkpoint {checkpoint} is missing. "
                "Move the table away or choose another --output; otherwise every event would count twice."
            )
        written = self._last_batches().get(checkpoint_id, -1)
        planned = max(map(int, hadoop.names(self.spark, f"{checkpoint}/offsets/[0-9]*")), default=-1)
        if written < 0 or written > planned:
            raise StartError(
                f"{self.path} has batches that its checkpoint {checkpoint} does not have. Restore the checkpoint that "
                "belongs to the table, or move both away; otherwise events would be lost or count twice."
            )

    def compact(self, dates: str, small_bytes: int) -> None:
        """Merge the files of some dates that are smaller than that. `dates`: a condition on `date`."""
        self.spark.conf.set("spark.databricks.delta.optimize.minFileSize", small_bytes)
        self.spark.sql(f"OPTIMIZE {self._sql} WHERE {dates}")

    def delete(self, dates: str) -> None:
        """Delete the rows of some dates. `dates`: a condition on `date`."""
        self.spark.sql(f"DELETE FROM {self._sql} WHERE {dates}")

    def remove_unused(self) -> None:
        """Remove files that the table has not used for a day, and commits that its log has not needed for hours."""
        self.spark.sql(f"VACUUM {self._sql}")
        log, snapshot = self._log()
        units = getattr(_jvm(self.spark).org.apache.spark.sql.delta, "TruncationGranularity$")
        retention = _jvm(self.spark).scala.Option.empty()  # that of the table
        log.cleanUpExpiredLogs(snapshot, retention, getattr(units, "MODULE$").HOUR())

    @property
    def _sql(self) -> str:
        """Return its name in SQL."""
        return f"delta.`{self.path.replace('`', '``')}`"

    @property
    def _columns(self) -> T.StructType:
        schema, _ = TABLES[self.name]
        return T.StructType([T.StructField(DATE, T.DateType()), T.StructField(BATCH_ID, T.LongType()), *schema.fields])

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        _, time = TABLES[self.name]
        complete = rows.withColumns({DATE: F.to_date(time), BATCH_ID: F.lit(batch_id).cast("long")})
        (
            complete.select(*self._columns.names)
            .write.format("delta")
            .mode("append")
            .partitionBy(DATE)
            .options(**_PROPERTIES)
            # Within a micro-batch Spark sets the id, that of the checkpoint.
            .option("txnAppId", rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
            .option("txnVersion", batch_id)
            .save(self.path)
        )

    def _last_batches(self) -> dict[str, int]:
        """Return the last micro-batch of each checkpoint that has written to the table."""
        _, snapshot = self._log()
        transactions = snapshot.transactions()
        keys = transactions.keys().toSeq()
        return {keys.apply(number): transactions.apply(keys.apply(number)) for number in range(keys.size())}

    def _log(self) -> tuple[Any, Any]:
        """Return Delta's log of the table and its newest snapshot."""
        none = _jvm(self.spark).scala.Option.empty()
        log = _jvm(self.spark).org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.path)
        return log, log.update(False, none, none)


def _jvm(spark: SparkSession) -> Any:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return jvm


def _id_of(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of a checkpoint; None if it is missing."""
    if not hadoop.exists(spark, f"{checkpoint}/metadata"):
        return None
    (row,) = spark.read.text(f"{checkpoint}/metadata").collect()
    return str(json.loads(row["value"])["id"])
