"""Storms: many verdicts of one kind within a window in, one row per storm out, opened, updated and resolved.

Idle storms are closes for the same cause at the same idle age; other storms are named as what they are: the restart of
a broker, a crash loop of a workload, a workload that connects again and again. How dense closes are is told by the
clocks of their hosts, and how long a storm is quiet by Kafka's. Pure functions of DataFrames; this room never reads or
writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.scopes import BROKER, NETWORK, WORKLOAD, open_by_agents, scopes_of_connection
from kafka_probe_pipeline.source import struct_of

IDLE, RESTART, CRASHES, RECONNECTS = "idle_disconnects", "broker_restart", "client_crash_loop", "reconnects"
IDLE_CAUSES = ("client_idle_limit", "broker_idle_limit", "middlebox_reset", "middlebox_silent_drop")
ACTIVE, RESOLVED = "active", "resolved"
OPENED, UPDATED = "opened", "updated"

NAMED_PER_SCOPE = 5
# A window starts so many times per its length.
HOPS = 6
# Idle ages are compared as logarithms in thousandths: 10 % are 95.
LEVELS = 1000
SECOND_US = 1_000_000

_LONG, _STRING = T.LongType(), T.StringType()
_SCOPES = {"workloads": WORKLOAD, "brokers": BROKER, "networks": NETWORK}
_SUBJECT = ("kind", "subject", "level")
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
# What the members of a storm tell.
_TOLD = ("population", "share", "scope", "cause", "idle_us", "both_ends", "evidence", *_SCOPES)


def possible(recent: Mapping[str, int], config: Config) -> bool:
    """Whether so many verdicts of a window, by cause, can be a storm at all: it costs less to ask first."""
    ordinary = sum(recent.get(cause, 0) for cause in ("normal", "unknown"))
    every = sum(recent.values())
    return every - ordinary >= config.storm_minimum or every >= config.reconnect_minimum


def storms(connections: DataFrame, agents: DataFrame, before: DataFrame, clock: DataFrame, config: Config) -> DataFrame:
    """The storms `before`, brought up to date by the verdicts of the batch: columns of `SCHEMA`.

    What is small and used several times is kept in between (`localCheckpoint`): else it is computed as often.
    """
    incidents = connections.transform(incidents_of, config).crossJoin(F.broadcast(clock)).localCheckpoint()
    active = before.where(F.col("state") == ACTIVE)
    new = incidents.join(*_part_of(active, config), "left_anti").transform(begun, config).localCheckpoint()
    current = active.select("id", *_SUBJECT, "since_us").unionByName(new)
    members = incidents.join(*_part_of(current, config)).localCheckpoint()
    heard = agents.crossJoin(F.broadcast(clock)).where(
        F.col("now_us") - F.col("heard_us") < config.agent_silent * SECOND_US
    )
    told = members.transform(details).join(
        members.transform(hits).localCheckpoint().transform(shares, connections, heard, config), "id"
    )
    return (
        before.unionByName(new, allowMissingColumns=True)
        .join(told.withColumnsRenamed({name: f"new_{name}" for name in _TOLD}), "id", "left")
        .where(F.col("opened_us").isNotNull() | (F.col("new_share") >= config.storm_percent / 100))
        .crossJoin(F.broadcast(clock.withColumnRenamed("batch_id", "now_in")))
        .transform(brought_up_to_date, config)
    )


def incidents_of(connections: DataFrame, config: Config) -> DataFrame:
    """The connections whose verdict may be part of a storm, with the `kind`, `subject` and `level` of that."""
    cause, by, idle_us = F.col("verdict.cause"), F.col("verdict.by"), F.col("verdict.idle_us")
    ages_us = {side: F.col(f"{side}.close.age_us") for side in ("connecting", "accepting")}
    age_us = F.when(by == "connecting", ages_us["connecting"]).otherwise(ages_us["accepting"])
    kind = (
        F.when(cause.isin(*IDLE_CAUSES), F.when(idle_us >= config.idle_minimum * SECOND_US, IDLE))
        .when((cause == "broker_shutdown") | ((cause == "process_exit") & (by == "accepting")), RESTART)
        .when(cause == "process_exit", CRASHES)
        .when(age_us <= config.storm_window * SECOND_US, RECONNECTS)
    )
    is_idle = F.col("kind") == IDLE
    names = F.map_from_entries("scopes")
    subject = F.when(is_idle, cause).when(F.col("kind") == RESTART, names[BROKER]).otherwise(names[WORKLOAD])
    return (
        connections.where(F.col("verdict").isNotNull())
        .withColumns({"kind": kind, "scopes": scopes_of_connection()})
        .where(F.col("kind").isNotNull())
        .select(
            "kind",
            subject.alias("subject"),
            F.when(is_idle, (F.log(idle_us) * LEVELS).cast("long")).otherwise(0).alias("level"),
            F.col("verdict.batch_id").alias("given_in"),
            *(f"verdict.{name}" for name in ("judged_us", "closed_us", "cause", "idle_us", "evidence")),
            (F.col("ends") == "both").alias("both"),
            "scopes",
        )
    )


def begun(incidents: DataFrame, config: Config) -> DataFrame:
    """The densest group of each kind and subject, if it is large enough: `id`, `_SUBJECT` and `since_us`."""
    minimum = F.when(F.col("kind") == RECONNECTS, config.reconnect_minimum).otherwise(config.storm_minimum)
    recent = F.col("now_us") - F.col("judged_us") < min(config.storm_window, config.storm_quiet) * SECOND_US
    length, hop = round(config.storm_window * 1000), round(config.storm_window * 1000 / HOPS)
    at = F.window(F.timestamp_micros("closed_us"), f"{length} milliseconds", f"{hop} milliseconds")
    alike = Window.partitionBy(*_SUBJECT[:2], "at").orderBy("level").rangeBetween(0, _span(config))
    group = F.struct("count", "level", "highest", "since_us")
    identity = F.concat_ws("|", "kind", "subject", "group.since_us", "batch_id")
    return (
        incidents.where(recent)
        .withColumn("at", at)
        .withColumns(
            {
                "count": F.count("*").over(alike),
                "highest": F.max("level").over(alike),
                "since_us": F.min("closed_us").over(alike),
            }
        )
        .where(F.col("count") >= minimum)
        .groupBy(*_SUBJECT[:2], "batch_id")
        .agg(F.max(group).alias("group"))
        .select(
            F.substring(F.sha2(identity, 256), 1, 16).alias("id"),
            "kind",
            "subject",
            ((F.col("group.level") + F.col("group.highest")) / 2).cast("long").alias("level"),
            "group.since_us",
        )
    )


def details(members: DataFrame) -> DataFrame:
    """What the members of each storm have in common, and how many are of this batch (`fresh`)."""
    return members.groupBy("id").agg(
        F.count("*").alias("members"),
        F.count_if(F.col("given_in") == F.col("batch_id")).alias("fresh"),
        F.mode("cause", deterministic=True).alias("cause"),
        F.when(F.first("kind") == IDLE, F.percentile_approx("idle_us", 0.5, 10_000)).alias("idle_us"),
        F.count_if("both").alias("both_ends"),
        F.max_by("evidence", F.struct("both", "evidence")).alias("evidence"),
    )


def hits(members: DataFrame) -> DataFrame:
    """How many members of each storm each scope has: `id`, `scope`, `name`, `hit`, and the storm's `since_us`."""
    return (
        members.select("id", "since_us", F.explode("scopes").alias("of"))
        .where(F.col("of.name").isNotNull())
        .groupBy("id", "since_us", "of.scope", "of.name")
        .agg(F.count("*").alias("hit"))
    )


def shares(hits: DataFrame, connections: DataFrame, agents: DataFrame, config: Config) -> DataFrame:
    """Per storm the scopes hit most, and the one of which it hit the largest share of what was open when it began.

    One with few hits is not asked: of the only connection of a workload it is always all.
    """
    closed_us = F.col("verdict.closed_us")
    opened_us = F.least(*(f"{side}.opened_us" for side in ("connecting", "accepting")))
    each = connections.select(
        closed_us.alias("closed_us"), opened_us.alias("opened_us"), F.explode(scopes_of_connection()).alias("of")
    ).select("closed_us", "opened_us", F.col("of.scope").alias("scope"), F.col("of.name").alias("name"))
    was_open = F.coalesce(F.col("opened_us") <= F.col("since_us"), F.lit(True))
    found = (
        each.join(F.broadcast(hits), ["scope", "name"])
        .where(was_open)
        .groupBy("id", "scope", "name")
        .agg(
            F.count_if(F.col("closed_us").isNull()).alias("still_open"),
            F.count_if(F.col("closed_us") >= _earliest_us(config)).alias("closed"),
        )
    )
    none = F.lit(0)
    still_open = F.greatest(F.coalesce("still_open", none), F.coalesce("open_said", none))
    population = F.greatest(still_open + F.coalesce("closed", none), "hit")
    hit = F.struct(F.col("hit").alias("count"), "name")

    def most(scope: str) -> Column:
        ordered = F.sort_array(F.collect_list(F.when(F.col("scope") == scope, hit)), asc=False)
        return F.slice(ordered, 1, NAMED_PER_SCOPE)

    return (
        hits.join(found, ["id", "scope", "name"], "left")
        .join(F.broadcast(agents.transform(open_by_agents)), ["scope", "name"], "left")
        .withColumn(
            "of", F.struct((F.col("hit") / population).alias("share"), population.alias("population"), "scope", "name")
        )
        .groupBy("id")
        .agg(
            F.max(F.when(F.col("hit") >= config.storm_minimum, F.col("of"))).alias("of"),
            *(most(scope).alias(name) for name, scope in _SCOPES.items()),
        )
        .select(
            "id",
            "of.share",
            "of.population",
            F.concat_ws(" ", "of.scope", "of.name").alias("scope"),
            *_SCOPES,
        )
    )


def brought_up_to_date(storms: DataFrame, config: Config) -> DataFrame:
    """What opened, grew, or was quiet for so long that it is over; what was over long ago leaves."""
    active, fresh = F.col("state") == ACTIVE, F.coalesce("fresh", F.lit(0))
    quiet = F.col("now_us") - F.col("updated_us") >= config.storm_quiet * SECOND_US
    gone = F.coalesce(F.col("now_us") - F.col("resolved_us") >= config.closed_limit * SECOND_US, F.lit(False))
    change = (
        F.when(F.col("opened_us").isNull(), OPENED).when(active & (fresh > 0), UPDATED).when(active & quiet, RESOLVED)
    )
    changes, is_new = F.col("change").isNotNull(), F.col("change") == OPENED
    grows, is_over = is_new | (F.col("change") == UPDATED), F.col("change") == RESOLVED
    return (
        storms.where(~gone)
        .withColumn("change", change)
        .withColumns(
            {
                "batch_id": F.when(changes, F.col("now_in")).otherwise(F.col("batch_id")),
                "state": F.when(is_new, ACTIVE).when(is_over, RESOLVED).otherwise(F.col("state")),
                "opened_us": F.coalesce("opened_us", "now_us"),
                "updated_us": F.when(grows, F.col("now_us")).otherwise(F.col("updated_us")),
                "resolved_us": F.when(is_over, F.col("now_us")).otherwise(F.col("resolved_us")),
                "count": F.when(is_new, F.col("members")).otherwise(F.col("count") + fresh),
                # What the members tell stays as it was when they are forgotten.
                **{name: F.when(grows, F.col(f"new_{name}")).otherwise(F.col(name)) for name in _TOLD},
            }
        )
        .select(*SCHEMA.names)
    )


def _part_of(storms: DataFrame, config: Config) -> tuple[DataFrame, Column]:
    """The storms to join incidents with, and the condition under which an incident is part of one."""
    other = F.broadcast(storms.select("id", "since_us", *(F.col(name).alias(f"of_{name}") for name in _SUBJECT)))
    same = (
        (F.col("kind") == F.col("of_kind"))
        & F.col("subject").eqNullSafe(F.col("of_subject"))
        & (F.abs(F.col("level") - F.col("of_level")) <= _span(config))
        & (F.col("closed_us") >= _earliest_us(config))
    )
    return other, same


def _earliest_us(config: Config) -> Column:
    """The first close that can be part of a storm. Agents tell at different times: later ones of closes before."""
    return F.col("since_us") - config.storm_window * SECOND_US


def _span(config: Config) -> int:
    return round(math.log1p(config.same_age_percent / 100) * LEVELS)
