"""The second query of the job: why connections are closed, looked at every few seconds.

Its state is a function of the state after the batch before and of the events of the batch, and is written as tables
under the batch's number before anything is told. So a batch that is done again after a crash tells the same again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import agents, connections, source, storms, verdicts
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.alerts import alert
from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.sinks import Table, send

log = logging.getLogger("kafka_probe_pipeline")

KINDS = ("open", "flow", "close", "reset", "agent")
FIELDS = {"v", "kind", "ts", "seq", "complete_until", "open", *connections.END.names, *connections.CLOSE.names}
VERSIONS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One micro-batch, the same however often it is called with the same batch."""

    spark: SparkSession
    config: Config
    receivers: tuple[Alertmanager, ...] = ()

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        parsed = records.transform(source.parsed, FIELDS)
        events = parsed.transform(source.received).where(F.col("kind").isin(*KINDS)).persist()
        try:
            (known,) = events.agg(F.max("received_us").alias("now_us")).collect()
            if known["now_us"] is not None:
                self._look(events, batch_id, known["now_us"])
        finally:
            events.unpersist()

    def _look(self, events: DataFrame, batch_id: int, now_us: int) -> None:
        """Bring the tables up to date. The clock is a row and no literal, so that code is generated once."""
        clock = self.spark.createDataFrame([(batch_id, now_us)], "batch_id long, now_us long")
        said, table = Table(self.spark, self.config.agents), Table(self.spark, self.config.connections)
        said_before = said.before(batch_id, agents.SCHEMA)
        if not said.exists(batch_id):
            said.write(agents.agents(events, said_before, clock, self.config), batch_id)
        if not table.exists(batch_id):
            before = table.before(batch_id, connections.SCHEMA)
            rows = connections.connections(events, before, said_before, clock, self.config)
            table.write(rows.transform(verdicts.verdicts, said.batch(batch_id), clock, self.config), batch_id)
        given = self._verdicts(table.batch(batch_id), batch_id)
        if given:
            log.info("verdicts: %s", ", ".join(f"{cause} {count}" for cause, count in sorted(given.items())))
        self._storms(table.batch(batch_id), said.batch(batch_id), clock, batch_id, any_new=bool(given))
        for versions in (said, table, Table(self.spark, self.config.storms)):
            versions.keep(VERSIONS_KEPT)

    def _verdicts(self, rows: DataFrame, batch_id: int) -> dict[str, int]:
        """Keep the verdicts of the batch; returns how many there are of each cause."""
        new = rows.transform(verdicts.given, batch_id)
        counts = {row["cause"]: row["count"] for row in new.groupBy("cause").count().collect()}
        table = Table(self.spark, self.config.verdicts)
        if counts and not table.exists(batch_id):
            table.write(new, batch_id)
        return counts

    def _storms(self, rows: DataFrame, said: DataFrame, clock: DataFrame, batch_id: int, *, any_new: bool) -> None:
        """Bring the storms up to date if the batch can change one, and tell of what changed."""
        table = Table(self.spark, self.config.storms)
        if not table.exists(batch_id):
            before = table.before(batch_id, storms.SCHEMA)
            if not any_new and before.isEmpty():
                return
            table.write(storms.storms(rows, said, before, clock, self.config), batch_id)
        changed = [alert(row) for row in table.batch(batch_id).where(F.col("batch_id") == batch_id).collect()]
        if not changed:
            return
        letters = self.spark.createDataFrame([(one.id, one.letter()) for one in changed], "key string, value string")
        send(letters, self.config.alerts_topic, self.config.kafka)
        for one in changed:
            log.warning("alert %s %s: %s", one.id, one.change, one.summary)
        for receiver in self.receivers:
            receiver.tell(changed)

    def resume(self) -> None:
        """Tell the receivers of the alerts that a job before this one may not have delivered."""
        known = Table(self.spark, self.config.storms).newest()
        for receiver in self.receivers:
            receiver.tell([alert(row) for row in known.collect()] if known else [])
