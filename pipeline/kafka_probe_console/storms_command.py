"""The command `kafka-probe storms`: many disconnects for one reason, as the pipeline has found them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables


@click.command(
    epilog="""\b
Examples:
  kafka-probe storms --tables kafka-probe-output --since 7d
  kafka-probe storms --tables kafka-probe-output --filter 'state = active'
"""
)
@prints_view()
def storms(tables: OpenTables, period: Period) -> AnswerView:
    """Print the storms that were active in a period, each as of its last change."""
    tables.require("storms")
    parts, values = ["true"], list[object]()
    if begin := period.begin:
        parts.append("coalesce(resolved_ts, now()) >= ?")
        values.append(begin)
    if end := period.end:
        parts.append("opened_ts < ?")
        values.append(end)
    sql = f"""
        SELECT coalesce(since_ts, opened_ts) AS since, state, coalesce(cause, kind) AS cause, count,
            100 * share AS percent, scope, idle_us / 1e6 AS idle_s, workloads[1].name AS workload,
            brokers[1].name AS broker, networks[1].name AS network,
            resolved_ts AS resolved, ts AS changed, both_ends, kind, evidence, id
        FROM (
            SELECT * FROM storms QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts DESC, batch_id DESC) = 1
        ) WHERE {" AND ".join(parts)}
    """
    return AnswerView(
        sql=sql,
        values=tuple(values),
        columns=columns(
            *("since", "state", "cause", "count", "percent", "scope", "idle_s", "workload", "broker", "network"),
            *("resolved", "changed", "both_ends", "kind", "evidence", "id"),
            numbers={"count", "percent", "idle_s", "both_ends"},
            times={"since", "resolved", "changed"},
        ),
        sort="since",
        time="since",
        subject="storm",
        known="SELECT count(DISTINCT id), epoch_us(min(ts)), epoch_us(max(ts)) FROM storms",
    )
