"""The tables of facts: Delta Lake tables below the output directory, to which micro-batches append their rows.

Facts are never rewritten. Each commit carries the id of the query's checkpoint and the number of the micro-batch, so
that a micro-batch which Spark repeats after a crash finds its rows there. This module never computes a row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

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

# Properties of a new table. A checkpoint of the log each 100 commits; statistics of the columns that readers filter by.
_PROPERTIES = {"delta.checkpointInterval": "100"}


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
        jvm = self.spark.sparkContext._jvm
        assert jvm is not None
        none = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.path)
        transactions = log.update(False, none, none).transactions()
        keys = transactions.keys().toSeq()
        return {keys.apply(number): transactions.apply(keys.apply(number)) for number in range(keys.size())}


def _id_of(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of a checkpoint; None if it is missing."""
    if not hadoop.exists(spark, f"{checkpoint}/metadata"):
        return None
    (row,) = spark.read.text(f"{checkpoint}/metadata").collect()
    return str(json.loads(row["value"])["id"])
