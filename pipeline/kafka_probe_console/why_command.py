"""The command `kafka-probe why`: each disconnect with its cause, both ends, its last frames, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, MINYEAR
from typing import TYPE_CHECKING, Any

import click

from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.disconnect_storms import storm_of, storms_at
from kafka_probe_console.end_columns import (
    ADDRESSES,
    ENDED,
    KNOWN_VERDICTS,
    address_is,
    client_of,
    library_of,
    not_internal,
    process_of,
    with_nat,
    workload_of,
)
from kafka_probe_console.period import Period, local_time
from kafka_probe_console.views import AnswerView, Details, within
from kafka_probe_pipeline.remedies import REMEDIES, remedy

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables


@click.command(
    epilog="""\b
Examples:
  kafka-probe why --tables kafka-probe-output --client 'billing-*' --at 14:03
  kafka-probe why --tables kafka-probe-output --address 10.57.2.2:39282
  kafka-probe why --tables kafka-probe-output --since 1h --filter 'not cause = normal'
"""
)
@click.option("--client", metavar="PATTERN", help="client id, with * and ? as in shells")
@click.option("--address", metavar="HOST[:PORT]", help="address of either end, on either side of NAT")
@internal_flag
@prints_view()
def why(tables: OpenTables, period: Period, client: str | None, address: str | None, *, internal: bool) -> AnswerView:
    """Print why connections ended: cause, evidence, both ends, last frames, and what to change."""
    tables.require("verdicts")
    where, values = within(ENDED, period)
    conditions = [not_internal("client", internal=bool(internal or client or address))]
    if client:
        conditions.append("client GLOB ?")
        values = *values, client
    if address:
        test, parts = address_is(address)
        addresses = "client_address", "seen_as", "broker", "broker_seen_as"
        conditions.append("(" + " OR ".join(test.format(column) for column in addresses) + ")")
        values = *values, *parts * len(addresses)
    sql = f"""
        SELECT * FROM (
            SELECT {ENDED} AS ended, cause, {client_of("client", "server")} AS client, evidence,
                idle_us / 1e6 AS idle_s, {process_of("client")} AS process,
                {workload_of(tables, "verdicts", "client")} AS workload,
                client.node AS node, coalesce({library_of("client.client")}, {library_of("server.client")}) AS library,
                {ADDRESSES},
                {process_of("server")} AS broker_process, server.node AS broker_node,
                coalesce(client."group", server."group") AS "group",
                array_to_string(coalesce(client.topics, server.topics), ', ') AS topics,
                coalesce(client.opened_ts, server.opened_ts) AS opened,
                coalesce(client.requests, server.requests) AS requests,
                coalesce(client.close.last_api, server.close.last_api) AS last_api,
                coalesce(client.close.in_flight, server.close.in_flight) AS in_flight, ends, "by", flow_id,
                client.agent_id AS agent_id, client.conn_id AS conn_id, server.agent_id AS broker_agent_id,
                server.conn_id AS broker_conn_id
            FROM (FROM verdicts WHERE {where}) {with_nat(tables)}
        ) WHERE {" AND ".join(conditions)}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("ended", "cause", "client", "evidence", "idle_s", "process", "workload", "node", "library"),
            *("client_address", "seen_as", "broker", "broker_seen_as", "broker_process", "broker_node", "group"),
            *("topics", "opened", "requests", "last_api", "in_flight", "ends", "by", "flow_id", "agent_id"),
            *("conn_id", "broker_agent_id", "broker_conn_id"),
            numbers={"idle_s", "requests", "in_flight"},
            times={"ended", "opened"},
        ),
        sort="ended",
        time="ended",
        subject="disconnect",
        known=KNOWN_VERDICTS,
        heading=3,
        details=_details,
    )


def _details(tables: OpenTables, rows: Sequence[Mapping[str, Any]]) -> Details:
    """Return what to change after each disconnect, its storm, and its last frames."""
    from kafka_probe_console.rendering import last_lines  # needs the extra `console`

    found = []
    storms = storms_at(tables, [row["ended"] for row in rows])
    for row in rows:
        time = local_time(row["ended"])
        ends = [(row[f"{end}agent_id"], row[f"{end}conn_id"]) for end in ("", "broker_") if row[f"{end}agent_id"]]
        dated = time is not None and MINYEAR < time.year < MAXYEAR
        found.append(
            {
                "change": remedy(row["cause"], round((row["idle_s"] or 0) * 1e6)) if row["cause"] in REMEDIES else None,
                "storm": storm_of(row, storms),
                "last_frames": last_lines(tables, ends, row["flow_id"], Period(time, time)) if dated else [],
            }
        )
    return found
