"""The open connections, counted by owner and by where they lead, while they come and go: a hundred thousand that are
silent cost nothing. kafka-probe's own are in no group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_probe.memory import DEFAULT
from kafka_probe.workloads import NOBODY

if TYPE_CHECKING:
    from kafka_probe.connections.tracker import Connection

Event = dict[str, object]

MOST = 256
"""Groups that are told one by one: each tells its owner whole, and clients may be in thousands of networks."""


@dataclass(slots=True)
class Group:
    """Open connections of one owner that lead to one place. `local`: without the port where that is any."""

    side: str
    workload: Mapping[str, object]
    local: str
    peer_network: str | None
    count: int = 0


class Census:
    """Groups of connections; each connection holds the one that it is counted in.

    Beyond `limit` groups the network of new ones is not told apart; beyond twice as many neither is the owner.
    """

    def __init__(self, limit: int = DEFAULT.groups) -> None:
        self._limit = limit
        self._groups: dict[tuple[str, int, str, str | None], Group] = {}

    def count(self, connection: Connection) -> None:
        """Count a connection where it belongs now; to be called when anything of that may have changed."""
        if group := connection.counted:
            group.count -= 1
            if not group.count:
                del self._groups[_key(group)]
        connection.counted = None
        if not (connection.closed or connection.internal):
            identity = connection.identity
            local = identity.local if identity.accepting else identity.local.rpartition(":")[0]
            group = Group(connection.side, connection.workload, local, identity.peer_network)
            if len(self._groups) >= self._limit and _key(group) not in self._groups:
                group.peer_network = None
            if len(self._groups) >= 2 * self._limit and _key(group) not in self._groups:
                group = _rest(group.side)
            connection.counted = self._groups.setdefault(_key(group), group)
            connection.counted.count += 1

    def report(self) -> list[Event]:
        """`open` of the `agent` event: the largest groups, and the others by owner, whatever network they lead to."""
        largest = sorted(self._groups.values(), key=lambda group: group.count, reverse=True)
        others: dict[tuple[str, int, str, str | None], Group] = {}
        for group in largest[MOST:]:
            rest = Group(group.side, group.workload, group.local, None)
            if len(others) >= MOST and _key(rest) not in others:
                rest = _rest(group.side)
            others.setdefault(_key(rest), rest).count += group.count
        return [
            {
                "side": group.side,
                "workload": group.workload,
                "local": group.local,
                "peer_network": group.peer_network,
                "count": group.count,
            }
            for group in (*largest[:MOST], *others.values())
        ]


def _rest(side: str) -> Group:
    """Return the group of all that have none of their own."""
    return Group(side, NOBODY, "", None)


def _key(group: Group) -> tuple[str, int, str, str | None]:
    # A workload is a shared dict, kept by its group: its id stays its own.
    return group.side, id(group.workload), group.local, group.peer_network
