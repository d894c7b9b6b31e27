"""The command `kafka-probe why`: each disconnect with its cause, both ends, its last frames, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.ends import (
    ENDED,
    KNOWN_VERDICTS,
    address_is,
    client_of,
    library_of,
    nat_of,
    not_internal,
    process_of,
    workload_of,
)
from kafka_probe_console.period import Period, local_time, written
from kafka_probe_console.views import AnswerView, Details, within
from kafka_probe_pipeline.remedies import REMEDIES, remedy

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_IDLE, _RESTART = "idle_disconnects", "broker_restart"
_AROUND_US = 60_000_000  # a storm begins with the closes of a minute
_LONGER, _SLACK_US = 1.1, 2_000_000  # what the silences of one storm differ by, by default
_STOPS = ("broker_shutdown", "server"), ("process_exit", "server")


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
@click.option("--internal", is_flag=True, help="also kafka-probe's own clients")
@prints_view
def why(tables: OpenTables, period: Period, client: str | None, address: str | None, *, internal: bool) -> AnswerView:
    """Print why connections ended: cause, evidence, both ends, last frames, and what to change."""
    tables.require("verdicts")
    where, values = within(ENDED, period)
    conditions = ["true"] if internal or client or address else [not_internal("client")]
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
                coalesce(client.local, of_server.peer) AS client_address,
                coalesce(server.peer, of_client.local) AS seen_as,
                coalesce(server.local, of_client.peer, client.peer) AS broker,
                coalesce(client.peer, of_server.local) AS broker_seen_as,
                {process_of("server")} AS broker_process, server.node AS broker_node,
                coalesce(client."group", server."group") AS "group",
                array_to_string(coalesce(client.topics, server.topics), ', ') AS topics,
                coalesce(client.opened_ts, server.opened_ts) AS opened,
                coalesce(client.requests, server.requests) AS requests,
                coalesce(client.close.last_api, server.close.last_api) AS last_api,
                coalesce(client.close.in_flight, server.close.in_flight) AS in_flight, ends AS watched, "by", flow_id,
                client.agent_id AS agent_id, client.conn_id AS conn_id, server.agent_id AS broker_agent_id,
                server.conn_id AS broker_conn_id
            FROM (FROM verdicts WHERE {where})
            LEFT JOIN {nat_of(tables)} of_client
                ON of_client.agent_id = client.agent_id AND of_client.conn_id = client.conn_id
            LEFT JOIN {nat_of(tables)} of_server
                ON of_server.agent_id = server.agent_id AND of_server.conn_id = server.conn_id
        ) WHERE {" AND ".join(conditions)}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("ended", "cause", "client", "evidence", "idle_s", "process", "workload", "node", "library"),
            *("client_address", "seen_as", "broker", "broker_seen_as", "broker_process", "broker_node", "group"),
            *("topics", "opened", "requests", "last_api", "in_flight", "watched", "by", "flow_id", "agent_id"),
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
    storms = _storms(tables, [row["ended"] for row in rows])
    for row in rows:
        time = local_time(row["ended"])
        ends = [(row[f"{end}agent_id"], row[f"{end}conn_id"]) for end in ("", "broker_") if row[f"{end}agent_id"]]
        dated = time is not None and MINYEAR < time.year < MAXYEAR
        found.append(
            {
                "change": remedy(row["cause"], round((row["idle_s"] or 0) * 1e6)) if row["cause"] in REMEDIES else None,
                "storm": _storm_of(row, storms),
                "last_frames": last_lines(tables, ends, row["flow_id"], Period(time, time)) if dated else [],
            }
        )
    return found


def _storm_of(disconnect: Mapping[str, Any], storms: Iterable[_KnownStorm]) -> str | None:
    """Return the storm of the nearest silence that may have a disconnect."""
    silence_us = (disconnect["idle_s"] or 0) * 1e6
    found = (storm for storm in storms if storm.has(disconnect))
    nearest = min(found, key=lambda storm: abs(storm.idle_us - silence_us), default=None)
    return nearest and str(nearest)


class _KnownStorm(NamedTuple):
    """The last state of a storm. until_us: None while it is active."""

    id: str
    kind: str
    subject: str
    idle_us: int
    since_us: int
    until_us: int | None
    disconnects: int

    def has(self, disconnect: Mapping[str, Any]) -> bool:
        """Return True if a disconnect was at its time, and is of its cause and silence or of its broker."""
        until_us = self.until_us or disconnect["ended"]
        if not self.since_us - _AROUND_US <= disconnect["ended"] <= until_us:
            return False
        if self.kind == _RESTART:
            is_stop = (disconnect["cause"], disconnect["by"]) in _STOPS
            return is_stop and bool(disconnect["broker"] == self.subject)
        silences_us = sorted((self.idle_us, round((disconnect["idle_s"] or 0) * 1e6)))
        is_near = silences_us[1] <= silences_us[0] * _LONGER + _SLACK_US
        return is_near and bool(disconnect["cause"] == self.subject)

    def __str__(self) -> str:
        until = f"until {written(self.until_us)}" if self.until_us else "not over yet"
        return f"{self.disconnects:,} such disconnects since {written(self.since_us)}, {until}: storm {self.id}"


def _storms(tables: OpenTables, ended_us: Iterable[int]) -> list[_KnownStorm]:
    """Return the storms of idle connections and of restarts of brokers that may have disconnects of these times."""
    times = sorted(time for time in map(local_time, ended_us) if time and MINYEAR < time.year < MAXYEAR)
    if not times or not tables.add("storms"):
        return []
    newest = "row_number() OVER (PARTITION BY id ORDER BY ts DESC, batch_id DESC) = 1"
    since = "coalesce(since_ts, opened_ts)"
    ask = f"""
        SELECT id, kind, subject, coalesce(idle_us, 0), epoch_us({since}), epoch_us(resolved_ts), count
        FROM (SELECT * FROM storms WHERE date >= ? AND kind IN (?, ?) QUALIFY {newest})
        WHERE {since} <= ?::TIMESTAMPTZ + INTERVAL 1 MINUTE ORDER BY {since} DESC
    """
    first_date, _ = Period(times[0]).dates
    return [_KnownStorm(*row) for row in tables.rows(ask, [first_date, _IDLE, _RESTART, times[-1]])]
