"""Finds which brokers of a cluster agents watch, by the addresses at which their clients reach them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kafka_probe_console.connection_ends import ends_in, reported
from kafka_probe_console.period import Period
from kafka_probe_console.views import within
from kafka_probe_console.watching import SILENT_S

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables


@dataclass(frozen=True, slots=True)
class WatchedBroker:
    """A broker as agents see it. problem: why they may miss its clients; None if they do not.

    percent: the share of the period in which the agent of its node reported.
    """

    problem: str | None
    percent: float = 0.0


def watched_brokers(
    tables: OpenTables, period: Period, brokers: Mapping[int, tuple[str, int]]
) -> dict[int, WatchedBroker]:
    """Return each broker as the agents see it. brokers: host and port by id.

    A broker is watched if an agent reported a server's end of a connection to this address that was open at the end of
    the period, or ended in the two and a half hours before. Clients behind NAT may use another address than the
    broker's own.
    """
    last = Period(period.end or datetime.now(UTC), period.end or datetime.now(UTC))
    node_of, shares, encrypted = _nodes(tables, last), _shares(tables, period), _encrypted(tables, last)

    def seen(host: str, port: int) -> WatchedBroker:
        at = f"{host}:{port}"
        nodes = {node for address in _addresses(host, port) for node in node_of.get(address, ())}
        if not nodes:
            return WatchedBroker(f"no agent watches the broker at {at}")
        if silent := sorted(nodes - shares.keys()):
            return WatchedBroker(f"the agent of {silent[0]}, with the broker at {at}, is silent")
        if hidden := sorted(nodes & encrypted):
            return WatchedBroker(f"{hidden[0]}, with the broker at {at}, has clients with TLS")
        return WatchedBroker(None, min(shares[node] for node in nodes))

    return {broker: seen(*address) for broker, address in brokers.items()}


def _addresses(host: str, port: int) -> set[str]:
    """Return the addresses of a host as agents write them, with the port; none if the name has none here."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    hosts = {str(address[0]).removeprefix("::ffff:") for *_, address in found}
    return {f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts}


def _nodes(tables: OpenTables, last: Period) -> dict[str, list[str]]:
    """Return the nodes whose agents watch a broker, by its own address and the one that its clients use."""
    ends, values = ends_in(tables, last)
    sql = f"""
        WITH ends AS (SELECT node, side, local, peer, flow_id FROM {ends})
        SELECT address, list(DISTINCT node) FROM (
            SELECT local AS address, node FROM ends WHERE side = 'server'
            UNION ALL
            SELECT client.peer, server.node FROM ends client JOIN ends server USING (flow_id)
            WHERE client.side = 'client' AND server.side = 'server'
        ) GROUP BY address
    """
    return dict(tables.rows(sql, values))


def _shares(tables: OpenTables, period: Period) -> dict[str, float]:
    """Return the share of the period in percent in which each node's agent reported, without nodes that are silent."""
    if not tables.add("agents"):
        return {}
    where, values = within("received_ts", period)
    begin = "?::TIMESTAMPTZ" if period.begin else "min(first) OVER ()"
    silent = f"INTERVAL {SILENT_S} SECOND"
    sql = f"""
        SELECT node, least(100.0, 100 * watched_s / greatest(epoch(newest) - epoch({begin}), 1)) FROM (
            SELECT node, min(received_ts) AS first, max(received_ts) AS last, newest,
                sum(epoch(least(coalesce(next, newest) - received_ts, {silent}))) AS watched_s
            FROM (
                SELECT node, received_ts, lead(received_ts) OVER (PARTITION BY node ORDER BY received_ts) AS next,
                    max(received_ts) OVER () AS newest
                FROM agents WHERE {where}
            ) GROUP BY node, newest
        ) WHERE newest - last <= {silent}
    """
    return dict(tables.rows(sql, [*([period.begin] if period.begin else []), *values]))


def _encrypted(tables: OpenTables, last: Period) -> set[str]:
    """Return the nodes with encrypted connections of clients, of which agents do not see what they do."""
    nodes = set[str]()
    for table, (where, values) in reported(tables, last).items():
        if "opaque" in tables.columns(table):
            sql = f"SELECT DISTINCT node FROM {table} WHERE {where} AND side = 'server' AND opaque = 'tls'"
            nodes.update(node for (node,) in tables.rows(sql, values))
    return nodes
