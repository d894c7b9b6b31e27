"""The command `kafka-probe idle`: which connections an idle limit between clients and brokers would cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from kafka_probe.errors import UsageError
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KNOWN_CONNECTIONS, ends_in
from kafka_probe_console.end_columns import not_internal
from kafka_probe_console.errors import TableError
from kafka_probe_console.period import Period, age
from kafka_probe_console.views import AnswerView
from kafka_probe_pipeline.remedies import BELOW, remedy

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables
    from kafka_probe_console.views import Answer

_LEAST_S = 2
_MOST_KEEPALIVE_S = 65_535  # as agents report longer ones
_NEWEST, _LARGEST = ("present_silence_us", "keepalive_s"), ("longest_silence_us",)
_COUNTS = ("cut", "saved", "not_known", "open")
_TIMES_S = ("longest_s", "silent_s", "keepalive_s")
# Without the client's end, its host is what the broker sees.
_HOST = r"regexp_replace(coalesce(any_value(local) FILTER (side != 'server'), any_value(peer)), ':\d+$', '')"


@click.command(
    epilog="""\b
Examples:
  kafka-probe idle --tables kafka-probe-output --limit 4m
  kafka-probe idle --tables kafka-probe-output --limit 240s --filter 'cut > 0' --sort longest_s
"""
)
@click.option("--limit", "idle_limit", default="4m", show_default=True, metavar="AGE", help="idle limit, such as 240s")
@internal_flag
@prints_view(rows_flag="--rows")
def idle(tables: OpenTables, period: Period, idle_limit: str, *, internal: bool) -> AnswerView:
    """Print which connections an idle limit would cut, before a firewall or load balancer gets it.

    `cut`: connections that were silent for at least the limit, and that no keepalive probe before the limit keeps open.
    `saved`: those that were silent for as long, but that such a probe of one end keeps open. `not_known`: those whose
    silence no agent has reported yet. `longest_s`: the longest silence so far; `silent_s`: the longest present one, at
    the last report. `keepalive`: whether probes are early enough (`ok`), `too late`, `off` or `not known`;
    `keepalive_s`: the longest silence before a probe.
    """
    limit_s = age(idle_limit).total_seconds()
    if limit_s < _LEAST_S:
        raise UsageError(f"Give a --limit of at least {_LEAST_S}s.")
    tables.require("opens")
    if missing := {*_NEWEST, *_LARGEST} - {*tables.columns("opens")}:
        raise TableError(f"The tables have no {min(missing)}: update the agents and the pipeline.")
    reported_ends, values = ends_in(tables, period, _NEWEST, _LARGEST)
    # An end that its agent found in the list of open sockets has no flow_id: its addresses name the connection.
    sql = f"""
        WITH ends AS (SELECT *, least(local, peer) || ' ' || greatest(local, peer) AS pair FROM {reported_ends}),
        named AS (
            SELECT *, coalesce(flow_id, max(flow_id) FILTER (ended IS NULL) OVER (PARTITION BY pair), pair) AS key
            FROM ends
        ),
        open AS (
            SELECT coalesce(max(client_id) FILTER (side != 'server'), max(client_id)) AS client,
                max(workload) FILTER (side != 'server') AS workload, {_HOST} AS host,
                any_value(node) FILTER (side != 'server') AS node, max(longest_silence_us) / 1e6 AS longest_s,
                min(present_silence_us) / 1e6 AS silent_s, min(keepalive_s) FILTER (keepalive_s > 0) AS keepalive_s,
                count(DISTINCT side) FILTER (keepalive_s IS NOT NULL) = count(DISTINCT side) AS is_set,
                max(seen) AS seen
            FROM named GROUP BY key HAVING max(ended) IS NULL
        ),
        judged AS (
            SELECT *, longest_s >= ? AS is_long, coalesce(keepalive_s < ?, false) AS is_probed,
                if(is_probed, 'ok', if(keepalive_s > 0, 'too late', if(is_set, 'off', 'not known'))) AS setting
            FROM open
        )
        SELECT client, workload, if(workload IS NULL, host, NULL) AS host, count(DISTINCT node) AS nodes,
            count(*) AS open, count(*) FILTER (is_long AND NOT is_probed) AS cut,
            count(*) FILTER (is_long AND is_probed) AS saved, count(*) FILTER (longest_s IS NULL) AS not_known,
            max(longest_s) AS longest_s, max(silent_s) AS silent_s, max(keepalive_s) AS keepalive_s,
            string_agg(DISTINCT setting, ', ' ORDER BY setting) AS keepalive, max(seen) AS last
        FROM judged WHERE {not_internal("client", internal=internal)}
        GROUP BY ALL
    """
    return AnswerView(
        sql=sql,
        values=(*values, limit_s, min(limit_s, _MOST_KEEPALIVE_S)),
        columns=columns(
            *("client", "workload", "host", *_COUNTS, "keepalive", *_TIMES_S, "nodes", "last"),
            numbers={*_COUNTS, *_TIMES_S, "nodes"},
            times={"last"},
        ),
        sort="cut",
        time="last",
        subject="connection",
        known=KNOWN_CONNECTIONS,
        explained=partial(_settings, limit_s),
    )


def _settings(limit_s: float, found: Answer) -> Iterator[str]:
    """Yield the settings that would save connections, if some would be cut."""
    names = [column.name for column in found.columns]
    if "cut" in names and any(row[names.index("cut")] for row in found.rows):
        yield ""
        yield remedy("middlebox_reset", round(limit_s * 1e6))
        yield (
            "Kafka's brokers use TCP keepalive on all connections: net.ipv4.tcp_keepalive_time of at most "
            f"{math.floor(limit_s * BELOW)} in their network namespaces keeps connections open, too."
        )
