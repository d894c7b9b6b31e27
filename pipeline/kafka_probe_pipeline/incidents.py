"""Counts the verdicts that may be part of storms, and finds what those of one storm have in common.

The driver gets a row of bounded size per possible storm and per storm, however many connections they closed. Functions
of DataFrames; this module never reads or writes tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe_pipeline import spark_session
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.connections import SIDES
from kafka_probe_pipeline.evidence import SECOND_US
from kafka_probe_pipeline.scopes import BROKER, NETWORK, UNNAMED, WORKLOAD, open_by_agents, scopes_of_connection
from kafka_probe_pipeline.source import Clock, struct_of

IDLE, RESTART, CRASHES, RECONNECTS = "idle_disconnects", "broker_restart", "client_crash_loop", "reconnects"
# A few connections that a device between clients and brokers drops are a storm, however many others it forwards.
MIDDLEBOX_CAUSES = ("middlebox_reset", "middlebox_silent_drop")
IDLE_CAUSES = ("client_idle_limit", "broker_idle_limit", *MIDDLEBOX_CAUSES)
# Lists of scopes that a storm hit most.
HIT_MOST = {"workloads": WORKLOAD, "brokers": BROKER, "networks": NETWORK}
NAMED_PER_SCOPE = 5
# A window starts so many times per its length.
HOPS = 6
# Levels of idle ages are logarithms in thousandths: a difference of 10 % is 95.
LEVELS = 1000
# Most possible storms that the driver gets, and most cells of each, the largest: clients choose the names of workloads,
# and agents the times. A storm has hundreds of cells.
MOST_CANDIDATES, MOST_CELLS = 1_000, 5_000
# In this order: there are only a few idle storms at once, and a workload causes crashes and reconnects at will.
_IN_ORDER = [IDLE, RESTART, CRASHES, RECONNECTS]

_SCOPE = ("scope", "name")
_LONG, _STRING = T.LongType(), T.StringType()
_STORM = struct_of({**dict.fromkeys(("id", "kind", "subject"), _STRING), "level": _LONG, "since_us": _LONG})


def incidents(connections: DataFrame, config: PipelineConfig) -> DataFrame:
    """Return the connections whose verdict may be part of a storm, with its `kind`, `subject` and `level`."""
    cause, by, idle_us = F.col("verdict.cause"), F.col("verdict.by"), F.col("verdict.idle_us")
    kind = (
        F.when(cause.isin(*IDLE_CAUSES), F.when(idle_us >= config.idle_minimum * SECOND_US, IDLE))
        .when((cause == "broker_shutdown") | ((cause == "process_exit") & (by == "server")), RESTART)
        .when(cause == "process_exit", CRASHES)
        .when(_of_end("close.age_us") <= config.storm_window * SECOND_US, RECONNECTS)
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
            *(f"verdict.{name}" for name in ("judged_us", "cause", "idle_us", "evidence")),
            _closed_us().alias("closed_us"),
            (F.col("ends") == "both").alias("both"),
            "scopes",
        )
    )


def level(idle_us: Column, config: PipelineConfig) -> Column:
    """Return the level of an idle age.

    Ages that are the same by `same_age_percent` and `idle_minimum` have levels that differ by no more than `span`.
    """
    slack_us = config.idle_minimum * SECOND_US * 100 / config.same_age_percent
    return (F.log(idle_us + slack_us) * LEVELS).cast("long")


def span(config: PipelineConfig) -> int:
    """Return the largest difference between levels of idle ages that are the same."""
    return round(math.log1p(config.same_age_percent / 100) * LEVELS)


def minimum(kind: str, config: PipelineConfig) -> int:
    """Return how many closes a storm of a kind begins with."""
    return config.reconnect_minimum if kind == RECONNECTS else config.storm_minimum


def candidates(incidents: DataFrame, storms: DataFrame, clock: Clock, config: PipelineConfig) -> list[Row]:
    """Return the kinds and subjects with enough recent incidents that are unlike those of active storms.

    Each row has `cells`: `closes`, `hop`, `level` and `since_us` of those that closed at one idle age, between the
    starts of two windows.
    """
    recent_us = clock.now_us - min(config.storm_window, config.storm_quiet) * SECOND_US
    hop_us = max(1, round(config.storm_window * SECOND_US / HOPS))
    kind = F.col("kind")
    least = F.when(kind == RECONNECTS, minimum(RECONNECTS, config)).otherwise(minimum(IDLE, config))
    cells = F.sort_array(F.collect_list(F.struct("closes", "hop", "level", "since_us")), asc=False)
    return (
        incidents.where(F.col("judged_us") > recent_us)
        .alias("one")
        # Whenever they closed: a second storm at the same idle age would share its later closes with the first.
        .join(F.broadcast(storms.alias("storm")), _is_alike(config), "left_anti")
        .groupBy("kind", "subject", F.expr(f"closed_us DIV {hop_us}").alias("hop"), "level")
        .agg(F.count("*").alias("closes"), F.min("closed_us").alias("since_us"))
        .groupBy("kind", "subject")
        .agg(F.sum("closes").alias("count"), F.slice(cells, 1, MOST_CELLS).alias("cells"))
        .where(F.col("count") >= least)
        .orderBy(F.array_position(F.lit(_IN_ORDER), kind), F.desc("count"), "subject")
        .limit(MOST_CANDIDATES)
        .collect()
    )


def rows(spark: SparkSession, storms: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return a row for each storm, with the columns that decide which incidents are part of it."""
    return spark_session.rows(spark, ({name: storm[name] for name in _STORM.names} for storm in storms), _STORM)


def described(
    incidents: DataFrame,
    storms: DataFrame,
    new: Iterable[str],
    connections: DataFrame,
    agents: DataFrame,
    open_connections: DataFrame,
    clock: Clock,
    config: PipelineConfig,
) -> list[Row]:
    """Return a row per storm that has incidents of the micro-batch: columns of `in_common`, `share_of` and `hit_most`.

    new: ids of storms that may begin now, which have one in any case.
    open_connections: those of which no end is closed. They are counted only in scopes that no agent counts.
    """
    of_storms = members(incidents, storms, config)
    changes = (F.col("fresh") > 0) | F.col("id").isin([*new])
    common = of_storms.transform(in_common, clock).where(changes).persist()
    found = of_storms.join(F.broadcast(common.select("id")), "id", "left_semi").transform(hits).persist()
    closed = closed_since(found, connections, config).persist()
    try:
        uncounted = None if closed.where(~F.col("counted")).isEmpty() else open_connections
        share = closed.transform(share_of, agents, uncounted)
        return common.join(share, "id", "left").join(hit_most(found), "id", "left").collect()
    finally:
        for each in (common, found, closed):
            each.unpersist()


def members(incidents: DataFrame, storms: DataFrame, config: PipelineConfig) -> DataFrame:
    """Return the incidents that are part of the storms, once per storm, each with the storm's `id` and `since_us`."""
    joined = incidents.alias("one").join(F.broadcast(storms.alias("storm")), _is_member(config))
    return joined.select("storm.id", "storm.since_us", "one.*")


def in_common(members: DataFrame, clock: Clock) -> DataFrame:
    """Return what the members of each storm have in common: `cause`, `idle_us`, `both_ends` and `evidence`.

    Beside these `count`, and `fresh`: how many are of the micro-batch. `idle_us` is the lower median.
    """
    return members.groupBy("id").agg(
        F.count("*").alias("count"),
        F.count_if(F.col("given_in") == clock.batch_id).alias("fresh"),
        F.mode("cause", deterministic=True).alias("cause"),
        F.expr("percentile_disc(0.5) WITHIN GROUP (ORDER BY idle_us)").cast("long").alias("idle_us"),
        F.count_if("both").alias("both_ends"),
        F.max(F.struct("both", "evidence"))["evidence"].alias("evidence"),
    )


def hits(members: DataFrame) -> DataFrame:
    """Return how many members of a storm each scope has: `id`, `since_us`, `scope`, `name` and `hits`."""
    of = members.select("id", "since_us", F.explode("scopes").alias("of")).where(F.col("of.name").isNotNull())
    return of.groupBy("id", "since_us", "of.scope", "of.name").agg(F.count("*").alias("hits"))


def hit_most(hits: DataFrame) -> DataFrame:
    """Return the names of each scope that a storm hit most: lists of `count` and `name`, most first."""
    in_order = Window.partitionBy("id", "scope").orderBy(F.desc("hits"), F.desc("name"))
    most = hits.withColumn("place", F.row_number().over(in_order)).where(F.col("place") <= NAMED_PER_SCOPE)
    one = F.struct(F.col("hits").alias("count"), "name")
    lists = {column: F.collect_list(F.when(F.col("scope") == scope, one)) for column, scope in HIT_MOST.items()}
    return most.groupBy("id").agg(*(F.sort_array(names, asc=False).alias(column) for column, names in lists.items()))


def closed_since(hits: DataFrame, connections: DataFrame, config: PipelineConfig) -> DataFrame:
    """Add to scopes how many of their connections were open when the storm began, and are closed: `closed`.

    Only of scopes with enough hits: a workload with one connection would always have a share of 100 %.
    """
    large = hits.where(F.col("hits") >= config.storm_minimum)
    was_open = F.coalesce(F.col("opened_us") <= F.col("since_us"), F.lit(True))
    is_since = F.col("closed_us") >= _earliest_us(F.col("since_us"), config)
    # By the clock of a host that is ahead, connections would seem to be opened after the storm began.
    before_us = [F.col(f"{side}.last_seen_us") - F.col(f"{side}.close.age_us") for side in SIDES]
    opened_us = F.least(*(f"{side}.opened_us" for side in SIDES), *before_us)
    of_scopes = connections.where(F.col("verdict").isNotNull()).select(
        _closed_us().alias("closed_us"), opened_us.alias("opened_us"), F.explode(scopes_of_connection()).alias("of")
    )
    return (
        of_scopes.select("closed_us", "opened_us", "of.*")
        .join(large, [*_SCOPE])
        .groupBy("id", *_SCOPE, "hits")
        .agg(F.count_if(was_open & is_since).alias("closed"), F.max("counted").alias("counted"))
    )


def share_of(closed: DataFrame, agents: DataFrame, open_connections: DataFrame | None) -> DataFrame:
    """Return the scope in which each storm hit the largest share of connections: `share`, `population` and `scope`.

    The population is how many connections the scope had when the storm began: those open now or closed since. Agents
    report how many are open.
    """
    reported = agents.transform(open_by_agents)
    named = reported.where(F.col("name") != UNNAMED)
    # A scope without a group of its own may have any part of those that agents sum up.
    summed_up = reported.where(F.col("name") == UNNAMED).select("scope", F.col("open_reported").alias("summed_up"))
    scopes = closed.join(named, [*_SCOPE], "left").join(summed_up, "scope", "left")
    is_open = F.when(F.col("counted"), F.coalesce("open_reported", "summed_up"))
    if open_connections is not None:
        of = open_connections.select(F.explode(scopes_of_connection()).alias("of")).where(~F.col("of.counted"))
        of_each = of.groupBy("of.scope", "of.name").agg(F.count("*").alias("open_found"))
        scopes = scopes.join(of_each, [*_SCOPE], "left")
        is_open = F.coalesce(is_open, "open_found", "open_reported")
    population = F.greatest(F.coalesce(is_open, F.lit(0)) + F.col("closed"), "hits")
    share = F.struct((F.col("hits") / population).alias("share"), population.alias("population"), *_SCOPE)
    largest = scopes.groupBy("id").agg(F.max(share).alias("largest"))
    return largest.select(
        "id", "largest.share", "largest.population", F.concat_ws(" ", "largest.scope", "largest.name").alias("scope")
    )


def _of_end(name: str) -> Column:
    """Return a column of the end that decided the verdict."""
    return F.when(F.col("verdict.by") == "client", F.col(f"client.{name}")).otherwise(F.col(f"server.{name}"))


def _closed_us() -> Column:
    """Return when a connection was closed. A clock that is ahead must not move it after the closes of other hosts."""
    return F.least("verdict.closed_us", _of_end("last_seen_us"))


def _is_member(config: PipelineConfig) -> Column:
    """Return the condition that joins incidents, as `one`, with their storms, as `storm`."""
    return _is_alike(config) & (F.col("one.closed_us") >= _earliest_us(F.col("storm.since_us"), config))


def _is_alike(config: PipelineConfig) -> Column:
    """Return the condition that joins incidents with storms of the same kind, subject and idle age, at any time."""
    near = F.abs(F.col("one.level") - F.col("storm.level")) <= span(config)
    return (F.col("one.kind") == F.col("storm.kind")) & F.col("one.subject").eqNullSafe(F.col("storm.subject")) & near


def _earliest_us(since_us: Column, config: PipelineConfig) -> Column:
    """Return the time of the earliest close that can join a storm. Agents do not report closes in order of time."""
    return since_us - round(config.storm_window * SECOND_US)
