"""The command `kafka-probe upgrade`: which clients keep a cluster from a release of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.protocol.schemas import apis
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.ends import not_internal
from kafka_probe_console.kafka_releases import release, releases
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import KNOWN_CLIENTS, bounded, workload
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_UNSUPPORTED = ERROR_CODES["UNSUPPORTED_VERSION"]
_SAME = "{0}.client IS NOT DISTINCT FROM {1}.client AND {0}.api_key = {1}.api_key AND {0}.version = {1}.version"


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

    `blocks`: the client does not use a higher version, though its brokers offer it. `depends`: nobody uses a higher one
    in the cluster, so the client may support it. `not seen`: encrypted.
    """
    ranges = release(target)
    known = {key for of_release in releases().values() for key in of_release}
    raised = [key for key, (low, _) in ranges.items() if low > next(iter(releases().values())).get(key, (low, 0))[0]]
    of_apis = ", ".join(f"({key}, {ranges[key][0] if key in ranges else 'NULL'})" for key in sorted(known))
    raised_names = ", ".join(f"'{apis()[key].name}'" for key in sorted(raised))
    tables.require("traffic")
    where, values = within("window_start", period)
    sql = f"""
        WITH uses AS (
            SELECT client_id AS client, if(side = 'client', {workload(tables)}, NULL) AS workload, side, cluster_id,
                nullif(concat_ws(' ', software_name, software_version), '') AS library, api, api_key,
                api_version AS version, opaque, count(*) > count(*) FILTER (errors['{_UNSUPPORTED}'] > 0) AS is_offered,
                sum(requests) AS requests, min(least(window_start, now())) AS first,
                max(least(window_end, now())) AS last
            FROM traffic WHERE {where} AND level = 'api' AND {not_internal("client_id", internal=internal)}
                AND (opaque IS NOT NULL OR (api_key IS NOT NULL AND api_version IS NOT NULL))
            GROUP BY ALL
        ),
        once AS (
            FROM uses WHERE side = 'client' UNION ALL
            FROM uses seen WHERE side = 'server' AND NOT EXISTS (
                FROM uses own WHERE own.side = 'client' AND {_SAME.format("own", "seen")}
            )
        ),
        of_apis(api_key, lowest) AS (VALUES {of_apis}),
        offered AS (
            SELECT cluster_id, api_key, max(version) AS offered FROM uses WHERE is_offered GROUP BY ALL
        ),
        supported AS (
            SELECT library, api_key, max(version) AS supported FROM uses
            WHERE is_offered AND library IS NOT NULL GROUP BY ALL
        ),
        judged AS (
            SELECT once.*, lowest, supported, CASE
                    WHEN once.opaque IS NOT NULL THEN 'not seen'
                    WHEN lowest IS NULL THEN 'blocks'
                    WHEN version >= lowest THEN 'fine as far as seen'
                    WHEN offered >= lowest THEN 'blocks'
                    ELSE 'depends'
                END AS status
            FROM once LEFT JOIN of_apis USING (api_key) LEFT JOIN supported USING (library, api_key)
                LEFT JOIN offered ON offered.api_key = once.api_key
                    AND offered.cluster_id IS NOT DISTINCT FROM once.cluster_id
            WHERE once.opaque IS NOT NULL OR once.api_key IN (SELECT api_key FROM of_apis)
        )
        SELECT min(status) AS status, client, workload, mode(library) AS library,
            string_agg(DISTINCT CASE
                WHEN status = 'not seen' THEN opaque
                WHEN status NOT IN ('blocks', 'depends') THEN NULL
                WHEN lowest IS NULL THEN concat(api, ' ', version, ' is not in {target}')
                ELSE concat(api, ' ', version, ' needs ', lowest, if(status = 'depends' AND supported >= lowest,
                    concat(', the library supports ', supported), ''))
            END, '; ') AS needs,
            {bounded("sum(requests)")} AS requests, if(side = 'client', 'client', 'broker') AS watched,
            list_aggregate(list_sort(list_filter([{raised_names}]::VARCHAR[],
                lambda one: NOT list_contains(list(api), one))), 'string_agg', ', ') AS not_used,
            min(first) AS first, max(last) AS last
        FROM judged GROUP BY client, workload, side
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("status", "client", "needs", "workload", "library", "requests", "watched", "last", "first", "not_used"),
            numbers={"requests"},
            times={"last", "first"},
        ),
        sort="status",
        time="last",
        subject="client",
        known=KNOWN_CLIENTS,
    )
