"""The SQL of the connections that were open in a period: their reports, and each end as it was last.

Agents report a connection when it opens, again by the hour, and when it closes. No time is later than when Kafka got
the report, whatever the clock of a host shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kafka_probe_console.end_columns import workload_of
from kafka_probe_console.period import Period, moved
from kafka_probe_console.views import within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

TIMES = {
    "opens": "ts AS opened, coalesce(still_open_ts, ts) AS seen, NULL::TIMESTAMPTZ AS ended",
    "closes": "TRY(ts - to_microseconds(greatest(coalesce(age_us, 0), 0))) AS opened, ts AS seen, ts AS ended",
}
"""The times in each table; a forged age may lead beyond the calendar."""
KEY = "coalesce(flow_id, agent_id || '/' || conn_id)"
"""A connection by its flow_id; without one, its end."""
_AT = "least(ts, received_ts)"
KNOWN_CONNECTIONS = f"SELECT count(DISTINCT {KEY}), epoch_us(min({_AT})), epoch_us(max({_AT})) FROM opens"
_REPEATED_WITHIN = timedelta(hours=2.5)
"""Agents report each open connection again within this time, by default each hour.

The opens of this time name every connection that may be open at its end; the closes since then, those that are not.
"""


def reported(tables: OpenTables, period: Period) -> dict[str, tuple[str, Sequence[object]]]:
    """Return for each table the condition on reports of connections that were open in a period, with its values."""
    tables.require("opens")
    return {table: within("received_ts", reported_in(table, period)) for table in TIMES if tables.add(table)}


def reported_in(table: str, period: Period) -> Period:
    """Return when the connections that were open in a period were reported, as open or as closed."""
    if not (period.begin or period.end):
        return period
    repeated = moved(period.end or datetime.now(UTC), -_REPEATED_WITHIN)
    begin = repeated if table == "opens" else period.begin and min(period.begin, repeated)
    return Period(begin, period.end)


def ends_in(
    tables: OpenTables, period: Period, newest: Collection[str] = (), largest: Collection[str] = ()
) -> tuple[str, list[object]]:
    """Return a relation of the ends of connections that were open in a period, with its values.

    It has flow_id, found, side, node, local, peer, client_id and workload as reported last, what `ends_of` adds, and
    the newest or largest value of these columns, which only some tables have.
    """
    read = reported(tables, period)
    reports = [
        f"""
        SELECT agent_id, conn_id, flow_id, found, side, node, local, peer, client.id AS client_id,
            {workload_of(tables, table)} AS workload, received_ts, {TIMES[table]}
            {"".join(f", {name}" for name in (*newest, *largest) if name in tables.columns(table))}
        FROM {table} WHERE {where}
        """
        for table, (where, _) in read.items()
    ]
    of_end = ("flow_id", "found", "side", "node", "local", "peer", "client_id", "workload")
    return ends_of(reports, (*of_end, *newest), largest), [value for _, of_table in read.values() for value in of_table]


def ends_of(reports: Iterable[str], newest: Iterable[str], largest: Iterable[str] = ()) -> str:
    """Return a relation of ends: received, opened, seen, and ended if they are.

    newest: columns as reported last; largest: columns of which it has the largest value.
    """
    of_newest = [f'arg_max("{column}", received_ts) AS "{column}"' for column in newest]
    columns = ", ".join([*of_newest, *(f'max("{column}") AS "{column}"' for column in largest)])
    return f"""(
        SELECT agent_id, conn_id, {columns}, max(received_ts) AS received,
            min(least(opened, received_ts)) AS opened, max(least(seen, received_ts)) AS seen,
            max(least(ended, received_ts)) FILTER (ended IS NOT NULL) AS ended
        FROM ({" UNION ALL BY NAME ".join(reports)}) GROUP BY agent_id, conn_id
    )"""
