"""The command `kafka-probe why`: each disconnect with its cause, both ends, its last frames, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, MINYEAR
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.ends import address_is, client_of, library_of, not_internal, process_of, workload_of
from kafka_probe_console.period import Period, local_time, written
from kafka_probe_console.views import AnswerView, Details, within
from kafka_probe_pipeline.remedies import remedy

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_OF_IDLE, _OF_BROKER = "idle_disconnects", "broker_restart"
_OF_BROKER_CAUSES = ("broker_shutdown", "process_exit")
_SAME_SILENCE = 0.1  # the share by which the silences of one storm differ


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
    # No close is newer than Kafka's time of its verdict, so that a wrong or forged clock cannot move it to the future.
    time = "least(ts, judged_ts)"
    where, values = within(time, period)
    conditions, more = ["true" if internal else not_internal("client")], list[object]()
    if client:
        conditions.append("client GLOB ?")
        more.append(client)
    if address:
        test, parts = address_is(address)
        addresses = "client_address", "seen_as", "broker", "broker_seen_as"
        conditions.append("(" + " OR ".join(test.format(column) for column in addresses) + ")")
        more += [*parts * len(addresses)]
    sql = f"""
        SELECT * FROM (
            SELECT {time} AS ended, cause, {client_of("client", "server")} AS client, evidence, idle_us / 1e6 AS idle_s,
                {process_of("client")} AS process, {workload_of(tables, "verdicts", "client")} AS workload,
                client.node AS node, coalesce({library_of("client.client")}, {library_of("server.client")}) AS library,
                client.local AS client_address, server.peer AS seen_as, client.peer AS broker_seen_as,
                coalesce(server.local, client.peer) AS broker, {process_of("server")} AS broker_process,
                server.node AS broker_node, coalesce(client."group", server."group") AS "group",
                array_to_string(coalesce(client.topics, server.topics), ', ') AS topics,
                coalesce(client.opened_ts, server.opened_ts) AS opened,
                coalesce(client.requests, server.requests) AS requests,
                coalesce(client.close.last_api, server.close.last_api) AS last_api,
                coalesce(client.close.in_flight, server.close.in_flight) AS in_flight, ends AS watched, flow_id,
                coalesce(client.agent_id, server.agent_id) AS agent_id,
                coalesce(client.conn_id, server.conn_id) AS conn_id
            FROM verdicts WHERE {where}
        ) WHERE {" AND ".join(conditions)}
    """
    return AnswerView(
        sql=sql,
        values=(*values, *more),
        columns=columns(
            *("ended", "cause", "client", "evidence", "idle_s", "process", "workload", "node", "library"),
            *("client_address", "seen_as", "broker", "broker_seen_as", "broker_process", "broker_node", "group"),
            *("topics", "opened", "requests", "last_api", "in_flight", "watched", "flow_id", "agent_id", "conn_id"),
            numbers={"idle_s", "requests", "in_flight"},
            times={"ended", "opened"},
        ),
        sort="ended",
        time="ended",
        subject="disconnect",
        known="SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM verdicts",
        heading=4,
        details=_details,
    )


def _details(tables: OpenTables, rows: Sequence[Mapping[str, Any]]) -> Details:
    """Return what to change after each disconnect, its storm, and its last frames."""
    from kafka_probe_console.rendering import last_lines

    flows = [row["flow_id"] or (row["agent_id"], row["conn_id"]) for row in rows]
    times = sorted(time for row in rows if (time := local_time(row["ended"])) and MINYEAR < time.year < MAXYEAR)
    lines = last_lines(tables, flows, Period(times[0], times[-1])) if times else {}
    storms = _storms(tables)
    return [
        {
            "change": remedy(row["cause"], round((row["idle_s"] or 0) * 1e6)),
            "storm": next((str(storm) for storm in storms if storm.has(row)), None),
            "last_frames": lines.get(flow, []),
        }
        for row, flow in zip(rows, flows, strict=True)
    ]


class KnownStorm(NamedTuple):
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
        if not self.since_us <= disconnect["ended"] <= (self.until_us or disconnect["ended"]):
            return False
        if self.kind == _OF_BROKER:
            return bool(disconnect["broker"] == self.subject) and disconnect["cause"] in _OF_BROKER_CAUSES
        silence_us = (disconnect["idle_s"] or 0) * 1e6
        is_near = abs(silence_us - self.idle_us) <= _SAME_SILENCE * self.idle_us
        return is_near and bool(disconnect["cause"] == self.subject)

    def __str__(self) -> str:
        until = f"until {written(self.until_us)}" if self.until_us else "which is active"
        return f"one of {self.disconnects:,} disconnects since {written(self.since_us)}, {until}, storm {self.id}"


def _storms(tables: OpenTables) -> list[KnownStorm]:
    """Return the storms of idle connections and of brokers' restarts."""
    if not tables.add("storms"):
        return []
    newest = "row_number() OVER (PARTITION BY id ORDER BY ts DESC, batch_id DESC) = 1"
    times = "epoch_us(coalesce(since_ts, opened_ts)), epoch_us(resolved_ts)"
    ask = f"""
        SELECT id, kind, subject, coalesce(idle_us, 0), {times}, count FROM (SELECT * FROM storms QUALIFY {newest})
        WHERE kind IN (?, ?) ORDER BY since_ts
    """
    return [KnownStorm(*row) for row in tables.rows(ask, [_OF_IDLE, _OF_BROKER])]
