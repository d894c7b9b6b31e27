"""Finds storms: many verdicts of one kind within a window become one row, which is opened, updated and resolved.

Idle storms are closes for the same cause at the same idle age; other storms are named as what they are: the restart of
a broker, a crash loop of a workload, a workload that connects again and again. The times of closes are of the clocks of
their hosts, but not later than Kafka got them; the quiet time of a storm is by Kafka's clock. `incidents` counts the
connections with Spark; the rules are here. This module never reads or writes.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline import incidents, spark_session
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.evidence import SECOND_US
from kafka_probe_pipeline.incidents import HIT_MOST, HOPS, IDLE, MIDDLEBOX_CAUSES, span
from kafka_probe_pipeline.source import Clock, struct_of

log = logging.getLogger("kafka_probe_pipeline")

ACTIVE, RESOLVED = "active", "resolved"
OPENED, UPDATED = "opened", "updated"

# Most active storms of a kind: beyond that further alerts add no information.
MOST_OF_KIND = 50

_LONG, _STRING = T.LongType(), T.StringType()
# `subject` is the cause of an idle storm, else the broker or the workload; `change` is what batch `batch_id` did.
# `since_us` is of the clock of the host that closed first, at most when Kafka got the close. Other times are of Kafka.
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
        **dict.fromkeys(HIT_MOST, T.ArrayType(struct_of({"count": _LONG, "name": _STRING}))),
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


def due(
    before: Iterable[Row], new: Mapping[str, int], recent: Mapping[str, int], clock: Clock, config: PipelineConfig
) -> bool:
    """Return True if `storms` has anything to do: it costs less to ask first.

    before: the storms so far. new, recent: verdicts of the batch and of the last window, by cause.
    """
    active = [storm for row in before if (storm := Storm(row.asDict())).now["state"] == ACTIVE]
    if not new:
        return any(storm.is_quiet(clock, config) for storm in active)
    ordinary = sum(recent.get(cause, 0) for cause in ("normal", "unknown"))
    every = sum(recent.values())
    return bool(active) or every - ordinary >= config.storm_minimum or every >= config.reconnect_minimum


def within_limit(new: Iterable[Storm], active: Iterable[Storm]) -> list[Storm]:
    """Return the new storms that fit within `MOST_OF_KIND` beside the active ones."""
    kinds, kept = Counter(storm.now["kind"] for storm in active), []
    for storm in new:
        if kinds[storm.now["kind"]] < MOST_OF_KIND:
            kinds[storm.now["kind"]] += 1
            kept.append(storm)
    return kept


def storms(
    connections: DataFrame,
    agents: DataFrame,
    open_connections: DataFrame,
    before: Iterable[Row],
    clock: Clock,
    config: PipelineConfig,
) -> DataFrame:
    """Return the storms `before`, brought up to date by the verdicts of the batch: columns of `SCHEMA`.

    open_connections: those of which no end is closed.
    """
    spark = connections.sparkSession
    known = [Storm(row.asDict(recursive=True)) for row in before]
    active = [storm for storm in known if storm.now["state"] == ACTIVE]
    found = connections.transform(incidents.incidents, config).persist()
    try:
        of_active = incidents.rows(spark, (storm.now for storm in active))
        candidates = incidents.candidates(found, of_active, clock, config)
        begun_now = [storm for one in candidates if (storm := begun(one, clock, config))]
        new = within_limit(begun_now, active)
        if left_out := len(begun_now) - len(new):
            log.warning("Left out %d possible storms: at most %d of a kind are reported.", left_out, MOST_OF_KIND)
        current = {storm.now["id"]: storm for storm in (*new, *active)}
        if current:
            reporting = agents.where(F.col("last_seen_us") > clock.now_us - config.agent_silent * SECOND_US)
            of_current = incidents.rows(spark, (storm.now for storm in current.values()))
            described = incidents.described(
                found,
                of_current,
                [storm.now["id"] for storm in new],
                connections,
                reporting,
                open_connections,
                clock,
                config,
            )
            for row in described:
                current[row["id"]].describe(row.asDict(recursive=True))
    finally:
        found.unpersist()
    large = [storm for storm in new if storm.is_large(config)]
    return _kept(spark, (*known, *large), clock, config)


def without_new(spark: SparkSession, before: Iterable[Row], clock: Clock, config: PipelineConfig) -> DataFrame:
    """Return the storms after a micro-batch without verdicts. Storms can only end in it, so nothing is counted."""
    return _kept(spark, [Storm(row.asDict(recursive=True)) for row in before], clock, config)


class Cell(NamedTuple):
    """The number of closes at one idle age between the starts of two windows, see `incidents.candidates`."""

    closes: int
    hop: int
    level: int
    since_us: int


@dataclass
class Storm:
    """A row of `SCHEMA`, with the number of the storm's incidents in the micro-batch and in all."""

    now: dict[str, Any]
    fresh: int = 0
    members: int = 0

    def describe(self, found: Mapping[str, Any]) -> None:
        """Update what its members have in common from a row of `incidents.described`.

        A storm without new members has no such row and stays as it was, because older members are dropped.
        """
        self.fresh, self.members = found["fresh"], found["count"]
        names = ("cause", "both_ends", "evidence", *HIT_MOST)
        if found["share"] is not None:  # else most of its members are forgotten by now
            names = (*names, "share", "population", "scope")
        self.now |= {name: found[name] for name in names}
        self.now["idle_us"] = found["idle_us"] if self.now["kind"] == IDLE else None

    def is_large(self, config: PipelineConfig) -> bool:
        """Return True if it hit as large a share of a scope as its cause requires; before that, `describe` it."""
        cause, share = self.now["cause"], self.now["share"]
        return cause in MIDDLEBOX_CAUSES or (share is not None and share >= config.storm_percent / 100)

    def is_quiet(self, clock: Clock, config: PipelineConfig) -> bool:
        """Return True if it is active, but has had no new member for long."""
        now = self.now
        return now["state"] == ACTIVE and bool(clock.now_us - now["updated_us"] >= config.storm_quiet * SECOND_US)

    def brought_up_to_date(self, clock: Clock, config: PipelineConfig) -> dict[str, Any]:
        """Return its row after the batch: it opened, grew, or was quiet for so long that it is over."""
        storm, now_us = self.now, clock.now_us
        if storm["opened_us"] is None:
            changes = {"change": OPENED, "state": ACTIVE, "opened_us": now_us, "count": self.members}
        elif storm["state"] == ACTIVE and self.fresh:
            changes = {"change": UPDATED, "count": storm["count"] + self.fresh}
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


def begun(candidate: Row, clock: Clock, config: PipelineConfig) -> Storm | None:
    """Return the storm that begins with the densest group of a candidate; None if that is too small."""
    kind, subject = candidate["kind"], candidate["subject"]
    group = densest([Cell(*cell) for cell in candidate["cells"]], config)
    if sum(cell.closes for cell in group) < incidents.minimum(kind, config):
        return None
    since_us = min(cell.since_us for cell in group)
    identity = "|".join(map(str, (kind, subject, since_us, clock.batch_id)))
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    row |= {"id": sha256(identity.encode()).hexdigest()[:16], "kind": kind, "subject": subject}
    row |= {"level": (group[0].level + group[-1].level) // 2, "since_us": since_us}
    return Storm(row)


def densest(cells: Iterable[Cell], config: PipelineConfig) -> list[Cell]:
    """Return the group of cells with the most closes, all in one window and at one idle age, by level.

    If several groups have as many, it returns the one of the latest window.
    """
    windows: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells:
        for number in range(HOPS):
            windows[cell.hop - number].append(cell)
    most, best, width = 0, list[Cell](), span(config)
    for _, of_window in sorted(windows.items()):
        of_window.sort(key=lambda cell: cell.level)
        count = end = 0
        for start, cell in enumerate(of_window):
            while end < len(of_window) and of_window[end].level <= cell.level + width:
                count += of_window[end].closes
                end += 1
            if count >= most:
                most, best = count, of_window[start:end]
            count -= cell.closes
    return best


def _kept(spark: SparkSession, storms: Iterable[Storm], clock: Clock, config: PipelineConfig) -> DataFrame:
    rows = [storm.brought_up_to_date(clock, config) for storm in storms]
    return spark_session.rows(spark, [row for row in rows if not _long_over(row, clock, config)], SCHEMA)


def _long_over(storm: Mapping[str, Any], clock: Clock, config: PipelineConfig) -> bool:
    resolved_us = storm["resolved_us"]
    return resolved_us is not None and bool(clock.now_us - resolved_us >= config.closed_limit * SECOND_US)
