"""The view of the hosts that no agent watches, by what agents at the other ends see of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KNOWN_CONNECTIONS, ends_in
from kafka_probe_console.end_columns import nat_of, not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables


def hosts_without_agent(tables: OpenTables, period: Period) -> AnswerView:
    """Return the hosts without an agent that are at the far ends of what agents watch.

    A connection without a flow id may be watched at both ends, so it does not count.
    """
    reported_ends, values = ends_in(tables, period)
    sql = f"""
        WITH ends AS (
            SELECT one.*, {_host("one.local")} AS own_host, {_host("nat.local")} AS own_host_beyond,
                {_host("coalesce(nat.peer, one.peer)")} AS host
            FROM {reported_ends} one LEFT JOIN {nat_of(tables)} nat USING (agent_id, conn_id)
        ),
        of_flows AS (
            SELECT flow_id, any_value(host) AS host, any_value(side) AS side, any_value(client_id) AS client_id,
                min(opened) AS first, max(seen) AS last
            FROM ends WHERE flow_id IS NOT NULL GROUP BY flow_id HAVING count(DISTINCT side) = 1
        )
        SELECT host, if(side = 'server', 'client', 'server') AS side, count(*) AS connections,
            count(DISTINCT client_id) AS clients, mode(client_id) AS top_client, min(first) AS first, max(last) AS last
        FROM of_flows ANTI JOIN (
            SELECT own_host AS host FROM ends UNION SELECT own_host_beyond FROM ends
        ) USING (host)
        WHERE host IS NOT NULL AND {not_internal("client_id", internal=False)} GROUP BY ALL
    """
    return AnswerView(
        sql=sql,
        values=tuple(values),
        columns=columns(
            *("host", "side", "connections", "clients", "top_client", "last", "first"),
            numbers={"connections", "clients"},
            times={"last", "first"},
        ),
        sort="connections",
        time="last",
        subject="host without an agent",
        known=KNOWN_CONNECTIONS,
        known_subject="connection",
    )


def _host(address: str) -> str:
    """Return the host of an address with a port."""
    return f"regexp_replace({address}, ':[0-9]+$', '')"
