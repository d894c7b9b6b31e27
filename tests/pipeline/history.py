"""Runs a history of micro-batches through the modules of the diagnosis, without the job around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import agents, connections, lifecycle, session, storms, verdicts
from kafka_probe_pipeline.config import Config, load
from kafka_probe_pipeline.source import Clock
from tests.builders.spark_events import NOON_US, SECOND_US, Event, events


class History:
    """Applies each `batch` to the state that the batches before left. Kafka got it `at_s` after noon."""

    def __init__(self, spark: SparkSession, **settings: object) -> None:
        spark = self.spark = session.for_few_rows(spark.newSession())
        spark.conf.set("spark.sql.shuffle.partitions", 1)  # tasks of few rows cost more than the rows
        self.config: Config = load(settings)
        self.number = -1
        self.agents = spark.createDataFrame([], agents.SCHEMA)
        self.opens = spark.createDataFrame([], lifecycle.OPENS)
        self.closes = spark.createDataFrame([], lifecycle.CLOSES)
        self.connections = spark.createDataFrame([], connections.SCHEMA)
        self.storms = spark.createDataFrame([], storms.SCHEMA)

    def batch(self, *of: Event, at_s: float | Sequence[float] = 0) -> list[Row]:
        """Apply a batch; return the closed connections after it, as the state has them. at_s: of all, or of each."""
        self.number += 1
        times_s = at_s if isinstance(at_s, Sequence) else [at_s]
        clock = self._clock(max(times_s))
        at_us = F.array(*(F.lit(self._clock(one).now_us) for one in times_s))
        number = F.monotonically_increasing_id().cast("int") if len(times_s) > 1 else F.lit(0)
        reported = events(self.spark, *of).withColumn("received_us", at_us[number]) if of else self._nothing()
        self.agents = _kept(agents.agents(reported, self.agents, clock, self.config))
        if kinds := {event["kind"] for event in of} & {"open", "close"}:
            self._join(reported, of, clock, closed="close" in kinds)
        rows = self.connections.transform(verdicts.verdicts, self.agents, clock, self.config)
        self.connections = _kept(rows.transform(connections.within_limits, clock, self.config))
        return self.connections.orderBy("key").collect()

    def _join(self, reported: DataFrame, of: Sequence[Event], clock: Clock, *, closed: bool) -> None:
        """Add the opens and closes; bring the closed connections up to date."""
        opens, closes = reported.transform(lifecycle.opens), reported.transform(lifecycle.closes)
        without = {event["kind"] for event in of if "flow_id" in event and event["flow_id"] is None}
        if "open" in without:
            earlier = self.opens.unionByName(opens), self.closes.unionByName(closes)
            opens = opens.transform(lifecycle.with_flow_ids, *earlier)
        self.opens = _kept(self.opens.unionByName(opens))
        if "close" in without:
            closes = closes.transform(lifecycle.with_flow_ids_of_opens, self.opens)
        lately = self.opens.where(F.unix_micros("received_ts") > clock.now_us - self.config.open_limit * SECOND_US)
        if closed:
            earlier_closes, closes = self.closes, _kept(closes)
            self.closes = earlier_closes.unionByName(closes)
            closes = closes.transform(connections.not_over, earlier_closes, self.connections)
        self.connections = _kept(connections.connections(closes, lately, self.connections))

    def current(self) -> list[Row]:
        """Return the connections that are open, and those that were closed lately."""
        return connections.current(self.opens, self.closes, self.config).orderBy("key").collect()

    def storms_after(self, *of: Event, at_s: float = 0) -> list[Row]:
        """Apply a batch; return the storms after it."""
        self.batch(*of, at_s=at_s)
        clock, open_now = self._clock(at_s), connections.open_of(self.opens, self.closes)
        rows = storms.storms(self.connections, self.agents, open_now, self.storms.collect(), clock, self.config)
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
