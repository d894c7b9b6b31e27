"""The command `kafka-probe groups`: how far consumer groups are behind the ends of their partitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.period import Period, moment, moved
from kafka_probe_console.traffic import topic_names
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_LAG = ("lag", "lag_s", "more_than")
_AGES = ("position_age_s", "end_age_s")
_CHANGE_S = 30
_HOURS = timedelta(hours=3)  # agents repeat unchanged offsets within this time
_RECENTLY = timedelta(minutes=10)
_PARTITION = 'cluster, topic, "partition"'
_KNOWN = """
    SELECT count(DISTINCT "group"), epoch_us(min(seen_ts)), epoch_us(least(max(seen_ts), now())) FROM group_positions
"""


def _before(text: str, now: datetime) -> Period:
    """Return the hours before the time that a text names."""
    at = moment(text, now)
    return Period(moved(at, -_HOURS), at)


@click.command(
    epilog="""\b
Examples:
  kafka-probe groups --tables kafka-probe-output
  kafka-probe groups --tables kafka-probe-output --group billing --partitions
  kafka-probe groups --tables kafka-probe-output --filter 'lag_s > 300'
"""
)
@click.option("--group", metavar="PATTERN", help="consumer group, with * and ? as in shells")
@click.option("--partitions", is_flag=True, help="print a row per partition")
@prints_view(since="3h", at=_before, at_help="as it was then")
def groups(tables: OpenTables, period: Period, group: str | None, *, partitions: bool) -> AnswerView:
    """Print how far consumer groups are behind, in records and in seconds.

    `lag_s` is the age of the oldest record that the group has not consumed. With `more_than` it is older than the first
    end in the period. `not_seen`: partitions whose end no agent saw. `members`: clients of the group in the last ten
    minutes, those with one client id by process where agents saw it.
    """
    for name in ("group_positions", "partition_ends"):
        tables.require(name)
    sql, values = _of_partitions(tables, period, group)
    of_rows: tuple[str, ...] = ("partition", *_LAG, "position", "end")
    if not partitions:
        of_rows = (*_LAG, "members", "partitions", "not_seen", "most_lag")
        members, of_members = _members(tables, period)
        sql = f"""
            SELECT "group", cluster, topic, count(*) AS partitions, max(lag) AS most_lag,
                if(count(lag) > 0, least(sum(lag), 9e18), NULL)::BIGINT AS lag,
                max(lag_s) AS lag_s, arg_max_null(more_than, lag_s) AS more_than, count(*) - count(lag) AS not_seen,
                min(position_age_s) AS position_age_s, max(end_age_s) AS end_age_s, max(last) AS last,
                {members} AS members
            FROM ({sql}) of_partitions GROUP BY "group", cluster, topic
        """
        values = *of_members, *values
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("group", "topic", *of_rows, *_AGES, "cluster", "last"),
            numbers={*of_rows, *_AGES} - {"more_than"},
            times={"last"},
        ),
        sort="lag",
        time="last",
        subject="group",
        known=_KNOWN,
    )


def _of_partitions(tables: OpenTables, period: Period, group: str | None) -> tuple[str, tuple[object, ...]]:
    """Return a relation of the partitions of groups with its values.

    A record came between the last end at most as high as its offset and the first higher end: its age is estimated as
    if records had come evenly in between. Agents send an end that changes after _CHANGE_S at most, so that a longer
    time in between was one without records.
    """
    where, values = within("received_ts", period)
    now = repr(period.end.timestamp()) if period.end else "epoch(now())"
    of_group = ' AND "group" GLOB ?' if group else ""
    sql = f"""
        WITH ends AS (
            SELECT cluster_id, broker, coalesce(topic, name, topic_id) AS topic, "partition", "offset",
                least(seen_ts, now()) AS seen_ts
            FROM partition_ends LEFT JOIN {topic_names(tables)} USING (topic_id) WHERE {where}
        ),
        positions AS (
            SELECT "group", cluster_id, broker, coalesce(topic, name, topic_id) AS topic, "partition", "offset",
                least(seen_ts, now()) AS seen_ts
            FROM group_positions LEFT JOIN {topic_names(tables)} USING (topic_id) WHERE {where}{of_group}
        ),
        -- Agents that saw no cluster id of a broker name the broker: a group's coordinator, a partition's leader.
        only_clusters AS (
            SELECT topic, any_value(cluster_id) AS only_id
            FROM (SELECT topic, cluster_id FROM ends UNION ALL SELECT topic, cluster_id FROM positions)
            GROUP BY topic HAVING count(DISTINCT cluster_id) = 1
        ),
        of_clusters AS (
            SELECT coalesce(cluster_id, only_id, broker) AS cluster, topic, "partition", "offset", seen_ts
            FROM ends LEFT JOIN only_clusters USING (topic)
        ),
        newest AS (
            SELECT "group", coalesce(cluster_id, only_id, broker) AS cluster, topic, "partition",
                arg_max("offset", seen_ts) AS position, max(seen_ts) AS position_ts
            FROM positions LEFT JOIN only_clusters USING (topic) GROUP BY ALL
        ),
        newest_ends AS (
            SELECT {_PARTITION}, arg_max("offset", seen_ts) AS "end", max(seen_ts) AS end_ts
            FROM of_clusters GROUP BY ALL
        ),
        -- Of each position the ends around it.
        around AS (
            SELECT "group", {_PARTITION}, position,
                max(seen_ts) FILTER ("offset" <= position) AS before_ts, max("offset") FILTER ("offset" <= position)
                    AS before,
                min(seen_ts) FILTER ("offset" > position) AS after_ts, min("offset") FILTER ("offset" > position)
                    AS after
            FROM newest JOIN of_clusters USING ({_PARTITION}) GROUP BY ALL
        ),
        lags AS (
            SELECT newest.*, "end", end_ts, before_ts,
                -- A position above a newer end is of a topic that was deleted and created again: its lag is unknown.
                CASE
                    WHEN "end" >= newest.position THEN "end" - newest.position
                    WHEN end_ts <= position_ts THEN 0
                END AS lag,
                CASE
                    WHEN lag <= 0 THEN 0
                    WHEN before_ts IS NULL THEN {now} - epoch(after_ts)
                    ELSE {now} - epoch(after_ts)
                        + greatest(least(epoch(after_ts) - epoch(before_ts), {_CHANGE_S}), 0)
                        * (after - newest.position - 1) / (after - before)
                END AS lag_s
            FROM newest LEFT JOIN newest_ends USING ({_PARTITION})
                LEFT JOIN around USING ("group", {_PARTITION})
        )
        SELECT *, if(lag > 0 AND before_ts IS NULL, 'more than', NULL) AS more_than,
            {now} - epoch(position_ts) AS position_age_s, {now} - epoch(end_ts) AS end_age_s,
            greatest(position_ts, end_ts) AS last
        FROM lags
    """
    return sql, (*values, *values, *((group,) if group else ()))


def _members(tables: OpenTables, period: Period) -> tuple[str, tuple[object, ...]]:
    """Return SQL of the number of a group's members in a cluster, with its values.

    They are those at the end of the period. Clients with the same client id count by process, where that was watched.
    """
    if not tables.add("traffic"):
        return "NULL::BIGINT", ()
    end = period.end or datetime.now(UTC)
    where, values = within("window_end", Period(moved(end, -_RECENTLY), period.end))
    process = "if(side = 'client', (node, pid, start_time), NULL)"
    sql = f"""coalesce((
        SELECT sum(processes) FROM (
            SELECT "group" AS of_group, greatest(count(DISTINCT {process}), 1) AS processes,
                array_agg(cluster_id) FILTER (cluster_id IS NOT NULL) AS clusters
            FROM traffic WHERE {where} GROUP BY "group", client_id
        ) WHERE of_group = "group" AND (clusters IS NULL OR list_contains(clusters, cluster))
    ), 0)::BIGINT"""
    return sql, values
