"""The command `kafka-probe storms`: many disconnects for one reason, as the pipeline has found them."""

from __future__ import annotations

import click

from kafka_probe_console.answer_command import Scope, answers
from kafka_probe_console.columns import Column, Kind
from kafka_probe_console.views import DAY, View


@click.command(
    epilog="""\b
Examples:
  kafka-probe storms --tables kafka-probe-output --since 7d
  kafka-probe storms --tables kafka-probe-output --filter 'state = active'
"""
)
@answers
def storms(scope: Scope) -> View:
    """Print the storms that were active in a period, each as of its last change."""
    parts, values = ["true"], list[object]()
    if begin := scope.period.begin:
        parts.append("coalesce(resolved_ts, now()) >= ?")
        values.append(begin)
    if end := scope.period.end:
        parts.append("date <= ? AND opened_ts < ?")
        values += [(end + DAY).date(), end]
    sql = f"""
        SELECT coalesce(since_ts, opened_ts) AS since, state, coalesce(cause, kind) AS cause, count,
            100 * share AS percent, scope, idle_us / 1e6 AS idle_s, workloads[1].name AS workload,
            brokers[1].name AS broker, networks[1].name AS network,
            resolved_ts AS resolved, both_ends, kind, evidence, id
        FROM (
            SELECT * FROM storms QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts DESC, batch_id DESC) = 1
        ) WHERE {" AND ".join(parts)}
    """
    numbers, times = {"count", "percent", "idle_s", "both_ends"}, {"since", "resolved"}
    names = (
        *(
            "since",
            "state",
            "cause",
            "count",
            "percent",
            "scope",
            "idle_s",
            "workload",
            "broker",
            "network",
            "resolved",
        ),
        *("both_ends", "kind", "evidence", "id"),
    )
    return View(
        tables=("storms",),
        sql=sql,
        values=tuple(values),
        columns=tuple(
            Column(name, Kind.NUMBER if name in numbers else Kind.TIME if name in times else Kind.TEXT)
            for name in names
        ),
        sort="since",
        subject="storm",
        known="SELECT count(DISTINCT id), epoch_us(min(ts)), epoch_us(max(ts)) FROM storms",
    )
