"""The command `kafka-probe agents`: the agents, what they missed, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.hosts_without_agent import hosts_without_agent
from kafka_probe_console.period import Period
from kafka_probe_console.views import Answer, AnswerView, within
from kafka_probe_console.watching import LONGEST_PAUSE, SILENT_S

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
    return hosts_without_agent(tables, period) if missing else _newest_reports(tables, period)


def _newest_reports(tables: OpenTables, period: Period) -> AnswerView:
    tables.require("agents")
    where, values = within("received_ts", period)
    # Numbers of forged reports may be too large for sums of integers.
    sql = f"""
        SELECT node, CASE
                WHEN max(last) OVER () < now() - INTERVAL {SILENT_S} SECOND THEN 'unknown'
                WHEN last < max(last) OVER () - longest_pause THEN 'silent'
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
                    {LONGEST_PAUSE} AS longest_pause,
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
