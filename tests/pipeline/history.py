"""Runs a history of micro-batches through the modules of the diagnosis, without the job around them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import agents, connections, session, storms, verdicts
from kafka_probe_pipeline.config import Config, load
from kafka_probe_pipeline.source import Clock
from tests.builders.spark_events import NOON_US, SECOND_US, Event, events


class History:
    """Applies each `batch` to the state that the batches before left. Kafka got it `at_s` after noon."""

    def __init__(self, spark: SparkSession, **settings: object) -> None:
        spark = self.spark = session.for_few_rows(spark.newSession())
        self.config: Config = load(settings)
        self.number = -1
        self.agents = spark.createDataFrame([], agents.SCHEMA)
        self.connections = spark.createDataFrame([], connections.SCHEMA)
        self.storms = spark.createDataFrame([], storms.SCHEMA)

    def batch(self, *of: Event, at_s: float = 0) -> list[Row]:
        """Apply a batch; return the connections after it."""
        self.number += 1
        clock = self._clock(at_s)
        reported = events(self.spark, *of).withColumn("received_us", F.lit(clock.now_us)) if of else self._nothing()
        before = self.agents
        self.agents = _kept(agents.agents(reported, before, clock, self.config))
        rows = connections.connections(reported, self.connections, before, clock, self.config)
        self.connections = _kept(_kept(rows).transform(verdicts.verdicts, self.agents, clock, self.config))
        return self.connections.orderBy("key").collect()

    def storms_after(self, *of: Event, at_s: float = 0) -> list[Row]:
        """Apply a batch; return the storms after it."""
        self.batch(*of, at_s=at_s)
        rows = storms.storms(self.connections, self.agents, self.storms.collect(), self._clock(at_s), self.config)
        self.storms = _kept(rows)
        return self.storms.orderBy("kind").collect()

    def _clock(self, at_s: float) -> Clock:
        return Clock(self.number, NOON_US + round(at_s * SECOND_US))

    def _nothing(self) -> DataFrame:
        return events(self.spark).withColumn("received_us", F.lit(0).cast("long"))


def only(rows: list[Row]) -> Any:
    """Return the only row."""
    (row,) = rows
    return row


def _kept(rows: DataFrame) -> DataFrame:
    return rows.localCheckpoint()
