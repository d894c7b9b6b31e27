"""The query of traffic: sums flows, keeps requests, and sends sums and malformed lines to topics."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import agents, event_rows, names, output, seen_events, source, spark_session
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.messages import dead_letters, send, traffic_messages
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.tables import BATCH_ID, DATE, Table
from kafka_probe_pipeline.traffic import has_overflow, traffic
from kafka_probe_pipeline.versions import Versions

log = logging.getLogger("kafka_probe_pipeline")

# Kinds of events that count no requests and add no names. An idle fleet sends only these.
_WITHOUT_TRAFFIC = ("agent", "reset", "offsets")


@dataclass(frozen=True, slots=True)
class TrafficQuery:
    """One micro-batch, the same however often it is called with the same batch: tables first, topics from the tables.

    Names come before rows, so that a row is named by all that is known when it is written. One that was written before
    its name was known stays as it is in the table, where readers name it. It is sent again with its name if its date is
    not before yesterday.
    """

    name: ClassVar = "traffic"
    kinds: ClassVar = ()  # all
    config: PipelineConfig
    table: Table
    names: Table
    requests: Table
    partition_ends: Table
    group_positions: Table
    seen_events: Versions
    progress: Progress

    @classmethod
    def of(cls, spark: SparkSession, config: PipelineConfig, progress: Progress) -> TrafficQuery:
        """Write to the tables below the output directory."""
        return cls(
            config,
            Table(spark, config, "traffic"),
            Table(spark, config, "topic_names"),
            Table(spark, config, "requests"),
            Table(spark, config, "partition_ends"),
            Table(spark, config, "group_positions"),
            Versions(spark, config.seen_events, seen_events.SCHEMA),
            progress,
        )

    def __call__(self, parsed: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        spark = spark_session.for_its_cores(parsed.sparkSession)
        output.require(spark, self.config, self.name, batch_id)
        parsed.persist(source.STORAGE)
        try:
            kind = F.col("event.kind")
            by_reason = (
                parsed.groupBy("reason")
                .agg(
                    F.count("*").alias("lines"),
                    F.max(F.unix_micros("timestamp")).alias("newest_us"),
                    F.count_if(~kind.isin(*_WITHOUT_TRAFFIC)).alias("with_traffic"),
                    F.count_if(kind == "request").alias("requests"),
                    F.count_if(kind == "offsets").alias("offsets"),
                )
                .collect()
            )
            counts = {row["reason"]: row["lines"] for row in by_reason}
            newest_us = max((row["newest_us"] for row in by_reason), default=0)
            events, repeated = source.received(parsed), 0
            if any(row["with_traffic"] for row in by_reason):
                repeated = self._add(events, batch_id, newest_us, requests=any(row["requests"] for row in by_reason))
            if any(row["offsets"] for row in by_reason):
                self.partition_ends.append(events.transform(event_rows.partition_ends), batch_id, newest_us)
                self.group_positions.append(events.transform(event_rows.group_positions), batch_id, newest_us)
            if not self.seen_events.exists(batch_id):
                self._remember(events, batch_id)
            self.seen_events.remove_old()
            if counts.keys() - {None}:
                send(dead_letters(source.malformed(parsed)), self.config.dead_letter_topic, self.config.kafka)
            self.progress.batch(self.name, counts.pop(None, 0), newest_us, began_s)
            self.progress.lines(counts)
            self.progress.repeated(repeated)
        finally:
            parsed.unpersist()

    def _add(self, events: DataFrame, batch_id: int, newest_us: int, *, requests: bool) -> int:
        """Add the events to the tables, and send the rows of traffic. Return how many were left out as repeated."""
        known = self.names.read().drop(BATCH_ID, DATE)
        new = self.names.append(events.transform(names.pairs).transform(names.unlike, known), batch_id, newest_us)
        counted = events.where(F.col("kind").isin("flow", "request"))
        fresh, repeated = seen_events.fresh(counted, self.seen_events.before(batch_id))
        if requests:
            self.requests.append(fresh.transform(event_rows.requests), batch_id, newest_us)
        rows = fresh.transform(traffic, self.config.window, partial(names.named, known=self.names.read()))
        appended = self.table.append(rows, batch_id, newest_us)
        self._send(appended)
        self.progress.overflowed(appended.where(has_overflow()).count())
        if not new.isEmpty():
            earlier = self.table.read().where((F.col(BATCH_ID) < batch_id) & (F.col(DATE) >= _lately(newest_us)))
            self._send(earlier.transform(names.named_late, new))
        return repeated

    def _remember(self, events: DataFrame, batch_id: int) -> None:
        """Keep what was seen of each agent, and log how many are too many."""
        before = self.seen_events.before(batch_id)
        self.seen_events.write(seen_events.seen_events(events, before), batch_id)
        if self.seen_events.batch(batch_id).count() == agents.MOST_AGENTS:
            forgotten = seen_events.remembered(events, before).count() - agents.MOST_AGENTS
            if forgotten:
                log.warning(
                    "Dropped the state of %d agents, keeping the %d that reported last. Check for forged events.",
                    forgotten,
                    agents.MOST_AGENTS,
                )

    def _send(self, rows: DataFrame) -> None:
        send(traffic_messages(rows), self.config.traffic_topic, self.config.kafka)


def _lately(newest_us: int) -> Column:
    """Return yesterday: the date before that of the newest event."""
    return F.date_sub(F.to_date(F.timestamp_micros(F.lit(newest_us))), 1)
