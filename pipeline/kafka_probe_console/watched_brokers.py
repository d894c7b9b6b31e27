"""Finds which brokers of a cluster agents watch, by the addresses at which their clients reach them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from kafka_probe_console.connection_ends import TIMES, ends_in
from kafka_probe_console.end_columns import not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.views import within
from kafka_probe_console.watching import LONGEST_PAUSE

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_LEAST_PERCENT = 90.0
"""The least share of the period in which the agent at a broker has to report."""
_WITHOUT_TOPICS = ("topics_shed", "flow_limit")
"""Losses of flows without their topics."""


@dataclass(frozen=True, slots=True)
class WatchedBroker:
    """A broker as agents see it. problem: why they may miss its clients; None if they do not.

    percent: the share of the period in which the agent of its node reported.
    """

    problem: str | None
    percent: float = 0.0


class _Reports(NamedTuple):
    """The reports of a node's agent, summed up. lost: it sent flows without their topics."""

    percent: float
    is_silent: bool
    lost: bool


def watched_brokers(
    tables: OpenTables, period: Period, brokers: Mapping[int, tuple[str, int]]
) -> dict[int, WatchedBroker]:
    """Return each broker as the agents see it. brokers: host and port by id.

    A broker is watched if an agent reported a server's end of a connection to this address that was open at the end of
    the period, or ended in the two and a half hours before. Clients behind NAT may use another address than the
    broker's own.
    """
    now = period.end or datetime.now(UTC)
    node_of, reports = _nodes(tables, Period(now, now)), _reports(tables, period)
    encrypted, without_topics = _encrypted(tables, period), _reading_unnamed(tables, period)

    def seen(host: str, port: int) -> WatchedBroker:
        at = f"the broker at {host}:{port}"
        addresses = _addresses(host, port)
        nodes = {node for address in addresses for node in node_of.get(address, ())}
        if not addresses:
            return WatchedBroker(f"{at} has no address on this machine: run the command where clients run")
        if not nodes:
            return WatchedBroker(f"no agent watches {at}")
        if len(nodes) > 1:
            return WatchedBroker(f"several nodes have {at}: {', '.join(sorted(nodes))}")
        (node,) = nodes
        found = reports.get(node)
        if not found or found.is_silent:
            return WatchedBroker(f"the agent of {node}, with {at}, is silent")
        if found.lost:
            return WatchedBroker(f"the agent of {node}, with {at}, left out topics: see `kafka-probe agents`")
        if node in encrypted:
            return WatchedBroker(f"{node}, with {at}, has connections that are encrypted or not decoded")
        if node in without_topics:
            return WatchedBroker(f"a client of {node}, with {at}, read topics that are not known")
        if found.percent < _LEAST_PERCENT:
            return WatchedBroker(f"{at} was watched for {found.percent:.0f} % of the period", found.percent)
        return WatchedBroker(None, found.percent)

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


def _reports(tables: OpenTables, period: Period) -> dict[str, _Reports]:
    """Return what the reports of the period show of each node's agent."""
    if not tables.add("agents"):
        return {}
    where, values = within("received_ts", period)
    begin = "?::TIMESTAMPTZ" if period.begin else "min(first) OVER ()"
    lost = f"list_filter(losses, lambda one: one.value > 0 AND one.key IN ({', '.join(map(repr, _WITHOUT_TOPICS))}))"
    sql = f"""
        WITH reports AS (
            SELECT node, received_ts, len({lost}) > 0 AS lost,
                lead(received_ts) OVER (PARTITION BY node ORDER BY received_ts) AS next,
                max(received_ts) OVER () AS newest
            FROM agents WHERE {where}
        ),
        pauses AS (
            SELECT node, {LONGEST_PAUSE} AS longest FROM reports GROUP BY node
        ),
        nodes AS (
            SELECT node, min(received_ts) AS first, max(received_ts) AS last, newest, longest, bool_or(lost) AS lost,
                sum(epoch(least(coalesce(next, newest) - received_ts, longest))) AS watched_s
            FROM reports JOIN pauses USING (node) GROUP BY node, newest, longest
        )
        SELECT node, least(100.0, 100 * watched_s / greatest(epoch(newest) - epoch({begin}), 1)),
            newest - last > longest, coalesce(lost, false)
        FROM nodes
    """
    found = tables.rows(sql, [*values, *([period.begin] if period.begin else [])])
    return {node: _Reports(*rest) for node, *rest in found}


def _encrypted(tables: OpenTables, period: Period) -> set[str]:
    """Return the nodes with connections of clients that agents cannot decode."""
    nodes = set[str]()
    where, values = within("received_ts", period)
    for table in TIMES:
        if tables.add(table) and "opaque" in tables.columns(table):
            sql = f"SELECT DISTINCT node FROM {table} WHERE {where} AND side = 'server' AND opaque IS NOT NULL"
            nodes.update(node for (node,) in tables.rows(sql, values))
    return nodes


def _reading_unnamed(tables: OpenTables, period: Period) -> set[str]:
    """Return the nodes of brokers from which a client read unknown topics only, as in an older session."""
    if not tables.add("traffic"):
        return set()
    where, values = within("window_start", period)
    sql = f"""
        SELECT DISTINCT node FROM (
            SELECT node FROM traffic
            WHERE {where} AND side = 'server' AND api IN ('Fetch', 'ShareFetch')
                AND {not_internal("client_id", internal=False)}
            GROUP BY node, client_id, "group" HAVING count(*) FILTER (level = 'topic') = 0
        )
    """
    return {node for (node,) in tables.rows(sql, values)}
