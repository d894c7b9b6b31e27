"""A table whose rows are kept in the checkpoint until they are committed together.

A micro-batch every few seconds would else add as many commits and files to each table. Readers that need every row at
once, such as the diagnosis, read the buffer as well.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.source import Clock
from kafka_probe_pipeline.tables import BATCH_ID, DATE, TABLES, Table
from kafka_probe_pipeline.versions import Versions

MOST_ROWS = 10_000
"""Most rows that are buffered, more only if one micro-batch brings them: each one writes the buffer anew."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The last commit: the version of the buffer that the table has. `at_us` is of Kafka's clock."""

    version: int
    at_us: int


@dataclass(frozen=True, slots=True)
class BufferedTable:
    """One of `TABLES`, and the rows that it does not have yet.

    A version of the buffer has the rows since the commit before it. It is committed under its own number, so that the
    table shows whether it has a version.
    """

    table: Table
    buffer: Versions
    commits: dict[str, Commit]

    @classmethod
    def of(cls, spark: SparkSession, config: PipelineConfig, name: str, commits: dict[str, Commit]) -> Self:
        """Return a table below the output directory. commits: the last one of each table by this process."""
        kind = TABLES[name]
        buffer = Versions(spark, f"{config.checkpoints[kind.query]}/buffers/{name}", kind.schema)
        return cls(Table(spark, config, name), buffer, commits)

    def add(self, rows: DataFrame, batch_id: int) -> None:
        """Buffer the rows of a micro-batch, unless an earlier attempt did."""
        if not self.buffer.exists(batch_id):
            self.buffer.write(self._buffered(batch_id - 1).unionByName(rows), batch_id)
            self.buffer.remove_old()

    def commit_if_due(self, clock: Clock) -> None:
        """Commit the buffered rows if the last commit is older than `--table-interval`, or there are many rows."""
        number = self._number(clock.batch_id)
        if number is None:
            return
        config, last = self.table.config, self.commits.get(self.table.name)
        due = config.once or last is None or clock.now_us - last.at_us >= config.table_interval * 1e6
        if due or (number == clock.batch_id and self.buffer.batch(number).count() > MOST_ROWS):
            self.table.append(self.buffer.batch(number), number, clock.now_us)
            self.commits[self.table.name] = Commit(number, clock.now_us)

    def read(self, since_us: float = 0, batch_id: int = sys.maxsize) -> DataFrame:
        """Return the rows up to those of a micro-batch, committed or not, whose time is not before `since_us`."""
        since = F.timestamp_micros(F.lit(round(since_us)))
        # No event is newer than its micro-batch, so that none has an earlier date than that of its time.
        committed = self.table.read().where(F.col(DATE) >= F.to_date(since)).drop(DATE, BATCH_ID)
        return committed.unionByName(self._buffered(batch_id)).where(F.col(TABLES[self.table.name].time) >= since)

    def _buffered(self, batch_id: int) -> DataFrame:
        number = self._number(batch_id)
        return self.buffer.batch(number) if number is not None else self.buffer.none()

    def _number(self, batch_id: int) -> int | None:
        """Return the version of the buffer after a micro-batch; None if there is none, or the table has it."""
        number = self.buffer.number_before(batch_id + 1)
        if number is None:
            return None
        if self.table.name not in self.commits:
            self.commits[self.table.name] = Commit(self.table.last_batch(), 0)
        return number if number > self.commits[self.table.name].version else None
