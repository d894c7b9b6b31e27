"""The second query of the job: why connections are closed, looked at every few seconds.

Its state is a function of the state after the batch before and of the events of the batch, and is written under the
batch's number before any alert is sent. So a batch that is done again after a crash sends the same again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import agents, connections, hadoop, session, sinks, source, storms, verdicts
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.alerts import Alert, alert
from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.sinks import send
from kafka_probe_pipeline.tables import Table
from kafka_probe_pipeline.versions import Versions

log = logging.getLogger("kafka_probe_pipeline")

KINDS = (*connections.KINDS, "reset", "agent")
FIELDS = {
    "v",
    "kind",
    "ts",
    "seq",
    "complete_since",
    "complete_until",
    "open",
    *connections.END.names,
    *connections.CLOSE.names,
}


@dataclass(frozen=True, slots=True)
class Tables:
    """The state of the diagnosis, and its table of verdicts."""

    agents: Versions
    connections: Versions
    verdicts: Table
    storms: Versions

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> Tables:
        """Those below the output directory."""
        return cls(
            Versions(spark, config.agents, agents.SCHEMA),
            Versions(spark, config.connections, connections.SCHEMA),
            Table(spark, config, "verdicts"),
            Versions(spark, config.storms, storms.SCHEMA),
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One micro-batch, the same however often it is called with the same batch."""

    name: ClassVar = "diagnosis"
    config: Config
    progress: Progress
    receivers: tuple[Alertmanager, ...] = ()

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        # A session of the query's own: Spark made it from that of the job.
        spark = session.for_few_rows(records.sparkSession)
        hadoop.require_shared(spark, self.config.output, self.name)
        parsed = records.transform(source.parsed, FIELDS).persist()
        try:
            events = parsed.transform(source.received).where(F.col("kind").isin(*KINDS))
            of_connections = F.bool_or(F.col("kind").isin(*connections.KINDS))
            ((now_us, news, count),) = events.agg(F.max("received_us"), of_connections, F.count("*")).collect()
            if now_us is not None:
                self._look(events, news, source.Clock(batch_id, now_us), Tables.of(spark, self.config))
            self.progress.batch(self.name, count, now_us, began_s)
        finally:
            parsed.unpersist()

    def resume(self, spark: SparkSession) -> None:
        """Send the receivers the alerts that a job before this one may not have delivered."""
        known = Tables.of(spark, self.config).storms.newest()
        self._notify([alert(row) for row in known.collect()] if known else [])

    def _look(self, events: DataFrame, news: bool, clock: source.Clock, tables: Tables) -> None:
        """Bring the tables up to date, and send alerts on changes. `news`: some events are about connections."""
        batch_id = clock.batch_id
        agents_before = tables.agents.before(batch_id)
        if not tables.agents.exists(batch_id):
            tables.agents.write(agents.agents(events, agents_before, clock, self.config), batch_id)
        agents_now = tables.agents.batch(batch_id)
        if not tables.connections.exists(batch_id):
            known = tables.connections.before(batch_id)
            if news:
                # What an executor held of it that is lost Spark works out again, as it would not with a checkpoint.
                known = connections.connections(events, known, agents_before, clock, self.config).persist()
            rows = verdicts.verdicts(known, agents_now, clock, self.config)
            if news or rows is not known:
                tables.connections.write(rows, batch_id)
            known.unpersist()
        rows = tables.connections.before(batch_id + 1)
        new, recent = verdicts.counted(rows, clock, self.config)
        if new:
            self.progress.verdicts(new)
            log.info("verdicts: %s", ", ".join(f"{cause} {count}" for cause, count in sorted(new.items())))
            tables.verdicts.append(rows.transform(verdicts.given, batch_id), batch_id, clock.now_us)
        if not tables.storms.exists(batch_id):
            before_now = tables.storms.rows_before(batch_id)
            if storms.due(before_now, new, recent, clock, self.config):
                now = (
                    storms.storms(rows, agents_now, before_now, clock, self.config)
                    if new
                    else storms.without_new(tables.storms.spark, before_now, clock, self.config)
                )
                tables.storms.write(now, batch_id)
        if tables.storms.exists(batch_id):
            known_now = tables.storms.batch(batch_id).collect()
            self.progress.storms(sum(storm["state"] == storms.ACTIVE for storm in known_now))
            changed = [alert(storm) for storm in known_now if storm["batch_id"] == batch_id]
            self._alert(changed, tables.storms.spark)
        for versions in (tables.agents, tables.connections, tables.storms):
            versions.remove_old()

    def _alert(self, alerts: list[Alert], spark: SparkSession) -> None:
        if not alerts:
            return
        messages = ({"key": one.id, "value": one.message()} for one in alerts)
        rows = session.rows(spark, messages, sinks.MESSAGE)
        send(rows, self.config.alerts_topic, self.config.kafka)
        for one in alerts:
            log.warning("alert %s %s: %s", one.id, one.change, one.summary)
        self._notify(alerts)

    def _notify(self, alerts: list[Alert]) -> None:
        for receiver in self.receivers:
            receiver.send(alerts)
