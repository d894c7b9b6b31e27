"""The open connections, counted by owner and by where they lead, while they come and go: a hundred thousand that are
silent cost nothing. kafka-probe's own are in no group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from kafka_probe.memory import DEFAULT
from kafka_probe.text import printable_json
from kafka_probe.workloads import NOBODY

if TYPE_CHECKING:
    from kafka_probe.connections.tracker import Connection

Event = dict[str, object]

MAX_GROUPS = 256
"""Groups that are reported one by one: clients may be in thousands of networks."""
MAX_BYTES = 256 << 10
"""What the groups of a report may take as JSON: names may be hostile, and the event must fit into a record."""


@dataclass(slots=True)
class Group:
    """Open connections of one owner that lead to one place. `local`: without the port where that is any."""

    side: str
    workload: Mapping[str, object]
    local: str
    peer_network: str | None
    count: int = 0


class OpenCounts:
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
            local = identity.local if identity.server_side else identity.local.rpartition(":")[0]
            group = Group(connection.side, connection.workload, local, identity.peer_network)
            if len(self._groups) >= self._limit and _key(group) not in self._groups:
                group.peer_network = None
            if len(self._groups) >= 2 * self._limit and _key(group) not in self._groups:
                group = _rest(group.side)
            connection.counted = self._groups.setdefault(_key(group), group)
            connection.counted.count += 1

    def report(self) -> list[Event]:
        """Return `open` of the `agent` event: the largest groups, others by owner only, and the rest by side."""
        largest = sorted(self._groups.values(), key=lambda group: group.count, reverse=True)
        others: dict[tuple[str, int, str, str | None], Group] = {}
        rest = {side: _rest(side) for side in ("client", "server")}
        for group in largest[MAX_GROUPS:]:
            other = Group(group.side, group.workload, group.local, None)
            if len(others) >= MAX_GROUPS and _key(other) not in others:
                rest[group.side].count += group.count
            else:
                others.setdefault(_key(other), other).count += group.count
        reported, left_bytes = [], MAX_BYTES
        for group in (*largest[:MAX_GROUPS], *others.values()):
            counted = _counted(group)
            size = len(printable_json(orjson.dumps(counted)))
            if size <= left_bytes:
                reported.append(counted)
                left_bytes -= size
            else:
                rest[group.side].count += group.count
        return reported + [_counted(group) for group in rest.values() if group.count]


def _counted(group: Group) -> Event:
    return {
        "side": group.side,
        "workload": {**group.workload, "cmdline": None, "labels": None},  # the longest, and in `open` events
        "local": group.local,
        "peer_network": group.peer_network,
        "count": group.count,
    }


def _rest(side: str) -> Group:
    """Return the group of all that have none of their own."""
    return Group(side, NOBODY, "", None)


def _key(group: Group) -> tuple[str, int, str, str | None]:
    # A workload is a shared dict, kept by its group: its id stays its own.
    return group.side, id(group.workload), group.local, group.peer_network
