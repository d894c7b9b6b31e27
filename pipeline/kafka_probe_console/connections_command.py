"""The command `kafka-probe connections`: who opens how many connections, and how long they last."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from kafka_probe.errors import UsageError
from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KEY, KNOWN_ENDS, TIMES, ends_of, reported
from kafka_probe_console.ends import not_internal, workload_of
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_GROUPS = ("client", "workload", "broker", "node")
_NEWEST = ("flow_id", "side", "node", "local", "peer", "client_id", "workload")
_COUNTS = ("opened", "ended", "open", "opened_per_min", "ended_per_min", "lifetime_s", "shortest_s")


@click.command(
    epilog="""\b
Examples:
  kafka-probe connections --tables kafka-probe-output --since 1h --sort open
  kafka-probe connections --tables kafka-probe-output --by workload,broker --filter 'opened_per_min > 10'
"""
)
@click.option(
    "--by", default="client", show_default=True, metavar="NAMES", help=f"count by these of {', '.join(_GROUPS)}"
)
@click.option("--internal", is_flag=True, help="also kafka-probe's own clients")
@prints_view
def connections(tables: OpenTables, period: Period, by: str, *, internal: bool) -> AnswerView:
    """Print how many connections were opened, ended and are open, by client, and how long those that ended lasted."""
    groups = [*dict.fromkeys(name.strip() for name in by.split(","))]
    if unknown := [name for name in groups if name not in _GROUPS]:
        raise UsageError(f"--by takes {', '.join(_GROUPS)}, and not {unknown[0]!r}.")
    read = reported(tables, period)
    reports = [
        f"""
        SELECT agent_id, conn_id, flow_id, side, node, local, peer, client.id AS client_id,
            {workload_of(tables, table)} AS workload, received_ts, {TIMES[table]}
        FROM {table} WHERE {where}
        """
        for table, (where, _) in read.items()
    ]
    begin, end = period.begin or datetime.min.replace(tzinfo=UTC), period.end or datetime.now(UTC)
    lasted = "epoch(ended) - epoch(opened)"
    sql = f"""
        WITH once AS (
            SELECT {KEY} AS key, min(opened) AS opened, max(ended) AS ended, max(seen) AS seen,
                coalesce(max(client_id) FILTER (side != 'server'), max(client_id)) AS client,
                max(workload) FILTER (side != 'server') AS workload, max(node) FILTER (side != 'server') AS node,
                coalesce(max(local) FILTER (side = 'server'), max(peer)) AS broker
            FROM {ends_of(reports, _NEWEST)} GROUP BY key
        )
        SELECT *, {", ".join(f"{count} / minutes AS {count}_per_min" for count in ("opened", "ended"))} FROM (
            SELECT {", ".join(groups)}, count(*) FILTER (opened >= begun) AS opened,
                count(*) FILTER (ended >= begun) AS ended, count(*) FILTER (ended IS NULL) AS open,
                median({lasted}) FILTER (ended IS NOT NULL) AS lifetime_s,
                min({lasted}) FILTER (ended IS NOT NULL) AS shortest_s, min(opened) AS first, max(seen) AS last,
                any_value(minutes) AS minutes
            FROM (
                SELECT *, greatest(?::TIMESTAMPTZ, min(opened) OVER ()) AS begun,
                    greatest(epoch(?::TIMESTAMPTZ) - epoch(begun), 1) / 60 AS minutes
                FROM once
            ) WHERE {"true" if internal else not_internal("client")} GROUP BY ALL
        ) WHERE opened > 0 OR ended > 0 OR open > 0
    """
    values = [value for _, of_period in read.values() for value in of_period]
    return AnswerView(
        sql=sql,
        values=(*values, begin, end),
        columns=columns(*groups, *_COUNTS, "last", "first", numbers=_COUNTS, times={"last", "first"}),
        sort="opened",
        time="last",
        subject="connection",
        known=KNOWN_ENDS,
    )
