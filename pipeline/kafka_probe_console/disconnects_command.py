"""The command `kafka-probe disconnects`: what ended how often, and for which cause."""

from __future__ import annotations

import click

from kafka_probe_console.answer_command import Scope, answers
from kafka_probe_console.columns import Column, Kind
from kafka_probe_console.ends import client_of, not_internal, workload_of
from kafka_probe_console.views import View, within

GROUPS = ("client", "workload", "broker", "node")


@click.command(
    epilog="""\b
Examples:
  kafka-probe disconnects --tables kafka-probe-output --since 2h
  kafka-probe disconnects --tables kafka-probe-output --by client --filter 'not cause = normal'
"""
)
@click.option("--by", type=click.Choice(GROUPS), help="count by this as well as by cause")
@answers
def disconnects(scope: Scope, by: str | None) -> View:
    """Print how many connections ended for which cause, with those that it hit most."""
    where, values = within("ts", scope.period)
    group = f"{by}, cause" if by else "cause"
    others = [f"mode({name}) AS {name}" for name in GROUPS if name != by]
    sql = f"""
        SELECT {group}, count(*) AS count, 100 * count(*) / sum(count(*)) OVER () AS percent,
            count(DISTINCT client) AS clients, {", ".join(others)},
            median(idle_us) / 1e6 AS idle_s, min(ts) AS first, max(ts) AS last
        FROM (
            SELECT cause, ts, idle_us, {client_of("client", "server")} AS client,
                {workload_of("client")} AS workload, coalesce(server.local, client.peer) AS broker,
                coalesce(client.node, server.node) AS node
            FROM verdicts WHERE {where}
        ) WHERE {"true" if scope.internal else not_internal("client")} GROUP BY {group}
    """
    return View(
        tables=("verdicts",),
        sql=sql,
        values=values,
        columns=(
            *([Column(by)] if by else []),
            Column("cause"),
            *(Column(name, Kind.NUMBER) for name in ("count", "percent", "clients")),
            *(Column(name) for name in GROUPS if name != by),
            Column("idle_s", Kind.NUMBER),
            *(Column(name, Kind.TIME) for name in ("last", "first")),
        ),
        sort="count",
        subject="disconnect",
        known="SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM verdicts",
    )
