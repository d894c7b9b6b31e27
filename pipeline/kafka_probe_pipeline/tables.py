"""The tables of facts: Delta Lake tables below the output directory, to which micro-batches append their rows.

Facts are never rewritten. Each commit carries the id of the query's checkpoint and the number of the micro-batch, so
that a micro-batch which Spark repeats after a crash finds its rows there. This module never computes a row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe.errors import StartError
from kafka_probe_pipeline import event_rows, frames, hadoop, names, output, spark_session, storms, traffic, verdicts
from kafka_probe_pipeline.column_types import require_types
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.event_rows import RECEIVED, SEEN


class TableKind(NamedTuple):
    """The columns of a table, without `date` and `batch_id`; the column of its time; the query that writes it.

    filtered: other columns that readers filter by, of which each file has statistics; partitions: the columns by which
    it is partitioned, besides `date`.
    """

    schema: T.StructType
    time: str
    query: Literal["traffic", "diagnosis", "archive"]
    filtered: tuple[str, ...]
    partitions: tuple[str, ...] = ()


_OF_ENDS = ("ts", "flow_id", "conn_id", "local", "peer")
TABLES = {
    "traffic": TableKind(traffic.SCHEMA, "window_start", "traffic", ("level", "topic", "topic_id", "client_id", "pod")),
    "topic_names": TableKind(names.SCHEMA, "ts", "traffic", ("topic_id",)),
    "requests": TableKind(event_rows.REQUESTS, RECEIVED, "traffic", ("ts", "flow_id", "api", "latency_us")),
    "partition_ends": TableKind(event_rows.PARTITION_ENDS, RECEIVED, "traffic", (SEEN, "topic", "topic_id")),
    "group_positions": TableKind(event_rows.GROUP_POSITIONS, RECEIVED, "traffic", (SEEN, "group", "topic")),
    "opens": TableKind(event_rows.OPENS, RECEIVED, "diagnosis", _OF_ENDS),
    "closes": TableKind(event_rows.CLOSES, RECEIVED, "diagnosis", _OF_ENDS),
    "verdicts": TableKind(verdicts.SCHEMA, "ts", "diagnosis", ("cause",)),
    "storms": TableKind(storms.CHANGES, "ts", "diagnosis", ("id", "kind", "cause")),
    "agents": TableKind(event_rows.AGENTS, RECEIVED, "diagnosis", ("ts", "node")),
    "frames": TableKind(frames.SCHEMA, RECEIVED, "archive", ("ts", "flow_id", "conn_id", "api_key"), (frames.HOUR,)),
}
DATE = "date"
"""Column of the UTC date of a row's time, by which the tables are partitioned."""
BATCH_ID = "batch_id"
DAYS_LATE, DAYS_AHEAD = 31, 1
"""Days before and after the newest event of a micro-batch. Rows beyond get the nearest date within.

So a wrong clock or a forged event makes no date of its own, and retention reaches every row.
"""

_UNUSED_KEPT = "interval 24 hours"  # a reader that opened the table before finishes
_LARGEST_BYTES = 1 << 30
# Delta Lake sorts rows into files by what ZORDER names, and by default neither within a file nor exactly.
_SORTED_BY_FLOW = {
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.databricks.io.skipping.mdc.addNoise": "false",
    # Readers leave out row groups by their range of flows. The default is the size of a whole file.
    "parquet.block.size": str(4 << 20),
}
_LOG_KEPT = "interval 4 hours"
_PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.deletedFileRetentionDuration": _UNUSED_KEPT,
    "delta.logRetentionDuration": _LOG_KEPT,
    # With each checkpoint it would keep the log of the whole day before: `remove_unused` cuts it at the hour.
    "delta.enableExpiredLogCleanup": "false",
}


@dataclass(frozen=True, slots=True)
class Table:
    """One of `TABLES`, partitioned by `date`; readers see whole micro-batches only."""

    spark: SparkSession
    config: PipelineConfig
    name: str

    @property
    def path(self) -> str:
        """Return its directory."""
        return f"{self.config.output}/{self.name}"

    def exists(self) -> bool:
        """Return True if a micro-batch has written to it. A first commit that was interrupted does not count."""
        return bool(hadoop.names(self.spark, f"{self.path}/_delta_log/[0-9]*"))

    def append(self, rows: DataFrame, batch_id: int, newest_us: int) -> DataFrame:
        """Append the rows of a micro-batch, unless an earlier attempt did, and return what the table has of it.

        newest_us: when Kafka got its newest event, µs since epoch.
        """
        rows = rows.persist()
        try:
            if not rows.isEmpty():
                self._write(rows, batch_id, newest_us)
                hadoop.write(self.spark, self._note, str(batch_id))
        finally:
            rows.unpersist()
        return self.batch(batch_id)

    def batch(self, batch_id: int) -> DataFrame:
        """Return the rows of a micro-batch."""
        return self.read().where(F.col(BATCH_ID) == batch_id)

    def read(self) -> DataFrame:
        """Return all rows, with `date` and `batch_id`; none before the first micro-batch.

        They have the columns of this release: those that a newer one added are left out, missing ones are null.
        """
        if self.exists():
            return self.spark.read.format("delta").load(self.path).to(self._columns)
        return spark_session.rows(self.spark, (), self._columns)

    def last_batch(self) -> int:
        """Return the last micro-batch of its checkpoint that it has; -1 if it has none."""
        if not self.exists():
            return -1
        last = self._snapshot(self._log()).transactions().get(self._checkpoint_id())
        return int(last.get()) if last.isDefined() else -1

    def require_checkpoint(self) -> None:
        """Check that the table has the rows of its query's checkpoint, no more and no less.

        Raises:
            StartError: it has columns of another release or is of another checkpoint, or has more or fewer
                micro-batches.
        """
        if hadoop.names(self.spark, f"{self.path}/{BATCH_ID}=*"):
            raise StartError(f"{self.path} was written by an older release. Choose another --output.")
        noted = hadoop.read(self.spark, self._note)
        if not self.exists():
            if noted:
                raise StartError(
                    f"{self.path} is missing, but its checkpoint {self._checkpoint} has batches. Restore the table, or "
                    "choose another --output; otherwise events would be lost."
                )
            return
        require_types(self.path, self.spark.read.format("delta").load(self.path).schema, self._columns)
        if self._checkpoint_id() is None:
            raise StartError(
                f"{self.path} has batches, but its checkpoint {self._checkpoint} is missing. Move the table away or "
                "choose another --output; otherwise events would be lost or count twice."
            )
        last = self.last_batch()
        planned = max(map(int, hadoop.names(self.spark, f"{self._checkpoint}/offsets/[0-9]*")), default=-1)
        if not int(noted or 0) <= last <= planned:
            raise StartError(
                f"{self.path} and its checkpoint {self._checkpoint} do not have the same batches. Restore both from "
                "the same time, or move both away; otherwise events would be lost or count twice."
            )

    def compact(self, small_bytes: int, dates: str = "date IS NOT NULL") -> None:
        """Merge the files of each date that are smaller than that. `dates`: a condition on `date`."""
        self.spark.conf.set("spark.databricks.delta.optimize.minFileSize", small_bytes)
        self.spark.conf.set("spark.databricks.delta.optimize.maxFileSize", _LARGEST_BYTES)
        self.spark.sql(f"OPTIMIZE {self._sql} WHERE {dates}")

    def merge_hours(self, before: datetime, file_bytes: int) -> None:
        """Merge the files of each hour that ended by then, sorted by flow, into files of about that size.

        Hours that have at most one file below half of that size are left as they are.
        """
        files = DataFrame(self._snapshot(self._log()).allFiles().toDF(), self.spark)
        hour = [F.col(f"partitionValues.{name}").alias(name) for name in (DATE, frames.HOUR)]
        small = F.count_if(F.col("size") < file_bytes // 2)
        hours = files.select(*hour, "size").groupBy(DATE, frames.HOUR).agg(small).collect()
        self.spark.conf.set("spark.databricks.delta.optimize.maxFileSize", file_bytes)
        for name, value in _SORTED_BY_FLOW.items():
            self.spark.conf.set(name, value)
        try:
            for date, hour_of_day, small_files in hours:
                begin = datetime.fromisoformat(date).replace(hour=int(hour_of_day), tzinfo=UTC)
                if begin + timedelta(hours=1) <= before and small_files > 1:
                    partition = f"{DATE} = '{date}' AND {frames.HOUR} = {int(hour_of_day)}"
                    self.spark.sql(f"OPTIMIZE {self._sql} WHERE {partition} ZORDER BY (flow_id)")
        finally:
            for name in _SORTED_BY_FLOW:
                self.spark.conf.unset(name)

    def delete(self, dates: str) -> None:
        """Delete the rows of some dates. `dates`: a condition on `date`."""
        self.spark.sql(f"DELETE FROM {self._sql} WHERE {dates}")

    def remove_unused(self) -> None:
        """Remove files that were not used for a day, and commits that the log has not needed for hours."""
        self.spark.sql(f"VACUUM {self._sql}")
        units = getattr(self._jvm.org.apache.spark.sql.delta, "TruncationGranularity$")
        log = self._log()
        retention = self._jvm.scala.Option.empty()  # that of the table
        log.cleanUpExpiredLogs(self._snapshot(log), retention, getattr(units, "MODULE$").HOUR())

    @property
    def _checkpoint(self) -> str:
        return self.config.checkpoints[TABLES[self.name].query]

    @property
    def _note(self) -> str:
        """Return the file in the checkpoint that has the number of the last micro-batch with rows."""
        return f"{self._checkpoint}/tables/{self.name}"

    @property
    def _sql(self) -> str:
        """Return its name in SQL, where a path must be absolute."""
        return f"delta.`{hadoop.absolute(self.spark, self.path).replace('`', '``')}`"

    @property
    def _columns(self) -> T.StructType:
        own = T.StructField(DATE, T.DateType()), T.StructField(BATCH_ID, T.LongType())
        return T.StructType([*own, *TABLES[self.name].schema.fields])

    def _write(self, rows: DataFrame, batch_id: int, newest_us: int) -> None:
        checkpoint_id = self._checkpoint_id()
        assert checkpoint_id, "Spark writes it when a query starts"
        output.require_owner(self.spark, self.config)
        newest = F.to_date(F.timestamp_micros(F.lit(newest_us)))
        _, time, _, filtered, partitions = TABLES[self.name]
        statistics = (BATCH_ID, time, *filtered)
        late = F.greatest(F.to_date(time), F.date_sub(newest, DAYS_LATE))
        date = F.least(late, F.date_add(newest, DAYS_AHEAD))
        (
            rows.withColumns({DATE: date, BATCH_ID: F.lit(batch_id).cast("long")})
            .select(*self._columns.names)
            .write.format("delta")
            .mode("append")
            .partitionBy(DATE, *partitions)
            .option("mergeSchema", "true")  # adds the columns that an older release did not write
            .options(**_PROPERTIES, **{"delta.dataSkippingStatsColumns": ",".join(statistics)})
            .options(txnAppId=checkpoint_id, txnVersion=batch_id)
            .save(self.path)
        )

    def _checkpoint_id(self) -> str | None:
        """Return the id of the checkpoint; None if it is missing."""
        metadata = hadoop.read(self.spark, f"{self._checkpoint}/metadata")
        return str(json.loads(metadata)["id"]) if metadata else None

    def _log(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.path)

    def _snapshot(self, log: Any) -> Any:
        """Return the newest snapshot of the table."""
        none = self._jvm.scala.Option.empty()
        return log.update(False, none, none)

    @property
    def _jvm(self) -> Any:
        jvm = self.spark.sparkContext._jvm
        assert jvm is not None
        return jvm
