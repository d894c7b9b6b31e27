"""The command `kafka-probe clients`: requests of each client by API, with their latency, errors and throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import FIRST, KNOWN_CLIENTS, LAST, LIBRARY, bounded, of_one_side, same, workload
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_KEY = ("client", "api", "side")
_SUMS = ("requests", "request_bytes", "response_bytes", "throttle_ms")
_PERCENTILES = {"p50_ms": 0.5, "p99_ms": 0.99}
_COUNTS = ("requests", "requests_per_s", "errors", *_PERCENTILES, "throttle_ms", "request_bytes", "response_bytes")
_MIDDLE_MS = "2000 * pow(2, (bucket + 1) / 8.0) / (pow(2, 1 / 8.0) + 1)"  # as in `events.bucket_middle_us`
_ERROR_NAMES = ", ".join(f"('{code}', '{name}')" for code, name in ERROR_NAMES.items())


@click.command(
    epilog="""\b
Examples:
  kafka-probe clients --tables kafka-probe-output --since 1h --sort p99_ms
  kafka-probe clients --tables kafka-probe-output --filter 'errors > 0 or throttle_ms > 0'
"""
)
@internal_flag
@prints_view()
def clients(tables: OpenTables, period: Period, *, internal: bool) -> AnswerView:
    """Print how many requests each client sends, how long they take, and their errors and throttling, by API.

    Latencies are those at the end of which the sums are: at the client's they include the network.
    """
    tables.require("traffic")
    where, values = within("window_start", period)
    percentiles = ", ".join(
        f"min({_MIDDLE_MS}) FILTER (seen >= {share} * every) AS {name}" for name, share in _PERCENTILES.items()
    )
    sql = f"""
        WITH uses AS NOT MATERIALIZED (
            SELECT client_id AS client, coalesce(api, opaque) AS api, side, node,
                {workload(tables)} AS workload, api_version,
                {LIBRARY} AS library, {FIRST} AS first, {LAST} AS last,
                {", ".join(_SUMS)}, errors, latency
            FROM traffic WHERE {where} AND level = 'api' AND {not_internal("client_id", internal=internal)}
        ),
        of_sides AS (
            SELECT client, api, side, if(side = 'client', mode(workload), NULL) AS workload, mode(library) AS library,
                if(side = 'client', mode(node), NULL) AS node, min(api_version) AS lowest, max(api_version) AS highest,
                {", ".join(f"sum({name}) AS {name}" for name in _SUMS)}, min(first) AS first, max(last) AS last
            FROM uses GROUP BY client, api, side
        ),
        of_ends AS (
            FROM of_sides {of_one_side("client", "api")}
        ),
        of_errors AS (
            SELECT client, api, side, sum(count) AS errors,
                string_agg(name || ' ' || count, ', ' ORDER BY count DESC, name) AS error_names
            FROM (
                SELECT client, api, side, coalesce(name, error.key) AS name, sum(error.value) AS count
                FROM (SELECT client, api, side, unnest(errors) AS error FROM uses)
                LEFT JOIN (VALUES {_ERROR_NAMES}) names(code, name) ON code = error.key GROUP BY ALL
            ) GROUP BY client, api, side
        ),
        of_latencies AS (
            SELECT client, api, side, {percentiles} FROM (
                SELECT client, api, side, bucket, sum(count) OVER (of_end ORDER BY bucket) AS seen,
                    sum(count) OVER of_end AS every
                FROM (
                    SELECT client, api, side, TRY_CAST(key AS INTEGER) AS bucket, sum(count) AS count FROM (
                        SELECT client, api, side, entry.key AS key, sum(entry.value) AS count
                        FROM (SELECT client, api, side, unnest(latency) AS entry FROM uses) GROUP BY ALL
                    ) GROUP BY ALL
                ) WHERE bucket BETWEEN -300 AND 300 WINDOW of_end AS (PARTITION BY client, api, side)
            ) GROUP BY client, api, side
        )
        SELECT of_ends.client, of_ends.api, workload, library, node,
            of_ends.side,
            {", ".join(f"{bounded(f'of_ends.{name}')} AS {name}" for name in _SUMS)},
            {bounded("of_ends.requests")} / nullif(epoch(last) - epoch(first), 0) AS requests_per_s,
            {bounded("coalesce(errors, 0)")} AS errors, error_names, {", ".join(_PERCENTILES)},
            if(lowest = highest, lowest::VARCHAR, lowest || '-' || highest) AS versions, first, last
        FROM of_ends
        {" ".join(f"LEFT JOIN {name} ON {same('of_ends', name, _KEY)}" for name in ("of_errors", "of_latencies"))}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("client", "api", *_COUNTS, "workload", "error_names", "library", "versions", "node", "side"),
            *("last", "first"),
            numbers=_COUNTS,
            times={"last", "first"},
        ),
        sort="requests",
        time="last",
        subject="client",
        known=KNOWN_CLIENTS,
    )
