"""The command `kafka-probe agents`: the agents, what they missed, and what they cost."""

from __future__ import annotations

import click

from kafka_probe_console.answer_command import Scope, answers
from kafka_probe_console.columns import Column, Kind
from kafka_probe_console.views import View, within

_OF_NEWEST = ("connections", "version", "backend", "kernel")
SILENT_S = 180
"""An agent is silent if its last report is so much older than the newest one of any agent; reports come each minute."""


@click.command(
    epilog="""\b
Examples:
  kafka-probe agents --tables kafka-probe-output
  kafka-probe agents --tables kafka-probe-output --filter 'state = silent or lost > 0'
"""
)
@answers
def agents(scope: Scope) -> View:
    """Print the newest report of each node's agent: version, cost, losses, and whether it fell silent."""
    where, values = within("received_ts", scope.period)
    sql = f"""
        SELECT * FROM (
            SELECT node, agent_id, max(received_ts) AS last, min(received_ts) AS since,
                if(max(received_ts) < max(max(received_ts)) OVER () - INTERVAL {SILENT_S} SECOND, 'silent', 'reporting')
                    AS state,
                100 * (max(cpu_us) - min(cpu_us)) / nullif(epoch_us(max(ts)) - epoch_us(min(ts)), 0) AS cpu_percent,
                arg_max(rss_bytes, received_ts) / 1048576 AS rss_mib,
                {", ".join(f"arg_max({name}, received_ts) AS {name}" for name in _OF_NEWEST)},
                list_filter(map_entries(arg_max(losses, received_ts)), lambda one: one.value > 0) AS lost_by_reason,
                coalesce(list_sum(list_transform(lost_by_reason, lambda one: one.value)), 0)::BIGINT AS lost,
                array_to_string(list_transform(lost_by_reason, lambda one: one.key || ' ' || one.value), ', ') AS losses
            FROM agents WHERE {where} GROUP BY node, agent_id
        ) QUALIFY row_number() OVER (PARTITION BY node ORDER BY last DESC, agent_id) = 1
    """
    numbers, times = {"connections", "lost", "cpu_percent", "rss_mib"}, {"last", "since"}
    names = (
        *("node", "state", "connections", "lost", "cpu_percent", "rss_mib", "version", "last", "losses", "backend"),
        *("kernel", "since", "agent_id"),
    )
    return View(
        tables=("agents",),
        sql=sql,
        values=values,
        columns=tuple(
            Column(name, Kind.NUMBER if name in numbers else Kind.TIME if name in times else Kind.TEXT)
            for name in names
        ),
        sort="node",
        subject="agent",
        known="SELECT count(DISTINCT agent_id), epoch_us(min(received_ts)), epoch_us(max(received_ts)) FROM agents",
    )
