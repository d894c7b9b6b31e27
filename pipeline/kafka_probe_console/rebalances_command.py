"""The command `kafka-probe rebalances`: who joined or left a consumer group, and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import ASKED, library_of, process_of, workload_of
from kafka_probe_console.errors import TableError
from kafka_probe_console.period import Period, moved
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_SETTLED = timedelta(minutes=2)  # after the begin of a generation: by then the tables have all that joined it
_CLOCKS_S = 60  # difference of clocks: rows of one generation are no further apart
_LEAVING_S = 5  # after a generation began: a request to leave may have begun it
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
    # Members may have joined long before the period, and join again after it.
    where, values = within(ASKED, Period(None, moved(period.end, _SETTLED) if period.end else None))
    bounds = {"time >= ?": period.begin, "time < ?": period.end}
    shown = " AND ".join(["true", *(condition for condition, time in bounds.items() if time)])
    of_shown = tuple(filter(None, bounds.values()))
    of_group = ' AND "group" GLOB ?' if group else ""
    settled = moved(datetime.now(UTC), -_SETTLED)
    sql = f"""
        WITH reported AS (
            SELECT {ASKED} AS time, time - to_microseconds(coalesce(latency_us, 0)) AS asked, "group", membership,
                reason, api, api_version, coalesce(nullif(generation, -1), member_epoch) AS generation, partitions,
                nullif(named.member_id, '') AS member_id, nullif(named.instance_id, '') AS instance_id,
                -- A static member keeps its instance id when it gets another member id.
                if(coalesce(instance_id, member_id) IS NULL, NULL, ("group", coalesce(instance_id, member_id)))
                    AS member,
                client.id AS client, {library_of("client")} AS library, side, flow_id, agent_id, conn_id, assignor,
                correlation_id, if(side = 'client', {workload_of(tables, "requests")}, NULL) AS workload,
                if(side = 'client', {process_of()}, NULL) AS process, if(side = 'client', node, NULL) AS node,
                if(side = 'client', local, peer) AS address, if(side = 'client', peer, local) AS broker,
                nullif(array_to_string(list_transform(error_names, lambda one: one.key), ', '), '') AS error,
                -- A client may use a correlation id again.
                row_number() OVER (PARTITION BY agent_id, conn_id, correlation_id, api, named ORDER BY ts) AS use
            FROM (
                SELECT * EXCLUDE (member_id, instance_id), unnest(coalesce(
                    members, [struct_pack(member_id := member_id, instance_id := instance_id)]
                )) AS named
                FROM requests WHERE {where} AND membership IS NOT NULL{of_group}
            )
        ),
        -- Both ends report a request of which both are watched: the client's knows who, the broker's what it did.
        seen AS (
            SELECT * REPLACE (first_value(membership) OVER (same ORDER BY side DESC) AS membership) FROM reported
            WINDOW same AS (
                PARTITION BY coalesce(flow_id, agent_id || conn_id), correlation_id, api, api_version, "group", member,
                    use
            ) QUALIFY row_number() OVER (same ORDER BY side) = 1
        ),
        steps AS (
            SELECT *, lag(membership) OVER of_member AS before, lag(partitions) OVER of_member AS partitions_before,
                lag(generation) OVER of_member AS generation_before,
                lead(membership) OVER of_member AS after, lead(time) OVER of_member AS after_ts,
                lead(generation) OVER of_member AS after_generation
            FROM seen WINDOW of_member AS (PARTITION BY coalesce(member, (flow_id, conn_id)) ORDER BY time)
        ),
        joins AS (
            SELECT *, if(before = 'new', 'joined', membership) AS change, CASE
                    WHEN assignor LIKE 'cooperative%' THEN NULL -- such members go on with what they keep
                    WHEN partitions > 0 THEN epoch(time - asked)
                    WHEN after = 'assigned' AND (api != 'JoinGroup' OR after_generation = generation)
                        THEN epoch(after_ts - asked)
                END AS stood_still_s
            FROM steps WHERE membership IN ('joined', 'rejoined')
        ),
        -- Generations as one coordinator, at an address as an end sees it, began them.
        of_coordinator AS (
            SELECT *, ("group", side, broker) AS coordinator,
                lead(time) OVER (PARTITION BY member, side ORDER BY time) AS own_next
            FROM reported WHERE api = 'JoinGroup' AND membership IN ('joined', 'rejoined')
        ),
        -- Clocks of clients differ, and numbers of generations may begin again.
        generations AS (
            SELECT coordinator, generation AS next, time AS next_ts FROM of_coordinator QUALIFY coalesce(
                time - lag(time) OVER (PARTITION BY coordinator, generation ORDER BY time) > to_seconds({_CLOCKS_S}),
                true
            )
        ),
        missing AS (
            SELECT DISTINCT one.member, one.generation, one.time AS joined_ts, next_ts
            FROM of_coordinator one ASOF JOIN generations
                ON one.coordinator = generations.coordinator AND one.time < next_ts
                ANTI JOIN of_coordinator later ON later.member = one.member AND later.generation = next
                    AND later.time >= next_ts - to_seconds({_CLOCKS_S})
                -- The broker lets others join while it processes a request to leave.
                ANTI JOIN (FROM seen WHERE membership IN ('left', 'fenced', 'removed')) gone ON gone.member = one.member
                    AND gone.time >= one.time
                    AND gone.asked <= next_ts + to_seconds(if(gone.membership = 'removed', 0, {_LEAVING_S}))
            WHERE one.member IS NOT NULL AND one.generation != next AND next_ts < ?
                AND coalesce(one.own_next >= next_ts, true)
        ),
        timed_out AS (
            FROM (
                SELECT joins.* REPLACE (
                    min(next_ts) AS time, NULL AS reason, 'timed_out' AS change, NULL AS stood_still_s
                )
                FROM joins JOIN missing USING (member, generation)
                WHERE abs(epoch(time - joined_ts)) < {_CLOCKS_S} GROUP BY ALL
            ) QUALIFY row_number() OVER (PARTITION BY member, generation, time ORDER BY asked DESC) = 1
        ),
        others AS (
            SELECT *, membership AS change, NULL::DOUBLE AS stood_still_s
            FROM steps WHERE membership IN ('left', 'fenced', 'refused')
            UNION ALL
            SELECT *, 'removed', NULL FROM steps WHERE membership = 'removed'
                AND coalesce(member NOT IN (SELECT member FROM timed_out WHERE {shown}), true)
            UNION ALL
            SELECT *, 'reassigned', NULL FROM steps WHERE membership = 'assigned' AND api != 'SyncGroup'
                -- Brokers also return the assignment to a member that asks for it again.
                AND NOT coalesce(before IN ('joined', 'rejoined') AND coalesce(partitions_before, 0) = 0, false)
                AND (generation, partitions) IS DISTINCT FROM (generation_before, partitions_before)
        )
        FROM (FROM joins UNION ALL BY NAME FROM timed_out UNION ALL BY NAME FROM others) WHERE {shown}
    """
    of_group_values = (group,) if group else ()
    return AnswerView(
        sql=sql,
        values=(*values, *of_group_values, settled, *of_shown, *of_shown),
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
