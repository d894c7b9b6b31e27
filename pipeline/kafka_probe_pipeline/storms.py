"""Finds storms: many verdicts of one kind within a window become one row, which is opened, updated and resolved.

Idle storms are closes for the same cause at the same idle age; other storms are named as what they are: the restart of
a broker, a crash loop of a workload, a workload that connects again and again. The density of closes
is measured by the clocks of their hosts, the quiet time of a storm by Kafka's. Spark keeps and counts the connections;
the verdicts of a window are few enough for the driver. This module never reads or writes.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline import session
from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.scopes import BROKER, NETWORK, UNNAMED, WORKLOAD, open_by_agents, scopes_of_connection
from kafka_probe_pipeline.source import Clock, struct_of

log = logging.getLogger("kafka_probe_pipeline")

IDLE, RESTART, CRASHES, RECONNECTS = "idle_disconnects", "broker_restart", "client_crash_loop", "reconnects"
# A few connections that a device between clients and brokers drops are a storm, however many others it forwards.
MIDDLEBOX_CAUSES = ("middlebox_reset", "middlebox_silent_drop")
IDLE_CAUSES = ("client_idle_limit", "broker_idle_limit", *MIDDLEBOX_CAUSES)
ACTIVE, RESOLVED = "active", "resolved"
OPENED, UPDATED = "opened", "updated"

# Most storms that are active at once. Each adds columns to the query; hundreds of workloads at once share one cause.
MOST_ACTIVE = 200
NAMED_PER_SCOPE = 5
# A window starts so many times per its length.
HOPS = 6
# Levels of idle ages are logarithms in thousandths: a difference of 10 % is 95.
LEVELS = 1000
SECOND_US = 1_000_000

_LONG, _STRING = T.LongType(), T.StringType()
_SCOPES = {"workloads": WORKLOAD, "brokers": BROKER, "networks": NETWORK}
NamedScope = tuple[str, str]
Subject = tuple[str, str | None]
# `subject` is the cause of an idle storm, else the broker or the workload; `change` is what batch `batch_id` did.
# `since_us` is of the clock of the host that closed first, the other times are of Kafka's.
SCHEMA = struct_of(
    {
        **dict.fromkeys(("id", "kind", "subject"), _STRING),
        "level": _LONG,
        **dict.fromkeys(("state", "change"), _STRING),
        **dict.fromkeys(("batch_id", "since_us", "opened_us", "updated_us", "resolved_us"), _LONG),
        **dict.fromkeys(("count", "population"), _LONG),
        "share": T.DoubleType(),
        **dict.fromkeys(("scope", "cause"), _STRING),
        **dict.fromkeys(("idle_us", "both_ends"), _LONG),
        "evidence": _STRING,
        **dict.fromkeys(_SCOPES, T.ArrayType(struct_of({"count": _LONG, "name": _STRING}))),
    }
)

_TIMES = {"since_ts": "since_us", "opened_ts": "opened_us", "resolved_ts": "resolved_us"}
# A row of the table: what a micro-batch changed. `ts`: when, by Kafka's clock.
CHANGES = struct_of(
    {
        **dict.fromkeys(("ts", *_TIMES), T.TimestampType()),
        **{
            field.name: field.dataType
            for field in SCHEMA
            if not field.name.endswith("_us") and field.name not in ("level", "batch_id")
        },
        "idle_us": _LONG,
    }
)


def due(before: Iterable[Row], new: Mapping[str, int], recent: Mapping[str, int], clock: Clock, config: Config) -> bool:
    """Return True if `storms` has anything to do: it costs less to ask first.

    before: the storms so far. new, recent: verdicts of the batch and of the last window, by cause.
    """
    active = [storm for row in before if (storm := Storm(row.asDict())).now["state"] == ACTIVE]
    if not new:
        return any(storm.is_quiet(clock, config) for storm in active)
    ordinary = sum(recent.get(cause, 0) for cause in ("normal", "unknown"))
    every = sum(recent.values())
    return bool(active) or every - ordinary >= config.storm_minimum or every >= config.reconnect_minimum


def storms(
    connections: DataFrame,
    agents: DataFrame,
    open_connections: DataFrame,
    before: Iterable[Row],
    clock: Clock,
    config: Config,
) -> DataFrame:
    """The storms `before`, brought up to date by the verdicts of the batch: columns of `SCHEMA`.

    open_connections: those of which no end is closed. They are counted only in scopes that no agent counts.
    """
    known = [Storm(row.asDict(recursive=True)) for row in before]
    incidents = [Incident(*row) for row in connections.transform(incidents_of, config).collect()]
    span = _span(config)
    active = [storm for storm in known if storm.now["state"] == ACTIVE]
    by_subject: dict[Subject, list[Storm]] = defaultdict(list)

    def storms_with(one: Incident) -> list[Storm]:
        return [storm for storm in by_subject[one.kind, one.subject] if storm.has(one, span, config)]

    for storm in active:
        by_subject[storm.subject].append(storm)
    new = begun((one for one in incidents if not storms_with(one)), clock, config)
    for storm in new:
        by_subject[storm.subject].append(storm)
    for one in incidents:
        for storm in storms_with(one):
            storm.members.append(one)
    new.sort(key=lambda storm: (storm.subject[0] == RECONNECTS, -len(storm.members)))  # a workload causes these at will
    free_slots = max(0, MOST_ACTIVE - len(active))
    if left_out := len(new[free_slots:]):
        log.warning("Left out %d possible storms: at most %d are reported at a time.", left_out, MOST_ACTIVE)
    new = new[:free_slots]
    current = [*new, *(storm for storm in active if storm.fresh(clock))]
    reporting = agents.where(F.col("last_seen_us") > clock.now_us - config.agent_silent * SECOND_US)
    open_by_scope = populations(connections, reporting, open_connections, current, config) if current else {}
    for storm in current:
        storm.describe(open_by_scope, config)
    large = [storm for storm in new if storm.is_large(config)]
    return _kept(connections.sparkSession, (*known, *large), clock, config)


def without_new(spark: SparkSession, before: Iterable[Row], clock: Clock, config: Config) -> DataFrame:
    """The same after a batch without verdicts, in which storms can only end: nothing is counted for that."""
    return _kept(spark, [Storm(row.asDict(recursive=True)) for row in before], clock, config)


class Incident(NamedTuple):
    """A verdict that may be part of a storm, of a row of `incidents_of`."""

    kind: str
    subject: str | None
    level: int
    given_in: int
    judged_us: int
    closed_us: int
    cause: str
    idle_us: int
    evidence: str
    both: bool
    scopes: Sequence[Row]


@dataclass
class Storm:
    """A storm: its row of `SCHEMA`, and the incidents of this micro-batch's state that are part of it."""

    now: dict[str, Any]
    members: list[Incident] = field(default_factory=list)

    @property
    def subject(self) -> Subject:
        """Return its kind, and what it is about."""
        return self.now["kind"], self.now["subject"]

    def has(self, one: Incident, span: int, config: Config) -> bool:
        """Return True if an incident of its subject is part of it."""
        near = abs(one.level - self.now["level"]) <= span
        return near and one.closed_us >= _earliest_us(self.now["since_us"], config)

    @property
    def hits(self) -> Counter[NamedScope]:
        """Return how many members each scope has."""
        named = ((of["scope"], of["name"]) for one in self.members for of in one.scopes)
        return Counter((scope, name) for scope, name in named if name is not None)

    def describe(self, populations: Mapping[tuple[str, NamedScope], int], config: Config) -> None:
        """Update what its members have in common; it stays as it was once the members are dropped."""
        if not self.members:
            return
        hits = self.hits
        causes = Counter(one.cause for one in self.members)
        # A scope with few hits is left out: a workload with one connection would always have a share of 100 %.
        shares = [
            (hit / population, population, scope)
            for scope, hit in hits.items()
            if hit >= config.storm_minimum
            for population in (max(populations.get((self.now["id"], scope), hit), hit),)
        ]
        if shares:  # else most of its members are forgotten by now
            share, population, scope = max(shares)
            self.now |= {"share": share, "population": population, "scope": " ".join(scope)}
        self.now |= {
            "cause": max(sorted(causes), key=causes.__getitem__),
            "idle_us": _middle(one.idle_us for one in self.members) if self.now["kind"] == IDLE else None,
            "both_ends": sum(one.both for one in self.members),
            "evidence": max((one.both, one.evidence) for one in self.members)[1],
            **{column: _most(hits, scope) for column, scope in _SCOPES.items()},
        }

    def is_large(self, config: Config) -> bool:
        """Return True if it hit as large a share of a scope as its cause requires; before that, `describe` it."""
        cause, share = self.now["cause"], self.now["share"]
        return cause in MIDDLEBOX_CAUSES or (share is not None and share >= config.storm_percent / 100)

    def fresh(self, clock: Clock) -> int:
        """Return how many of its members are of the batch."""
        return sum(one.given_in == clock.batch_id for one in self.members)

    def is_quiet(self, clock: Clock, config: Config) -> bool:
        """Return True if it is active, but has had no new member for long."""
        now = self.now
        return now["state"] == ACTIVE and bool(clock.now_us - now["updated_us"] >= config.storm_quiet * SECOND_US)

    def brought_up_to_date(self, clock: Clock, config: Config) -> dict[str, Any]:
        """Return its row after the batch: it opened, grew, or was quiet for so long that it is over."""
        storm, now_us = self.now, clock.now_us
        fresh = self.fresh(clock)
        if storm["opened_us"] is None:
            changes = {"change": OPENED, "state": ACTIVE, "opened_us": now_us, "count": len(self.members)}
        elif storm["state"] == ACTIVE and fresh:
            changes = {"change": UPDATED, "count": storm["count"] + fresh}
        elif self.is_quiet(clock, config):
            changes = {"change": RESOLVED, "state": RESOLVED, "resolved_us": now_us}
        else:
            return {**storm, "change": None}
        grows = {"updated_us": now_us} if changes["change"] != RESOLVED else {}
        return {**storm, **changes, **grows, "batch_id": clock.batch_id}


def changes(storms: DataFrame, batch_id: int) -> DataFrame:
    """Return what a micro-batch changed: columns of `CHANGES`."""
    times = {"ts": F.greatest("updated_us", "resolved_us"), **{name: F.col(us) for name, us in _TIMES.items()}}
    changed = storms.where((F.col("batch_id") == batch_id) & F.col("change").isNotNull())
    return changed.withColumns({name: F.timestamp_micros(us) for name, us in times.items()}).select(*CHANGES.names)


def incidents_of(connections: DataFrame, config: Config) -> DataFrame:
    """The connections whose verdict may be part of a storm, with the `kind`, `subject` and `level` of that."""
    cause, by, idle_us = F.col("verdict.cause"), F.col("verdict.by"), F.col("verdict.idle_us")
    ages_us = {side: F.col(f"{side}.close.age_us") for side in ("client", "server")}
    age_us = F.when(by == "client", ages_us["client"]).otherwise(ages_us["server"])
    kind = (
        F.when(cause.isin(*IDLE_CAUSES), F.when(idle_us >= config.idle_minimum * SECOND_US, IDLE))
        .when((cause == "broker_shutdown") | ((cause == "process_exit") & (by == "server")), RESTART)
        .when(cause == "process_exit", CRASHES)
        .when(age_us <= config.storm_window * SECOND_US, RECONNECTS)
    )
    is_idle = F.col("kind") == IDLE
    names = F.map_from_entries(F.transform("scopes", lambda of: F.struct(of["scope"], of["name"])))
    subject = F.when(is_idle, cause).when(F.col("kind") == RESTART, names[BROKER]).otherwise(names[WORKLOAD])
    return (
        connections.where(F.col("verdict").isNotNull())
        .withColumns({"kind": kind, "scopes": scopes_of_connection()})
        .where(F.col("kind").isNotNull())
        .select(
            "kind",
            subject.alias("subject"),
            F.when(is_idle, level(idle_us, config)).otherwise(0).alias("level"),
            F.col("verdict.batch_id").alias("given_in"),
            *(f"verdict.{name}" for name in ("judged_us", "closed_us", "cause", "idle_us", "evidence")),
            (F.col("ends") == "both").alias("both"),
            "scopes",
        )
    )


def level(idle_us: Column, config: Config) -> Column:
    """Idle ages that are the same by `same_age_percent` and `idle_minimum` differ by no more than the span in it."""
    slack_us = config.idle_minimum * SECOND_US * 100 / config.same_age_percent
    return (F.log(idle_us + slack_us) * LEVELS).cast("long")


def begun(incidents: Iterable[Incident], clock: Clock, config: Config) -> list[Storm]:
    """The densest group of each kind and subject, if it is large enough."""
    recent_us = clock.now_us - min(config.storm_window, config.storm_quiet) * SECOND_US
    alike: dict[tuple[str, str | None], list[Incident]] = defaultdict(list)
    for one in incidents:
        if one.judged_us > recent_us:
            alike[one.kind, one.subject].append(one)
    storms = []
    for (kind, subject), of_one_kind in alike.items():
        minimum = config.reconnect_minimum if kind == RECONNECTS else config.storm_minimum
        group = densest(of_one_kind, config)
        if len(group) >= minimum:
            since_us = min(one.closed_us for one in group)
            identity = "|".join(map(str, (kind, subject, since_us, clock.batch_id)))
            row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
            row |= {"id": sha256(identity.encode()).hexdigest()[:16], "kind": kind, "subject": subject}
            row |= {"level": (group[0].level + group[-1].level) // 2, "since_us": since_us}
            storms.append(Storm(row))
    return storms


def densest(incidents: Iterable[Incident], config: Config) -> list[Incident]:
    """Return the most that closed within a window at the same idle age. Of as many, those of the latest window."""
    length_us, span = config.storm_window * SECOND_US, _span(config)
    windows: dict[int, list[Incident]] = defaultdict(list)
    for one in incidents:
        last = one.closed_us // (length_us / HOPS)
        for number in range(HOPS):
            windows[int(last - number)].append(one)
    best: list[Incident] = []
    for _, of_window in sorted(windows.items()):
        of_window.sort(key=lambda one: one.level)
        end = 0
        for start, one in enumerate(of_window):
            while end < len(of_window) and of_window[end].level <= one.level + span:
                end += 1
            if end - start >= len(best):
                best = of_window[start:end]
    return best


def populations(
    connections: DataFrame, agents: DataFrame, open_connections: DataFrame, storms: Sequence[Storm], config: Config
) -> dict[tuple[str, NamedScope], int]:
    """Return how many connections each scope hit had when a storm began, by storm: those open now or closed since.

    Agents report how many are open. In scopes that no agent counts, because one side is not watched, those of
    `open_connections` are counted.
    """
    names = {name for storm in storms for _, name in storm.hits}
    opened_us = F.least(*(f"{side}.opened_us" for side in ("client", "server")))
    each = connections.select(
        F.col("verdict.closed_us").alias("closed_us"),
        opened_us.alias("opened_us"),
        F.explode(scopes_of_connection()).alias("of"),
    )
    counts = []
    for number, storm in enumerate(storms):
        since_us = storm.now["since_us"]
        was_open = F.coalesce(F.col("opened_us") <= since_us, F.lit(True))
        closed = F.col("closed_us") >= _earliest_us(since_us, config)
        counts.append(F.count_if(was_open & closed).alias(f"closed_{number}"))
    by_scope = each.where(F.col("of.name").isin(names)).groupBy("of.scope", "of.name")
    rows = by_scope.agg(F.max("of.counted").alias("counted"), *counts).collect()
    closed_by_scope = {(row["scope"], row["name"]): row for row in rows}
    reported = agents.transform(open_by_agents).where(F.col("name").isin({*names, UNNAMED})).collect()
    open_now = {(row["scope"], row["name"]): row["open_reported"] for row in reported}
    if not all(row["counted"] for row in rows):
        of_open = open_connections.select(F.explode(scopes_of_connection()).alias("of")).where(~F.col("of.counted"))
        found = of_open.where(F.col("of.name").isin(names)).groupBy("of.scope", "of.name").count().collect()
        open_now |= {(row["scope"], row["name"]): row["count"] for row in found}

    def open_in(scope: NamedScope) -> int:
        """A scope without a group of its own may have any part of those that agents sum up."""
        unnamed = open_now.get((scope[0], UNNAMED), 0) if closed_by_scope[scope]["counted"] else 0
        return int(open_now.get(scope, unnamed))

    return {
        (storm.now["id"], scope): open_in(scope) + closed_by_scope[scope][f"closed_{number}"]
        for number, storm in enumerate(storms)
        for scope in storm.hits
    }


def _kept(spark: SparkSession, storms: Iterable[Storm], clock: Clock, config: Config) -> DataFrame:
    rows = [storm.brought_up_to_date(clock, config) for storm in storms]
    return session.rows(spark, [row for row in rows if not _long_over(row, clock, config)], SCHEMA)


def _long_over(storm: Mapping[str, Any], clock: Clock, config: Config) -> bool:
    resolved_us = storm["resolved_us"]
    return resolved_us is not None and bool(clock.now_us - resolved_us >= config.closed_limit * SECOND_US)


def _earliest_us(since_us: int, config: Config) -> float:
    """Return the time of the earliest close that can join a storm. Agents do not report closes in order of time."""
    return since_us - config.storm_window * SECOND_US


def _span(config: Config) -> int:
    return round(math.log1p(config.same_age_percent / 100) * LEVELS)


def _middle(values: Iterable[int]) -> int:
    """The median, one of the values."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _most(hits: Counter[NamedScope], scope: str) -> list[dict[str, Any]]:
    """The names of a scope that were hit most."""
    named = sorted(((count, name) for (of, name), count in hits.items() if of == scope), reverse=True)
    return [{"count": count, "name": name} for count, name in named[:NAMED_PER_SCOPE]]
