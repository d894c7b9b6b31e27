"""The command `kafka-probe who`: both ends of the connections of an address, a process, a container or a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from kafka_probe.errors import UsageError
from kafka_probe.events import OWNER_NAMES
from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.ends import address_is, library_of, not_internal, process_of, workload_of
from kafka_probe_console.period import OUTSIDE, Period
from kafka_probe_console.views import AnswerView, Details, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_REPEATED_WITHIN = timedelta(hours=2)
"""Agents report each open connection again within this time, by default each hour.

So the opens of this time have all that is open at its end, and its closes tell what of that is closed.
"""
_NEWEST = (
    *("flow_id", "node", "agent_id", "conn_id", "local", "peer", "nat_local", "nat_peer", "client_id", "library"),
    *("process", "workload", "group", "topics", "requests", "request_bytes", "response_bytes"),
)
# What only one of the tables has.
_OF_TABLE = {
    "opens": "nat.local AS nat_local, nat.peer AS nat_peer, NULL::TIMESTAMPTZ AS ended, ts AS opened, "
    "coalesce(still_open_ts, ts) AS seen",
    "closes": "NULL::VARCHAR AS nat_local, NULL::VARCHAR AS nat_peer, ts AS ended, "
    "TRY(ts - to_microseconds(greatest(coalesce(age_us, 0), 0))) AS opened, ts AS seen",  # may be forged
}


@click.command(
    epilog="""\b
Examples:
  kafka-probe who --tables kafka-probe-output 10.57.2.2:39282
  kafka-probe who --tables kafka-probe-output 'billing-*' --filter 'state = open'
"""
)
@click.argument("name")
@click.option("--internal", is_flag=True, help="also kafka-probe's own clients")
@prints_view
def who(tables: OpenTables, period: Period, name: str, *, internal: bool) -> AnswerView:
    """Print both ends of the connections of NAME, newest first.

    NAME is an address, with or without port, on either side of NAT, or a flow_id, process id or container id, or, with
    * and ? as in shells, a client id, command, container, systemd unit, pod or pod's owner.
    """
    if not name:
        raise UsageError("NAME is empty.")
    every, values = _every(tables, period, name)
    since, bound = ("last >= ? OR state = 'open'", [period.begin]) if period.begin else ("true", [])
    newest = ", ".join(f'arg_max("{column}", received_ts) AS "{column}"' for column in _NEWEST)
    sql = f"""
        WITH every AS NOT MATERIALIZED ({every}),
        ends AS (
            SELECT key, coalesce(side, 'client') AS side, {newest},
                min(opened) AS opened, max(seen) AS seen, max(ended) AS ended
            FROM every WHERE key IN (SELECT key FROM every WHERE hit) GROUP BY ALL
        )
        SELECT *, requests / nullif(epoch(last) - epoch(opened), 0) AS requests_per_s FROM (
            SELECT coalesce(client.client_id, server.client_id) AS client, client.process AS process,
                CASE WHEN client.ended IS NULL AND server.ended IS NULL THEN 'open' ELSE 'closed' END AS state,
                client.workload AS workload, client.node AS node, coalesce(client.library, server.library) AS library,
                client.local AS client_address, coalesce(server.peer, client.nat_local) AS seen_as,
                coalesce(server.local, client.nat_peer, client.peer) AS broker, client.peer AS broker_seen_as,
                server.process AS broker_process, server.node AS broker_node,
                coalesce(client."group", server."group") AS "group", coalesce(client.topics, server.topics) AS topics,
                coalesce(client.opened, server.opened) AS opened, coalesce(client.seen, server.seen) AS last,
                coalesce(client.requests, server.requests) AS requests,
                coalesce(client.request_bytes, server.request_bytes) AS request_bytes,
                coalesce(client.response_bytes, server.response_bytes) AS response_bytes,
                coalesce(client.ended, server.ended) AS ended,
                coalesce(client.flow_id, server.flow_id) AS flow_id,
                coalesce(client.agent_id, server.agent_id) AS agent_id,
                coalesce(client.conn_id, server.conn_id) AS conn_id
            FROM (FROM ends WHERE side = 'client') client FULL JOIN (FROM ends WHERE side = 'server') server USING (key)
        ) WHERE ({since}) AND {"true" if internal else not_internal("client")}
    """
    return AnswerView(
        sql=sql,
        values=(*values, *bound),
        columns=columns(
            *("client", "process", "state", "workload", "node", "library", "client_address", "seen_as", "broker"),
            *("broker_seen_as", "broker_process", "broker_node", "group", "topics", "opened", "last", "requests"),
            *("requests_per_s", "request_bytes", "response_bytes", "ended", "flow_id", "agent_id", "conn_id"),
            numbers={"requests", "requests_per_s", "request_bytes", "response_bytes"},
            times={"opened", "last", "ended"},
        ),
        sort="opened",
        time="last",
        subject="connection",
        known="SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM opens",
        heading=3,
        details=_details,
    )


def _every(tables: OpenTables, period: Period, name: str) -> tuple[str, list[object]]:
    """Return the SQL of all reports of ends, with its values; `hit`: the report names what is asked for."""
    tables.require("opens")
    selects, values = [], list[object]()
    for table in ("opens", "closes"):
        if tables.add(table):
            hit, of_hit = _hit(tables, table, name)
            where, of_period = within("received_ts", _reported(table, period))
            selects.append(
                f"""
                SELECT coalesce(flow_id, agent_id || '/' || conn_id) AS key, flow_id, side, node, agent_id, conn_id,
                    local, peer, client.id AS client_id, {library_of("client")} AS library, {process_of()} AS process,
                    {workload_of(tables, table)} AS workload, "group", array_to_string(
                        list_filter(list_transform(topics, lambda one: one.topic), lambda one: one IS NOT NULL), ', '
                    ) AS topics,
                    requests, request_bytes, response_bytes, received_ts, {_OF_TABLE[table]}, {hit} AS hit
                FROM {table} WHERE {where}
                """
            )
            values += [*of_hit, *of_period]
    return " UNION ALL BY NAME ".join(selects), values


def _hit(tables: OpenTables, table: str, name: str) -> tuple[str, list[object]]:
    """Return the condition that a report of an end names what is asked for, with its values."""
    test, values = address_is(name)
    addresses = "local", "peer", *(("nat.local", "nat.peer") if table == "opens" else ())
    known = tables.fields(table, "workload")
    names = "client.id", *(f"workload.{one}" for one in OWNER_NAMES if one in known)
    parts = [*(test.format(one) for one in addresses), *(f"{one} GLOB ?" for one in names), "flow_id = ?"]
    found: list[object] = [*values * len(addresses), *[name] * len(names), name]
    if name.isascii() and name.isdigit():
        parts.append("workload.pid = TRY_CAST(? AS BIGINT)")
        found.append(name)
    return " OR ".join(f"coalesce({part}, false)" for part in parts), found


def _reported(table: str, period: Period) -> Period:
    """Return when a connection was reported that was open in a period: as open, or as closed in it or later."""
    if not (period.begin or period.end):
        return period
    try:
        repeated = (period.end or datetime.now(UTC)) - _REPEATED_WITHIN
    except OverflowError:
        raise UsageError(OUTSIDE) from None
    return Period(min(period.begin or repeated, repeated) if table == "closes" else repeated, period.end)


def _details(tables: OpenTables, rows: Sequence[Mapping[str, Any]]) -> Details:
    """Return why the connections ended, as far as the tables have it."""
    found: dict[str, tuple[str, str]] = {}
    if tables.add("verdicts"):
        ids = [row["flow_id"] for row in rows if row["ended"] and row["flow_id"]]
        ask = "SELECT flow_id, cause, evidence FROM verdicts WHERE flow_id IN (SELECT unnest(?))"
        found = {flow_id: (cause, evidence) for flow_id, cause, evidence in tables.rows(ask, [ids])}
    nothing = None, None
    return [dict(zip(("cause", "evidence"), found.get(row["flow_id"], nothing), strict=True)) for row in rows]
