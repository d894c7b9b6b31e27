"""Clients: the connections of one program under one client id, so that what one of them says holds for the others.

A consumer names its group to the coordinator only; its fetches go through other connections. The client side knows
the process; the server side only the peer's host, so there the client library has to be the same, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import text_bytes
from kafka_probe.shares import SharedBudget

if TYPE_CHECKING:
    from kafka_probe.connections.tracker import Connection
    from kafka_probe.protocol.facts import Facts

# What members send about their own group; an admin client may ask about any other.
_OF_MEMBERS = frozenset(
    (
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT),
        *(ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP),
        *(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT),
    )
)
OF_CONSUMERS = _OF_MEMBERS | {ApiKey.FETCH}
_CLIENT_BYTES = 1024  # what a client takes besides texts


class Client:
    """What the connections of one client said of it. It gives back the bytes that were taken for it, and for groups."""

    __slots__ = ("__weakref__", "_bytes", "_groups", "_place")

    def __init__(self, place: SharedBudget, size: int) -> None:
        self._place = place
        self._bytes = size
        self._groups: frozenset[str] = frozenset()

    def __del__(self) -> None:
        self._place.give_back(self._bytes)

    def add(self, group: str, peer: str) -> None:
        # Two are as good as many: nobody can tell which one a fetch is for.
        if len(self._groups) < 2 and group not in self._groups:
            size = text_bytes(group)
            if self._place.take(peer, size, "text_limit"):
                self._bytes += size
                self._groups |= {group}

    @property
    def group(self) -> str | None:
        """The consumer group; None if it is not known or there are several."""
        return next(iter(self._groups)) if len(self._groups) == 1 else None


class Clients:
    """Clients by what tells them apart. Connections hold their client, which leaves with the last of them."""

    def __init__(self, place: SharedBudget) -> None:
        self._place = place
        self._clients: WeakValueDictionary[tuple[object, ...], Client] = WeakValueDictionary()

    def learn(self, connection: Connection, facts: Facts) -> None:
        """What a request says of its client's group, or for which client it fetches."""
        if facts.response or facts.api_key not in OF_CONSUMERS:
            return
        key = _key(connection)
        connection.client = client = self._clients.get(key) or self._new(key, connection.sharing_peer)
        if client and facts.group and facts.api_key in _OF_MEMBERS:
            client.add(facts.group, connection.sharing_peer)

    def _new(self, key: tuple[object, ...], peer: str) -> Client | None:
        size = _CLIENT_BYTES + sum(text_bytes(part) for part in key if isinstance(part, str))
        if not self._place.take(peer, size, "text_limit"):
            return None
        client = self._clients[key] = Client(self._place, size)
        return client


def _key(connection: Connection) -> tuple[object, ...]:
    if connection.identity.server_side:
        host = connection.identity.peer.rpartition(":")[0]
        return host, connection.client_id, connection.software_name, connection.software_version
    process = connection.workload["pid"], connection.workload["start_time"]
    # An unknown process may be any: each of its connections is a client of its own.
    return *(process if process[0] is not None else (connection.conn_id,)), connection.client_id
