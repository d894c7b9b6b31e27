"""The sinks: a Parquet table that holds each micro-batch once, and Kafka topics whose last row per key is right.

Spark hands the same micro-batch again after a crash, with the same number and the same Kafka records. The table answers
with the batch number as directory: complete or absent, and never written twice. Kafka gets each row under a key made of
what the row is about and the batch number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from kafka_probe_pipeline import session
from kafka_probe_pipeline.errors import OutputError
from kafka_probe_pipeline.traffic import KEYS, with_percentiles, without_overflows

# A line beyond it would make a dead letter larger than a broker takes, and stop the job for ever.
DEAD_LETTER_CHARACTERS = 100_000

MESSAGE = StructType([StructField("key", StringType()), StructField("value", StringType())])


@dataclass(frozen=True, slots=True)
class Table:
    """A Parquet table below `path`, one directory `batch_id=N` per micro-batch; readers see whole batches only.

    schema: of its rows; none: Spark looks into the files for it, each time that it reads them.
    """

    spark: SparkSession
    path: str
    schema: StructType = field(default_factory=StructType)

    def exists(self, batch_id: int | None = None) -> bool:
        """Whether the batch, or any table at all, is there."""
        path = self._hadoop(self.path if batch_id is None else self._batch(batch_id))
        return bool(self._file_system(path).exists(path))

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Add the rows as one batch, which must not be there yet.

        The files are written beside the table, into a name that readers skip, and appear by one rename, atomic on
        local disks and HDFS. What a killed attempt left is overwritten.

        Raises:
            OutputError: executors wrote to disks of their own.
        """
        draft = f"{self.path}/_draft"
        if self._is_on_disks_of_a_cluster():
            rows = rows.persist()
            rows.write.mode("overwrite").parquet(draft)
            self._require_all(rows, draft)
            rows.unpersist()
        else:
            rows.write.mode("overwrite").parquet(draft)
        source, target = self._hadoop(draft), self._hadoop(self._batch(batch_id))
        if not self._file_system(source).rename(source, target):
            raise OSError(f"cannot rename {draft} to {self._batch(batch_id)}")

    def batch(self, batch_id: int) -> DataFrame:
        """The rows of one batch, as written."""
        return self._reader.parquet(self._batch(batch_id))

    def read(self) -> DataFrame:
        """All rows, with `batch_id`."""
        return self._reader.parquet(self.path)

    def rows_so_far(self) -> DataFrame:
        """All rows, with `batch_id`; none while there is no table yet."""
        return self.read() if self.exists() else self._no_rows()

    def before(self, batch_id: int) -> DataFrame:
        """The newest batch before the named one, where a batch is a whole version; no rows if there is none."""
        earlier = [number for number in self._batches() if number < batch_id]
        return self.batch(earlier[-1]) if earlier else self._no_rows()

    def rows_before(self, batch_id: int) -> list[Row]:
        """The rows of the same, of a small table."""
        earlier = [number for number in self._batches() if number < batch_id]
        return self.batch(earlier[-1]).collect() if earlier else []

    def newest(self) -> DataFrame | None:
        """The newest batch; None while there is none."""
        batches = self._batches()
        return self.batch(batches[-1]) if batches else None

    def keep(self, versions: int) -> None:
        """Remove all but the newest batches, where a batch is a whole version."""
        for number in self._batches()[:-versions]:
            path = self._hadoop(self._batch(number))
            self._file_system(path).delete(path, True)

    def _is_on_disks_of_a_cluster(self) -> bool:
        """Whether the path is one that means something else on each host, unless all mount the same there."""
        scheme = self._file_system(self._hadoop(self.path)).getUri().getScheme()
        return scheme == "file" and not self.spark.sparkContext._jsc.isLocal()

    def _require_all(self, rows: DataFrame, draft: str) -> None:
        """Return if all rows were written to where this process sees them: Spark itself does not notice if not."""
        written = self.spark.read.schema(rows.schema).parquet(draft)
        if not written.inputFiles() or written.count() != rows.count():
            raise OutputError(
                f"The driver cannot read all files that executors wrote to {draft}. On a cluster --output must be on a "
                "file system that all of them share, such as hdfs://... or a volume that is mounted everywhere."
            )

    def _batches(self) -> list[int]:
        """The numbers of the batches that are there, ascending."""
        path = self._hadoop(f"{self.path}/batch_id=*")
        return sorted(
            int(found.getPath().getName().split("=")[1]) for found in self._file_system(path).globStatus(path)
        )

    def _no_rows(self) -> DataFrame:
        return session.rows(self.spark, (), self.schema)

    @property
    def _reader(self) -> DataFrameReader:
        return self.spark.read.schema(self.schema) if self.schema.fields else self.spark.read

    def _batch(self, batch_id: int) -> str:
        return f"{self.path}/batch_id={batch_id}"

    def _hadoop(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _file_system(self, path: Any) -> Any:
        return path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm


def traffic_messages(rows: DataFrame) -> DataFrame:
    """Rows with their `batch_id` as Kafka records: the value is JSON, the key a hash of window, dimensions and batch.

    A topic is its id there, if it has one: a row whose name became known replaces the one that it was before. Each has
    the percentiles of its own histogram; of several rows add the histograms, never the percentiles.
    """
    topic = F.when(F.col("topic_id").isNull(), F.col("topic")).alias("topic")
    keys = (topic if name == "topic" else F.col(name) for name in (*KEYS, "batch_id"))
    complete = rows.transform(with_percentiles).transform(without_overflows)
    return complete.select(
        F.sha2(F.to_json(F.struct(*keys)), 256).alias("key"), F.to_json(F.struct(*complete.columns)).alias("value")
    )


def dead_letters(malformed: DataFrame) -> DataFrame:
    """Malformed lines as Kafka records; the key says where the line came from. Very long lines are cut."""
    return malformed.select(
        F.concat_ws("-", "topic", "partition", "offset", "line_number").alias("key"),
        F.to_json(
            F.struct(
                "reason",
                F.substring("line", 1, DEAD_LETTER_CHARACTERS).alias("line"),
                F.length("line").alias("length"),
                "topic",
                "partition",
                "offset",
                "line_number",
            )
        ).alias("value"),
    )


def send(messages: DataFrame, topic: str, kafka: dict[str, str]) -> None:
    """Write key and value to a topic, at least once."""
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    messages.write.format("kafka").options(**options).option("topic", topic).save()
