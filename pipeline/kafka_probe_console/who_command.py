"""The command `kafka-probe who`: both ends of the connections of an address, a process, a container or a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kafka_probe.errors import UsageError
from kafka_probe.events import OWNER_NAMES
from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KEY, KNOWN_CONNECTIONS, TIMES, ends_of, reported, reported_in
from kafka_probe_console.end_columns import ADDRESSES, address_is, library_of, nat_of, process_of, with_nat, workload_of
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables, Row

MOST_ENDS = 1_000
"""Most ends of a name that are shown, the last reported ones. It bounds memory: all columns of these are read."""
_NEWEST = (
    *("flow_id", "side", "node", "local", "peer", "client_id", "library", "process", "workload", "group", "topics"),
    *("requests", "request_bytes", "response_bytes"),
)


@click.command(
    epilog="""\b
Examples:
  kafka-probe who --tables kafka-probe-output 10.57.2.2:39282
  kafka-probe who --tables kafka-probe-output 'billing-*' --filter 'state = open'
"""
)
@click.argument("name")
@prints_view()
def who(tables: OpenTables, period: Period, name: str) -> AnswerView:
    """Print both ends of the connections of NAME, newest first.

    NAME is an address, with or without port, on either side of NAT, or a flow_id, process id or process such as
    java[412], or, with * and ? as in shells, a client id, command, container, systemd unit, pod or pod's owner.
    """
    if not name:
        raise UsageError("NAME is empty.")
    read = reported(tables, period)
    named = _named(tables, read, name)
    more, named = len(named) > MOST_ENDS, named[:MOST_ENDS]
    ids, flow_ids = [one for one, _ in named], [flow_id for _, flow_id in named if flow_id]
    reports, values = [], list[object]()
    for table, (where, of_period) in read.items():
        reports.append(
            f"""
            SELECT agent_id, conn_id, flow_id, side, node, local, peer, client.id AS client_id,
                {library_of("client")} AS library, {process_of()} AS process,
                {workload_of(tables, table)} AS workload, "group", array_to_string(
                    list_filter(list_transform(topics, lambda one: one.topic), lambda one: one IS NOT NULL), ', '
                ) AS topics, requests, request_bytes, response_bytes, received_ts, {TIMES[table]}
            FROM {table} WHERE {where} AND (
                agent_id || '/' || conn_id IN (SELECT unnest(?)) OR flow_id IN (SELECT unnest(?))
            )
            """
        )
        values += [*of_period, ids, flow_ids]
    verdicts, of_verdicts = _verdicts(tables, Period(reported_in("closes", period).begin))
    since, bound = ("received >= ? OR state != 'closed'", [period.begin]) if period.begin else ("true", [])
    newer = "if(client.{0} IS NULL OR server.{0} IS NOT NULL AND server.seen > client.seen, server.{0}, client.{0})"
    sql = f"""
        WITH keyed AS (
            SELECT *, {KEY} AS key,
                if(side = 'server', 'server', 'client') AS of,
                requests / nullif(epoch(seen) - epoch(opened), 0) AS requests_per_s
            FROM {ends_of(reports, _NEWEST)}
        ),
        of_sides AS (
            SELECT *, count(*) OVER (PARTITION BY key) AS reported_ends, EXISTS (
                FROM keyed other WHERE other.key = keyed.key AND other.of != keyed.of
                    AND (other.local = keyed.peer OR other.peer = keyed.local)
            ) AS fits
            FROM keyed QUALIFY row_number() OVER (
                PARTITION BY key, of ORDER BY agent_id || '/' || conn_id IN (SELECT unnest(?)) DESC, fits DESC,
                    received DESC, agent_id, conn_id
            ) = 1
        )
        SELECT * FROM (
            SELECT CASE
                    WHEN client.ended IS NULL AND server.ended IS NULL THEN 'open'
                    WHEN client.key = server.key AND (client.ended IS NULL OR server.ended IS NULL) THEN 'half closed'
                    ELSE 'closed'
                END AS state, {ADDRESSES}, coalesce(client_address, seen_as) AS address,
                client.process AS process, coalesce(client.client_id, server.client_id) AS client,
                verdict.cause AS cause, verdict.evidence AS evidence,
                client.workload AS workload, client.node AS node, coalesce(client.library, server.library) AS library,
                server.process AS broker_process, server.node AS broker_node,
                coalesce(client."group", server."group") AS "group", coalesce(client.topics, server.topics) AS topics,
                least(client.opened, server.opened) AS opened, greatest(client.seen, server.seen) AS last,
                greatest(client.received, server.received) AS received,
                {newer.format("requests")} AS requests, {newer.format("requests_per_s")} AS requests_per_s,
                {newer.format("request_bytes")} AS request_bytes, {newer.format("response_bytes")} AS response_bytes,
                coalesce(client.ended, server.ended) AS ended,
                coalesce(client.reported_ends, server.reported_ends) AS reported_ends,
                coalesce(client.flow_id, server.flow_id) AS flow_id,
                coalesce(client.agent_id, server.agent_id) AS agent_id,
                coalesce(client.conn_id, server.conn_id) AS conn_id
            FROM (FROM of_sides WHERE of = 'client') client
            FULL JOIN (FROM of_sides WHERE of = 'server') server USING (key)
            {with_nat(tables)}
            LEFT JOIN {verdicts} verdict USING (key)
        ) WHERE {since}
    """
    return AnswerView(
        sql=sql,
        values=(*values, ids, *of_verdicts, *bound),
        columns=columns(
            *("state", "address", "process", "client", "cause", "evidence", "workload", "node", "library", "seen_as"),
            *("broker", "broker_seen_as", "broker_process", "broker_node", "group", "topics", "opened", "last"),
            *("requests", "requests_per_s", "request_bytes", "response_bytes", "ended", "reported_ends", "flow_id"),
            *("agent_id", "conn_id"),
            numbers={"requests", "requests_per_s", "request_bytes", "response_bytes", "reported_ends"},
            times={"opened", "last", "ended"},
        ),
        sort="opened",
        time="last",
        subject="connection",
        known=KNOWN_CONNECTIONS,
        heading=4,
        note=f"More than {MOST_ENDS:,} ends match: those that were reported last are shown." if more else "",
    )


def _named(tables: OpenTables, read: Mapping[str, tuple[str, Sequence[object]]], name: str) -> list[Row]:
    """Return the ends that a name stands for: `agent_id/conn_id` and the flow id, at most MOST_ENDS and one more."""
    exact, of_exact = _exact(tables, name)
    selects, values = [], list[object]()
    for table, (where, of_period) in read.items():
        pattern, of_pattern = _pattern(tables, table, name)
        selects.append(
            f"""
            SELECT agent_id, conn_id, flow_id, received_ts, coalesce({exact}, false) AS exact FROM {table}
            WHERE {where} AND (exact OR {pattern})
            """
        )
        values += [*of_exact, *of_period, *of_pattern]
    ask = f"""
        SELECT agent_id || '/' || conn_id, max(flow_id) FROM ({" UNION ALL ".join(selects)})
        WHERE agent_id IS NOT NULL AND conn_id IS NOT NULL
        GROUP BY agent_id, conn_id ORDER BY bool_or(exact) DESC, max(received_ts) DESC, 1 LIMIT ?
    """
    return [*tables.rows(ask, [*values, MOST_ENDS + 1])]


def _exact(tables: OpenTables, name: str) -> tuple[str, list[object]]:
    """Return the condition that a name is the address, flow_id or process of an end, with its values."""
    test, values = address_is(name)
    local, peer = (test.format(column) for column in ("local", "peer"))
    beyond = f"SELECT agent_id || '/' || conn_id FROM {nat_of(tables)} WHERE {local} OR {peer}"
    same = ("flow_id", "workload.pid::VARCHAR", process_of())
    parts = [local, peer, f"agent_id || '/' || conn_id IN ({beyond})", *(f"{one} = ?" for one in same)]
    return " OR ".join(parts), [*values * 4, *[name] * len(same)]


def _pattern(tables: OpenTables, table: str, name: str) -> tuple[str, list[object]]:
    """Return the condition that a name is one of an end's client or workload, with its values."""
    known = tables.fields(table, "workload")
    names = "client.id", *(f"workload.{one}" for one in OWNER_NAMES if one in known)
    return " OR ".join(f"{one} GLOB ?" for one in names), [name] * len(names)


def _verdicts(tables: OpenTables, judged: Period) -> tuple[str, Sequence[object]]:
    """Return a relation of the verdicts since a time: key, cause and evidence; with its values."""
    if not tables.add("verdicts"):
        return "(SELECT NULL AS key, NULL AS cause, NULL AS evidence WHERE false)", ()
    where, values = within("judged_ts", judged)
    facts = "key, any_value(cause) AS cause, any_value(evidence) AS evidence"  # a repeated micro-batch gives them again
    return f"(SELECT {facts} FROM verdicts WHERE {where} GROUP BY key)", values
