"""Maintenance of the tables, in a thread of the driver: retention, removal of unused files, and compaction.

It runs in a Spark pool of its own and with one task at a time, so that alerts do not wait for it, and in the process
that writes, because Delta Lake has one safe writer on an object store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from threading import Event, Thread
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from kafka_probe_pipeline import output, spark_session
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.errors import last_cause
from kafka_probe_pipeline.frames import HOUR
from kafka_probe_pipeline.tables import TABLES, Table

log = logging.getLogger("kafka_probe_pipeline")

# Larger files are merged once, when their date is over: each run would else write the whole date again.
_SMALL_BYTES = 16 << 20
_LARGE_BYTES = 1 << 30
_FIRST_S = 300.0  # soon after the start, for jobs that are restarted often, but not while queries compile their code


class Maintenance:
    """`with Maintenance(spark, config):` maintains the tables every `maintenance_interval` until the block ends."""

    def __init__(self, spark: SparkSession, config: PipelineConfig) -> None:
        self._spark, self._config = spark_session.for_its_cores(spark.newSession()), config
        self._spark.conf.set("spark.databricks.delta.optimize.maxThreads", 1)
        self._finished: date | None = None
        self._stopping = Event()
        self._thread = Thread(target=self._repeat, name="maintenance", daemon=True)

    def __enter__(self) -> Self:
        if not self._config.once:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._config.once and error is None:
            self.run(datetime.now(UTC))
        self._stopping.set()

    def _repeat(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._thread.name)
        interval_s = min(self._config.maintenance_interval, self._config.archive_file_age)
        wait_s = min(_FIRST_S, interval_s)
        while not self._stopping.wait(wait_s):
            self.run(datetime.now(UTC))
            wait_s = interval_s

    def run(self, now: datetime) -> None:
        """Maintain all tables once. If one fails, log that and continue with the others."""
        today = now.date()
        for name in TABLES:
            table = Table(self._spark, self._config, name)
            if days := self._config.days_kept.get(name):
                self._try(table, table.delete, f"date < '{today - timedelta(days=days)}'")
            self._try(table, table.remove_unused)
            if HOUR in TABLES[name].partitions:
                self._try(table, table.merge_hours, now, self._config.archive_file_bytes)
                continue
            self._try(table, table.compact, _SMALL_BYTES)
            if self._finished != today:
                self._try(table, table.compact, _LARGE_BYTES, f"date = '{today - timedelta(days=2)}'")
        self._finished = today

    def _try(self, table: Table, step: Callable[..., None], *arguments: object) -> None:
        if self._stopping.is_set():
            return
        try:
            if table.exists():
                output.require_owner(self._spark, self._config)
                step(*arguments)
        except Exception as error:
            if not self._stopping.is_set():
                log.warning("Table %s was not maintained; trying again later. %s", table.name, last_cause(error))
