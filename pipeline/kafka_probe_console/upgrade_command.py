"""The command `kafka-probe upgrade`: which clients keep a cluster from a release of Kafka.

Clients negotiate the highest version that both they and their broker support. So one that uses a version below the
lowest of the release cannot do better if its cluster offers a higher one, which another client shows by using it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.protocol.schemas import apis
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KEY, TIMES
from kafka_probe_console.end_columns import not_internal, workload_of
from kafka_probe_console.kafka_releases import Ranges, release, releases
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import (
    FIRST,
    KNOWN_CLIENTS,
    LAST,
    LIBRARY,
    bounded,
    count_of,
    counted_once,
    same,
    workload,
)
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_UNSUPPORTED = ERROR_CODES["UNSUPPORTED_VERSION"]
_USE = ("client", "cluster", "api_key", "api", "version")
_FINE = "fine as far as seen"


@click.command(
    epilog="""\b
Examples:
  kafka-probe upgrade --tables kafka-probe-output --to 4.0
  kafka-probe upgrade --tables kafka-probe-output --to 4.3 --filter 'status = blocks' --since 7d
"""
)
@click.option(
    "--to", "target", default=[*releases()][-1], show_default=True, metavar="RELEASE", help="release of the brokers"
)
@internal_flag
@prints_view(since="30d")
def upgrade(tables: OpenTables, period: Period, target: str, *, internal: bool) -> AnswerView:
    """Print which clients use versions of APIs that a release of Kafka does not support.

    `blocks`: the client uses no supported version though its cluster offers one, or the release lacks the API.
    `depends`: nobody uses a supported version in the cluster, so its brokers may not offer one. `not seen`: encrypted,
    or not decoded.
    """
    ranges = release(target)
    tables.require("traffic")
    where, values = within("window_start", period)
    undecoded, undecoded_values = _undecoded(tables, period)
    sql = f"""
        WITH rows AS (
            SELECT client_id AS client, if(side = 'client', {workload(tables)}, NULL) AS workload, side, cluster_id,
                {LIBRARY} AS library, api, api_key, api_version AS version, sum(requests) AS requests,
                sum(greatest(responses - {count_of("errors", _UNSUPPORTED)}, 0)) AS supported, min({FIRST}) AS first,
                max({LAST}) AS last
            FROM traffic WHERE {where} AND level = 'api' AND {not_internal("client_id", internal=internal)}
            GROUP BY ALL
        ),
        versions(api_key, lowest, highest) AS (VALUES {_versions(ranges)}),
        uses AS (
            -- Only some responses on a connection contain the id of the cluster.
            SELECT *, coalesce(cluster_id, if(client IS NOT NULL AND count(DISTINCT cluster_id) OVER of_client = 1,
                max(cluster_id) OVER of_client, NULL)) AS cluster
            FROM rows SEMI JOIN versions USING (api_key) WHERE version IS NOT NULL
            WINDOW of_client AS (PARTITION BY client)
        ),
        worked AS (FROM uses JOIN versions USING (api_key) WHERE supported > 0 AND version <= highest),
        in_clusters AS (
            SELECT cluster, api_key, max(version) AS offered FROM worked WHERE cluster IS NOT NULL GROUP BY ALL
        ),
        at_clients AS (
            SELECT client, api_key, max(offered) AS offered_somewhere
            FROM (SELECT DISTINCT client, cluster FROM uses WHERE client IS NOT NULL) JOIN in_clusters USING (cluster)
            GROUP BY ALL
        ),
        in_libraries AS (
            SELECT library, api_key, max(version) AS known FROM worked WHERE library IS NOT NULL GROUP BY ALL
        ),
        libraries AS (
            SELECT {", ".join(_USE)}, arg_max(library, last) FILTER (library IS NOT NULL) AS library
            FROM uses GROUP BY ALL
        ),
        counted AS (
            SELECT once.*, library FROM {counted_once("uses", _USE, ("workload",), ("requests",))} once
            LEFT JOIN libraries ON {same("once", "libraries", _USE)}
        ),
        judged AS (
            SELECT counted.*, lowest, known, CASE
                    WHEN lowest IS NULL THEN 'blocks'
                    WHEN version >= lowest THEN '{_FINE}'
                    WHEN if(cluster IS NULL, offered_somewhere, offered) >= lowest THEN 'blocks'
                    ELSE 'depends'
                END AS status
            FROM counted JOIN versions USING (api_key) LEFT JOIN in_clusters USING (cluster, api_key)
                LEFT JOIN at_clients USING (client, api_key) LEFT JOIN in_libraries USING (library, api_key)
        ),
        described AS (
            SELECT *, CASE
                WHEN status = '{_FINE}' THEN NULL
                WHEN lowest IS NULL THEN concat(api, ' ', version, ' is not in {target}')
                WHEN status = 'blocks' THEN concat(api, ' ', version, ' needs ', lowest)
                WHEN known >= lowest THEN concat(api, ' ', version, ' needs ', lowest, ', the library supports ', known)
                ELSE concat(api, ' ', version, ' needs ', lowest)
            END AS why FROM judged
        ),
        of_clients AS (
            SELECT status, client, cluster, workload, side, arg_max(library, last) AS library,
                string_agg(DISTINCT why, '; ' ORDER BY why) AS reason, {bounded("sum(requests)")} AS requests,
                min(first) AS first, max(last) AS last
            FROM described GROUP BY status, client, cluster, workload, side
            QUALIFY status != '{_FINE}' OR count(*) OVER (PARTITION BY client, cluster, workload, side) = 1
        ),
        used AS (SELECT client, cluster, list(DISTINCT api) AS apis FROM uses GROUP BY ALL)
        SELECT of_clients.*, array_to_string(list_sort(list_filter([{_raised(ranges)}]::VARCHAR[],
            lambda name: NOT list_contains(apis, name))), ', ') AS not_used
        FROM of_clients LEFT JOIN used ON {same("of_clients", "used", ("client", "cluster"))}
        UNION ALL BY NAME
        SELECT 'not seen' AS status, client, cluster_id AS cluster, workload, 'API versions were not seen' AS reason,
            {bounded("sum(requests)")} AS requests, side,
            min(first) AS first, max(last) AS last
        FROM rows WHERE version IS NULL AND requests > 0 GROUP BY client, cluster_id, workload, side
        UNION ALL BY NAME {undecoded}
    """
    return AnswerView(
        sql=sql,
        values=(*values, *undecoded_values),
        columns=columns(
            *("status", "client", "reason", "cluster", "workload", "library", "requests", "node", "side", "last"),
            *("first", "not_used"),
            numbers={"requests"},
            times={"last", "first"},
        ),
        sort="status",
        time="last",
        subject="client",
        known=KNOWN_CLIENTS,
    )


def _versions(ranges: Ranges) -> str:
    """Return a row per API of clients: its lowest version in the release, and its highest in all releases."""
    highest = dict[int, int]()
    for of_release in releases().values():
        for key, (_, high) in of_release.items():
            highest[key] = max(high, highest.get(key, 0))
    return ", ".join(f"({key}, {ranges[key][0] if key in ranges else 'NULL'}, {high})" for key, high in highest.items())


def _raised(ranges: Ranges) -> str:
    """Return the names of the APIs whose lowest version is higher than in the oldest release, as texts of SQL."""
    oldest = next(iter(releases().values()))
    return ", ".join(f"'{apis()[key].name}'" for key in ranges if key in oldest and ranges[key][0] > oldest[key][0])


def _undecoded(tables: OpenTables, period: Period) -> tuple[str, tuple[object, ...]]:
    """Return a relation of the workloads whose connections are encrypted or not decoded, with its values."""
    within_period, values = within("received_ts", period)
    known = [table for table in TIMES if tables.add(table) and "opaque" in tables.columns(table)]
    ends = [
        f"""
        SELECT {KEY} AS key, side, if(side = 'client', {workload_of(tables, table)}, NULL) AS workload, node, opaque,
            least(ts, received_ts) AS seen
        FROM {table} WHERE {within_period} AND opaque IS NOT NULL
        """
        for table in known
    ]
    texts = ", ".join(f"NULL::VARCHAR AS {name}" for name in ("key", "side", "workload", "node", "opaque"))
    none = f"SELECT {texts}, NULL::TIMESTAMPTZ AS seen WHERE false"
    sql = f"""
        SELECT 'not seen' AS status, workload, node, opaque AS reason, side, min(first) AS first, max(last) AS last
        FROM (
            SELECT max(workload) AS workload, max(opaque) AS opaque, min(seen) AS first, max(seen) AS last,
                coalesce(max(node) FILTER (side = 'client'), max(node)) AS node,
                if(bool_or(side = 'client'), 'client', 'server') AS side
            FROM ({" UNION ALL ".join(ends) or none}) GROUP BY key
        ) GROUP BY workload, node, opaque, side
    """
    return sql, values * len(known)
