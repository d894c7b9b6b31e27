"""Maintenance of the tables, in a thread of the driver: compaction, retention, and removal of what is no longer used.

At each interval it merges small files, deletes the dates that are older than a table keeps, removes files that no
version of the last day has, and shortens the log. It runs in a Spark pool of its own, so alerts do not wait for it, and
in the process that writes, because Delta Lake has one safe writer on an object store.
"""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, timedelta
from threading import Event, Thread
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.errors import last_cause
from kafka_probe_pipeline.tables import TABLES, Table

log = logging.getLogger("kafka_probe_pipeline")

# Larger files are merged only once their date is over: else each run would write the whole date again.
_SMALL_BYTES = 16 << 20
_LARGE_BYTES = 1 << 30
_POOL = "maintenance"


class Maintenance:
    """`with Maintenance(spark, config):` maintains the tables every `maintenance_interval` until the block ends."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._config = spark.newSession(), config
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="maintenance", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        while not self._stopping.wait(self._config.maintenance_interval):
            for name in TABLES:
                try:
                    maintain(Table(self._spark, self._config.output, name), self._config, datetime.now(UTC).date())
                except (PySparkException, Py4JError) as error:
                    if not self._stopping.is_set():
                        log.warning("Table %s was not maintained; trying again later. %s", name, last_cause(error))


def maintain(table: Table, config: Config, today: date) -> None:
    """Compact a table, delete the dates that it no longer keeps, and remove what no reader of today needs."""
    if not table.exists():
        return
    yesterday = today - timedelta(days=1)
    table.compact(f"date >= '{yesterday}'", _SMALL_BYTES)
    table.compact(f"date < '{yesterday}'", _LARGE_BYTES)
    if days := config.days_kept.get(table.name):
        table.delete(f"date < '{today - timedelta(days=days)}'")
    table.remove_unused()
