"""The command `kafka-probe disconnects`: what ended how often, and for which cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import ENDED, KNOWN_VERDICTS, client_of, not_internal, workload_of
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

GROUPS = ("client", "workload", "broker", "node")


@click.command(
    epilog="""\b
Examples:
  kafka-probe disconnects --tables kafka-probe-output --since 2h
  kafka-probe disconnects --tables kafka-probe-output --by client --filter 'not cause = normal'
"""
)
@click.option("--by", type=click.Choice(GROUPS), help="count by this as well as by cause")
@internal_flag
@prints_view()
def disconnects(tables: OpenTables, period: Period, by: str | None, *, internal: bool) -> AnswerView:
    """Print how many connections ended for which cause, and which clients and brokers it hit most."""
    tables.require("verdicts")
    where, values = within(ENDED, period)
    group = f"{by}, cause" if by else "cause"
    others = [name for name in GROUPS if name != by]
    sql = f"""
        SELECT {group}, count(*) AS count, 100 * count(*) / sum(count(*)) OVER () AS percent,
            count(DISTINCT client) AS clients,
            {", ".join(f"mode({name}) AS top_{name}" for name in others)},
            median(idle_us) / 1e6 AS idle_s, min(closed_ts) AS first, max(closed_ts) AS last
        FROM (
            SELECT cause, {ENDED} AS closed_ts, idle_us, {client_of("client", "server")} AS client,
                {workload_of(tables, "verdicts", "client")} AS workload, coalesce(server.local, client.peer) AS broker,
                coalesce(client.node, server.node) AS node
            FROM verdicts WHERE {where}
        ) WHERE {not_internal("client", internal=internal)} GROUP BY {group}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *((by,) if by else ()),
            *("cause", "count", "percent", "clients"),
            *(f"top_{name}" for name in others),
            *("idle_s", "last", "first"),
            numbers={"count", "percent", "clients", "idle_s"},
            times={"last", "first"},
        ),
        sort="count",
        time="last",
        subject="disconnect",
        known=KNOWN_VERDICTS,
    )
