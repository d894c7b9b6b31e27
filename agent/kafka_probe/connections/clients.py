"""Clients: the connections of one program with one client id, which share the consumer group learned from one of them.

A consumer sends its group to the coordinator only; its fetches use other connections. The client side knows the
process. The server side knows only the peer's host, so there the client library has to be the same, too.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from kafka_probe.peer_limits import SharedBudget
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Facts, text_bytes

ClientIdentity = tuple[object, ...]
"""Process and client id of a client end; host, client id and client library of a server end."""

# What members send about their own group; an admin client may ask about any other.
_OF_MEMBERS = frozenset(
    (
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT),
        *(ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP),
        *(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT),
    )
)
OF_CONSUMERS = _OF_MEMBERS | {ApiKey.FETCH}
_CLIENT_BYTES = 1024  # memory of a client besides texts


class Client:
    """The consumer groups that the connections of one client named.

    When deleted, it gives back the bytes taken for itself and its groups.
    """

    __slots__ = ("__weakref__", "_budget", "_bytes", "_groups")

    def __init__(self, budget: SharedBudget, size: int) -> None:
        self._budget = budget
        self._bytes = size
        self._groups: frozenset[str] = frozenset()

    def __del__(self) -> None:
        self._budget.give_back(self._bytes)

    def add(self, group: str, peer: str) -> None:
        # Two are enough: with more than one group, the group of a fetch is unknown.
        if len(self._groups) < 2 and group not in self._groups:
            size = text_bytes(group)
            if self._budget.take(peer, size, "text_limit"):
                self._bytes += size
                self._groups |= {group}

    @property
    def group(self) -> str | None:
        """Return the consumer group; None if it is not known or there are several."""
        return next(iter(self._groups)) if len(self._groups) == 1 else None


class Clients:
    """Clients by the key that identifies them. Connections refer to their client; it is deleted with the last one."""

    def __init__(self, budget: SharedBudget) -> None:
        self._budget = budget
        self._clients: WeakValueDictionary[ClientIdentity, Client] = WeakValueDictionary()

    def learn(self, key: ClientIdentity, facts: Facts, peer: str) -> Client | None:
        """Return the client that sent a consumer's request, and add the group that the request names.

        Returns None if there is no memory for it. peer: the peer whose share of the budget it uses.
        """
        client = self._clients.get(key) or self._new(key, peer)
        if client and facts.group and facts.api_key in _OF_MEMBERS:
            client.add(facts.group, peer)
        return client

    def _new(self, key: ClientIdentity, peer: str) -> Client | None:
        size = _CLIENT_BYTES + sum(text_bytes(part) for part in key if isinstance(part, str))
        if not self._budget.take(peer, size, "text_limit"):
            return None
        client = self._clients[key] = Client(self._budget, size)
        return client
