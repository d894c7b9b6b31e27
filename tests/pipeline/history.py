"""Runs a history of micro-batches through the diagnosis, without Kafka and without the tables that it commits to."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from kafka_probe_pipeline import connections, source, spark_session
from kafka_probe_pipeline.alerts import Alert
from kafka_probe_pipeline.buffered_table import Commit
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.diagnosis_query import BUFFERED, Diagnosis, News, Tables
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.source import Clock
from tests.builders.spark_events import NOON_US, SECOND_US, Event, lines

# What `source.received` returns of events.
_RECEIVED = T.StructType([*source.spark_schema(), T.StructField("received_us", T.LongType())])
_JUST_COMMITTED = Commit(-1, NOON_US * 2)  # so that all rows stay in the buffer


class _Silent(Diagnosis):
    """A diagnosis that sends no alerts."""

    def _alert(self, alerts: list[Alert], spark: SparkSession) -> None:
        pass


class History:
    """Applies each `batch` to the state that the batches before left. Kafka got it `at_s` after noon.

    It got an `agent` event a second later, as agents are complete up to a second before they send it.
    """

    def __init__(self, spark: SparkSession, **settings: object) -> None:
        spark = self._spark = spark_session.for_few_rows(spark.newSession())
        spark.conf.set("spark.sql.shuffle.partitions", 1)  # tasks of few rows cost more than the rows
        self._directory = TemporaryDirectory()
        self._config = load({**settings, "output": str(Path(self._directory.name) / "output")})
        commits = dict.fromkeys(BUFFERED, _JUST_COMMITTED)
        self._tables = Tables.of(spark, self._config, commits)
        self._diagnosis = _Silent(self._config, Progress(), commits=commits)
        self._number = -1

    def batch(self, *of: Event, at_s: float | Sequence[float] = 0) -> list[Row]:
        """Apply a batch; return the closed connections after it, as the state has them. at_s: of all, or of each."""
        self._number += 1
        times_s = at_s if isinstance(at_s, Sequence) else [at_s] * len(of)
        received = (
            event | {"received_us": _us(one + (event["kind"] == "agent"))}
            for event, one in zip(of, times_s, strict=True)
        )
        file = Path(self._directory.name) / f"{self._number}.json"
        file.write_text(lines(*received))
        reported = self._spark.read.schema(_RECEIVED).json(str(file)).persist()
        clock = Clock(self._number, _us(max(times_s, default=0)))
        self._diagnosis.look(reported, News.of(reported), clock, self._tables)
        reported.unpersist()
        return _sorted(self.connections, "key")

    def current(self) -> list[Row]:
        """Return the connections that were reported, open or closed."""
        return _sorted(connections.of_rows(self._tables.opens.read(), self._tables.closes.read()), "key")

    def storms_after(self, *of: Event, at_s: float = 0) -> list[Row]:
        """Apply a batch; return the storms after it."""
        self.batch(*of, at_s=at_s)
        return _sorted(self._tables.storms.before(self._number + 1), "kind")

    @property
    def agents(self) -> DataFrame:
        """Return the state of the agents."""
        return self._tables.agents.batch(self._number)

    @property
    def connections(self) -> DataFrame:
        """Return the closed connections, as the state has them."""
        return self._tables.connections.before(self._number + 1)


def only(rows: list[Row]) -> Any:
    """Return the only row."""
    (row,) = rows
    return row


def _sorted(rows: DataFrame, column: str) -> list[Row]:
    """Return the rows by a column: Spark would need a second job to sort them."""
    return sorted(rows.collect(), key=itemgetter(column))


def _us(at_s: float) -> int:
    return NOON_US + round(at_s * SECOND_US)
