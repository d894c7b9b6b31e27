"""The command `kafka-probe rebalances`: who joined or left a consumer group, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import library_of, process_of, workload_of
from kafka_probe_console.errors import TableError
from kafka_probe_console.period import Period, moved
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_TIME = "least(ts, received_ts)"
"""The time of a request, of which a wrong or forged clock makes none later than Kafka got it."""
_BEFORE = timedelta(days=1)  # the period before the one of the rows, in which members may have joined first
_KNOWN = "SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM requests WHERE membership IS NOT NULL"


@click.command(
    epilog="""\b
Examples:
  kafka-probe rebalances --tables kafka-probe-output --since 2h
  kafka-probe rebalances --tables kafka-probe-output --group billing --filter 'not change = rejoined'
"""
)
@click.option("--group", metavar="PATTERN", help="consumer group, with * and ? as in shells")
@prints_view()
def rebalances(tables: OpenTables, period: Period, group: str | None) -> AnswerView:
    """Print who joined or left a consumer group, and why.

    `change`: joined, rejoined, left, timed_out (it did not take part in the next generation of its group and had not
    left), removed (the broker no longer knew it), fenced, refused, or, in groups of the newer protocols, reassigned.
    `reason`: why it joined or left, if its client gives reasons, as Java's does. `stood_still_s`: from its request to
    join until it got partitions.
    """
    if not tables.add("requests") or "membership" not in tables.columns("requests"):
        tables.require("traffic")
        raise TableError("The tables have no request that changed the members of a group.")
    begin = moved(period.begin, -_BEFORE) if period.begin else None
    where, values = within(_TIME, Period(begin, period.end))
    shown, of_shown = ("time >= ?", (period.begin,)) if period.begin else ("true", ())
    of_group = ' AND "group" GLOB ?' if group else ""
    sql = f"""
        WITH seen AS (
            SELECT {_TIME} AS time, time - to_microseconds(coalesce(latency_us, 0)) AS asked, "group", member_id,
                if(member_id IS NULL, NULL, ("group", member_id)) AS member, instance_id, membership, reason, api,
                api_version, coalesce(nullif(generation, -1), member_epoch) AS generation, client.id AS client,
                {library_of("client")} AS library, side,
                if(side = 'client', {workload_of(tables, "requests")}, NULL) AS workload,
                if(side = 'client', {process_of()}, NULL) AS process, if(side = 'client', node, NULL) AS node,
                if(side = 'client', local, peer) AS address, if(side = 'client', peer, local) AS broker,
                nullif(array_to_string(list_transform(error_names, lambda one: one.key), ', '), '') AS error
            FROM (
                SELECT *, row_number() OVER (PARTITION BY agent_id, conn_id, correlation_id, api ORDER BY ts) AS use
                FROM requests WHERE {where} AND membership IS NOT NULL{of_group}
            )
            -- Both ends report a request of which both are watched. A client may use a correlation id again.
            QUALIFY row_number() OVER (
                PARTITION BY coalesce(flow_id, agent_id || conn_id), correlation_id, api, use ORDER BY side
            ) = 1
        ),
        joins AS (
            SELECT *, member IS NOT NULL AND row_number() OVER (PARTITION BY member ORDER BY time) > 1 AS again
            FROM seen WHERE membership = 'joined'
        ),
        of_joins AS (
            SELECT joins.* EXCLUDE (again), CASE
                    WHEN again THEN 'rejoined'
                    -- Brokers name members first since JoinGroup 4, but not those with an id of their own.
                    WHEN joins.api = 'JoinGroup' AND joins.api_version >= 4 AND joins.instance_id IS NULL
                        AND joins.member NOT IN (
                            SELECT member FROM seen WHERE membership = 'new' AND member IS NOT NULL
                        ) THEN 'rejoined'
                    ELSE 'joined'
                END AS change,
                if(joins.api != 'JoinGroup' OR assigned.generation = joins.generation,
                    epoch(assigned.time - joins.asked), NULL) AS stood_still_s
            FROM joins ASOF LEFT JOIN (FROM seen WHERE membership = 'assigned') assigned
                ON joins.member = assigned.member AND joins.time <= assigned.time
        ),
        generations AS (
            SELECT "group", generation, lead(generation) OVER next AS next, lead(min(time)) OVER next AS next_ts
            FROM joins WHERE api = 'JoinGroup' GROUP BY "group", generation
            WINDOW next AS (PARTITION BY "group" ORDER BY min(time))
        ),
        timed_out AS (
            SELECT joins.* EXCLUDE (again) REPLACE (next_ts AS time, NULL AS reason),
                'timed_out' AS change, NULL::DOUBLE AS stood_still_s
            FROM joins JOIN generations USING ("group", generation)
                ANTI JOIN joins later ON later.member = joins.member AND later.generation = generations.next
                ANTI JOIN (FROM seen WHERE membership IN ('left', 'removed', 'fenced')) gone
                    ON gone.member = joins.member AND gone.time BETWEEN joins.time AND generations.next_ts
            WHERE joins.api = 'JoinGroup' AND joins.member IS NOT NULL AND next IS NOT NULL
        ),
        others AS (
            SELECT *, membership AS change, NULL::DOUBLE AS stood_still_s
            FROM seen WHERE membership IN ('left', 'fenced', 'refused')
            UNION ALL
            SELECT *, 'removed', NULL FROM seen
            WHERE membership = 'removed' AND coalesce(member NOT IN (SELECT member FROM timed_out), true)
            UNION ALL
            SELECT * EXCLUDE (before), 'reassigned', NULL FROM (
                SELECT *, lag(membership) OVER (PARTITION BY member ORDER BY time) AS before FROM seen
            ) WHERE membership = 'assigned' AND api != 'SyncGroup' AND before IS DISTINCT FROM 'joined'
        )
        FROM (FROM of_joins UNION ALL BY NAME FROM timed_out UNION ALL BY NAME FROM others) WHERE {shown}
    """
    return AnswerView(
        sql=sql,
        values=(*values, *((group,) if group else ()), *of_shown),
        columns=columns(
            *("time", "group", "change", "client", "reason", "stood_still_s", "workload", "generation", "process"),
            *("node", "address", "error", "member_id", "instance_id", "library", "broker", "side"),
            numbers={"stood_still_s", "generation"},
            times={"time"},
        ),
        sort="time",
        time="time",
        subject="change of a group's members",
        known=_KNOWN,
    )
