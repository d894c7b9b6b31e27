"""The command `kafka-probe agents`: the agents, what they missed, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KNOWN_CONNECTIONS, TIMES, ends_of, reported
from kafka_probe_console.ends import nat_of, not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.views import Answer, AnswerView, within
from kafka_probe_console.watching import SILENT_S

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_LOSSES = Path(__file__).with_name("losses.json")
"""What was lost, and what to do, by reason: `make docs` writes it."""
_OF_NEWEST = ("connections", "version", "backend", "kernel", "rss_bytes", "losses", "cpu_us", "ts")


@click.command(
    epilog="""\b
Examples:
  kafka-probe agents --tables kafka-probe-output
  kafka-probe agents --tables kafka-probe-output --filter 'state = silent or lost > 0'
  kafka-probe agents --tables kafka-probe-output --missing
"""
)
@click.option(
    "--missing", is_flag=True, help="print the hosts with connections that no agent watches, instead of agents"
)
@prints_view()
def agents(tables: OpenTables, period: Period, *, missing: bool) -> AnswerView:
    """Print the newest report of each node's agent: losses, cost, version, and whether the agent is silent."""
    return _hosts_without_agent(tables, period) if missing else _newest_reports(tables, period)


def _newest_reports(tables: OpenTables, period: Period) -> AnswerView:
    tables.require("agents")
    where, values = within("received_ts", period)
    # Numbers of forged reports may be too large for sums of integers.
    sql = f"""
        SELECT node, CASE
                WHEN max(last) OVER () < now() - INTERVAL {SILENT_S} SECOND THEN 'unknown'
                WHEN last < max(last) OVER () - greatest(INTERVAL {SILENT_S} SECOND, 3 * pause) THEN 'silent'
                ELSE 'reporting'
            END AS state,
            least(coalesce(list_sum(list_transform(lost_by_reason, lambda one: one.value::DOUBLE)), 0), 9e18)::BIGINT
                AS lost,
            array_to_string(list_transform(lost_by_reason, lambda one: one.key || ' ' || one.value), ', ') AS losses,
            last, newest.connections AS connections,
            100 * (newest.cpu_us::DOUBLE - least_cpu_us) / nullif(epoch(newest.ts) - epoch(least_ts), 0) / 1e6
                AS cpu_percent,
            newest.rss_bytes / 1048576 AS rss_mib, newest.version AS version, newest.backend AS backend,
            newest.kernel AS kernel, count(*) OVER (PARTITION BY node) AS runs, first, agent_id
        FROM (
            SELECT *, list_filter(newest.losses, lambda one: one.value > 0) AS lost_by_reason
            FROM (
                SELECT node, agent_id, max(received_ts) AS last, min(received_ts) AS first,
                    (max(received_ts) - min(received_ts)) / greatest(count(*) - 1, 1) AS pause,
                    min(cpu_us) AS least_cpu_us, min(ts) AS least_ts,
                    arg_max(struct_pack({", ".join(f"{name} := {name}" for name in _OF_NEWEST)}), seq) AS newest
                FROM agents WHERE {where} GROUP BY node, agent_id
            )
        ) QUALIFY row_number() OVER (PARTITION BY node ORDER BY last DESC, agent_id) = 1
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("node", "state", "lost", "last", "losses", "connections", "cpu_percent", "rss_mib", "version", "backend"),
            *("kernel", "runs", "first", "agent_id"),
            numbers={"connections", "lost", "cpu_percent", "rss_mib", "runs"},
            times={"last", "first"},
        ),
        sort="node",
        time="last",
        subject="agent",
        known="SELECT count(DISTINCT agent_id), epoch_us(min(received_ts)), epoch_us(max(received_ts)) FROM agents",
        explained=_losses_explained,
    )


def _losses_explained(found: Answer) -> Iterator[str]:
    """Yield what each loss in the column of losses means, and what to do."""
    places = [place for place, column in enumerate(found.columns) if column.name == "losses"]
    listed = ", ".join(str(row[place]) for row in found.rows for place in places)
    reasons = {loss.partition(" ")[0] for loss in listed.split(", ")}
    for reason, text in json.loads(_LOSSES.read_text()).items():
        if reason in reasons:
            yield f"{reason}: {text}."


def _hosts_without_agent(tables: OpenTables, period: Period) -> AnswerView:
    """Return the hosts without an agent that are at the far ends of what agents watch.

    A connection without a flow id may be watched at both ends, so it does not count.
    """
    read = reported(tables, period)
    reports = [
        f"""
        SELECT agent_id, conn_id, flow_id, side, local, peer, client.id AS client_id, received_ts, {TIMES[table]}
        FROM {table} WHERE {where}
        """
        for table, (where, _) in read.items()
    ]
    sql = f"""
        WITH ends AS (
            SELECT one.*, {_host("one.local")} AS own_host, {_host("nat.local")} AS own_host_beyond,
                {_host("coalesce(nat.peer, one.peer)")} AS host
            FROM {ends_of(reports, ("flow_id", "side", "local", "peer", "client_id"))} one
                LEFT JOIN {nat_of(tables)} nat USING (agent_id, conn_id)
        ),
        of_flows AS (
            SELECT flow_id, any_value(host) AS host, any_value(side) AS side, any_value(client_id) AS client_id,
                min(opened) AS first, max(seen) AS last
            FROM ends WHERE flow_id IS NOT NULL GROUP BY flow_id HAVING count(DISTINCT side) = 1
        )
        SELECT host, if(side = 'server', 'client', 'broker') AS is_a, count(*) AS connections,
            count(DISTINCT client_id) AS clients, mode(client_id) AS top_client, min(first) AS first, max(last) AS last
        FROM of_flows ANTI JOIN (
            SELECT own_host AS host FROM ends UNION SELECT own_host_beyond FROM ends
        ) USING (host)
        WHERE host IS NOT NULL AND {not_internal("client_id", internal=False)} GROUP BY ALL
    """
    return AnswerView(
        sql=sql,
        values=tuple(value for _, of_table in read.values() for value in of_table),
        columns=columns(
            *("host", "is_a", "connections", "clients", "top_client", "last", "first"),
            numbers={"connections", "clients"},
            times={"last", "first"},
        ),
        sort="connections",
        time="last",
        subject="host without an agent",
        known=KNOWN_CONNECTIONS,
        known_subject="connection",
    )


def _host(address: str) -> str:
    """Return the host of an address with a port."""
    return f"regexp_replace({address}, ':[0-9]+$', '')"
