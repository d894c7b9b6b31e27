"""The second query of the job: why connections are closed, looked at every few seconds.

Its state is a function of the state after the batch before and of the events of the batch, and is written under the
batch's number before any alert is sent. So a batch that is done again after a crash sends the same again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import (
    agents,
    connections,
    event_rows,
    flow_ids,
    output,
    source,
    spark_session,
    storms,
    verdicts,
)
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.alerts import Alert, alert
from kafka_probe_pipeline.buffered_table import BufferedTable, Commit
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.messages import MESSAGE, send
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.versions import Versions

log = logging.getLogger("kafka_probe_pipeline")

KINDS = ("open", "close", "reset", "agent")
BUFFERED = ("opens", "closes", "verdicts", "storms", "agents")


@dataclass(frozen=True, slots=True)
class Tables:
    """The state of the diagnosis, and its tables. Changes of storms are a table, too."""

    agents: Versions
    connections: Versions
    storms: Versions
    opens: BufferedTable
    closes: BufferedTable
    verdicts: BufferedTable
    storm_changes: BufferedTable
    agent_reports: BufferedTable

    @classmethod
    def of(cls, spark: SparkSession, config: PipelineConfig, commits: dict[str, Commit] | None = None) -> Tables:
        """Return those below the output directory. commits: the last one of each table by this process."""
        commits = {} if commits is None else commits
        return cls(
            Versions(spark, config.agents, agents.SCHEMA),
            Versions(spark, config.connections, connections.SCHEMA),
            Versions(spark, config.storms, storms.SCHEMA),
            *(BufferedTable.of(spark, config, name, commits) for name in BUFFERED),
        )

    @property
    def buffered(self) -> list[BufferedTable]:
        """Return the tables of facts."""
        return [self.opens, self.closes, self.verdicts, self.storm_changes, self.agent_reports]


class News(NamedTuple):
    """Facts of a micro-batch: the number of events, and when Kafka got the oldest and the newest, µs since epoch.

    The times are None without events. opens_without_id, closes_without_id: those without a flow id.
    reports: those of agents that are kept in a table.
    """

    oldest_us: int | None
    now_us: int | None
    events: int
    opens: int
    closes: int
    opens_without_id: int
    closes_without_id: int
    reports: int

    @classmethod
    def of(cls, events: DataFrame) -> News:
        """Count the events."""
        kinds = [F.col("kind") == kind for kind in ("open", "close")]
        without = F.col("flow_id").isNull()
        counts = (*kinds, *(kind & without for kind in kinds), event_rows.is_minutely())
        times = F.min("received_us"), F.max("received_us")
        (row,) = events.agg(*times, F.count("*"), *map(F.count_if, counts)).collect()
        return cls(*row)


@dataclass(slots=True)
class Diagnosis:
    """One micro-batch, the same however often it is called with the same batch."""

    name: ClassVar = "diagnosis"
    kinds: ClassVar = KINDS
    config: PipelineConfig
    progress: Progress
    receivers: tuple[Alertmanager, ...] = ()
    commits: dict[str, Commit] = field(default_factory=dict)
    judged: int | None = None  # the last version found in which every connection has a verdict; None: none found yet

    def __call__(self, parsed: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        spark = spark_session.for_its_cores(parsed.sparkSession)
        output.require(spark, self.config, self.name, batch_id)
        parsed.persist(source.STORAGE)
        try:
            events = parsed.transform(source.received).where(F.col("kind").isin(*KINDS))
            news = News.of(events)
            if news.now_us is not None:
                tables = Tables.of(spark, self.config, self.commits)
                self.look(events, news, source.Clock(batch_id, news.now_us), tables)
            self.progress.batch(self.name, news.events, news.now_us, began_s)
        finally:
            parsed.unpersist()

    def resume(self, spark: SparkSession) -> None:
        """Send the receivers the alerts that a job before this one may not have delivered."""
        known = Tables.of(spark, self.config).storms.newest()
        self._notify([alert(row) for row in known.collect()] if known else [])

    def look(self, events: DataFrame, news: News, clock: source.Clock, tables: Tables) -> None:
        """Bring the tables up to date, and send alerts on changes."""
        batch_id = clock.batch_id
        if not tables.agents.exists(batch_id):
            before = tables.agents.before(batch_id)
            tables.agents.write(agents.agents(events, before, clock, self.config), batch_id)
        agents_now = tables.agents.batch(batch_id)
        opens, closes = self._keep(events, news, batch_id, tables)
        if not tables.connections.exists(batch_id):
            self._update_connections(opens, closes, news, agents_now, clock, tables)
        rows, new, recent = tables.connections.none(), Counter[str](), Counter[str]()
        if tables.connections.exists(batch_id):  # else no verdict was given
            rows = tables.connections.batch(batch_id)
            new, recent = verdicts.counted(rows, clock, self.config)
        if new:
            log.info("Gave verdicts: %s.", ", ".join(f"{cause} {count}" for cause, count in sorted(new.items())))
            tables.verdicts.add(rows.transform(verdicts.given, batch_id), batch_id)
        if not tables.storms.exists(batch_id):
            before_now = tables.storms.rows_before(batch_id)
            if storms.due(before_now, new, recent, clock, self.config):
                now = (
                    storms.storms(rows, agents_now, self._open(news, tables), before_now, clock, self.config)
                    if new
                    else storms.without_new(tables.storms.spark, before_now, clock, self.config)
                )
                tables.storms.write(now, batch_id)
        if tables.storms.exists(batch_id):
            known_now = tables.storms.batch(batch_id).collect()
            self.progress.storms(sum(storm["state"] == storms.ACTIVE for storm in known_now))
            changed = [alert(storm) for storm in known_now if storm["batch_id"] == batch_id]
            if changed:
                tables.storm_changes.add(tables.storms.batch(batch_id).transform(storms.changes, batch_id), batch_id)
            self._alert(changed, tables.storms.spark)
        for versions in (tables.agents, tables.connections, tables.storms):
            versions.remove_old()
        for table in tables.buffered:
            table.commit_if_due(clock)
        self.progress.verdicts(new)

    def _update_connections(
        self,
        opens: DataFrame,
        closes: DataFrame,
        news: News,
        agents_now: DataFrame,
        clock: source.Clock,
        tables: Tables,
    ) -> None:
        """Write a new version of the connections if events or new verdicts change it."""
        number = tables.connections.number_before(clock.batch_id)
        known = tables.connections.none() if number is None else tables.connections.batch(number)
        is_changed = self._is_changed(known, news)
        if number == self.judged and not is_changed:
            return
        if is_changed:
            others, since_us = opens, self._lately_us(news)
            if news.closes:
                others = tables.opens.read(since_us, clock.batch_id)
                earlier = tables.closes.read(since_us, clock.batch_id - 1)
                closes = closes.transform(connections.not_over, earlier, known)
            # Not a checkpoint: Spark computes again what a lost executor held of persisted rows.
            known = connections.connections(closes, others, known).persist()
        rows, has_verdict = known, F.col("verdict").isNotNull()
        judged = verdicts.verdicts(known, agents_now, clock, self.config)
        if judged:
            rows = known.where(has_verdict).unionByName(judged.persist())
        if is_changed or (judged and not judged.where(has_verdict).isEmpty()):
            tables.connections.write(rows.transform(connections.within_limits, clock, self.config), clock.batch_id)
        elif not judged:
            self.judged = number
        if judged:
            judged.unpersist()
        known.unpersist()

    def _keep(self, events: DataFrame, news: News, batch_id: int, tables: Tables) -> tuple[DataFrame, DataFrame]:
        """Add the rows of events to their tables; return opens and closes, with flow ids that are known elsewhere."""
        since_us = self._lately_us(news)
        opens, closes = events.transform(event_rows.opens), events.transform(event_rows.closes)
        if news.reports:
            tables.agent_reports.add(events.transform(event_rows.agents), batch_id)
        if news.opens_without_id:
            opens = opens.transform(
                flow_ids.with_flow_ids,
                tables.opens.read(since_us, batch_id - 1).unionByName(opens),
                tables.closes.read(since_us, batch_id - 1).unionByName(closes),
            )
        if news.opens:
            tables.opens.add(opens, batch_id)
        if news.closes_without_id:
            closes = closes.transform(flow_ids.with_flow_ids_of_opens, tables.opens.read(since_us, batch_id))
        if news.closes:
            tables.closes.add(closes, batch_id)
        return opens, closes

    def _open(self, news: News, tables: Tables) -> DataFrame:
        """Return the connections of which no end is closed."""
        found = (table.read(self._lately_us(news)) for table in (tables.opens, tables.closes))
        return connections.open_of(*found)

    def _is_changed(self, known: DataFrame, news: News) -> bool:
        """Return True if the events may change a closed connection."""
        return bool(news.closes or (news.opens and not known.transform(connections.without_other_end).isEmpty()))

    def _lately_us(self, news: News) -> float:
        """Return the earliest time of a report of an end that is open at the first event, µs since epoch."""
        return (news.oldest_us or 0) - self.config.open_limit * 1e6

    def _alert(self, alerts: list[Alert], spark: SparkSession) -> None:
        if not alerts:
            return
        messages = ({"key": one.id, "value": one.message()} for one in alerts)
        rows = spark_session.rows(spark, messages, MESSAGE)
        send(rows, self.config.alerts_topic, self.config.kafka)
        for one in alerts:
            log.warning("Alert %s was %s: %s.", one.id, one.change, one.summary)
        self._notify(alerts)

    def _notify(self, alerts: list[Alert]) -> None:
        for receiver in self.receivers:
            receiver.send(alerts)
