"""Counts of open connections by owner and peer network, updated when connections open, change and close.

So a hundred thousand idle connections cost no CPU. kafka-probe's own connections are in no group.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from kafka_probe.connections.identity import Identity
from kafka_probe.events import OpenGroup
from kafka_probe.memory import DEFAULT
from kafka_probe.text import printable_json
from kafka_probe.workloads import NOBODY, Workload

_Key = tuple[str, Workload, str, str | None]

MAX_GROUPS = 256
"""Most groups that are reported one by one: clients may be in thousands of networks."""
MAX_BYTES = 256 << 10
"""Most bytes of a report's groups as JSON: names may be hostile, and the event must fit into a record."""


@dataclass(slots=True)
class Group:
    """Open connections of one owner with the same local end and peer network.

    local: address and port of a server end; of a client end the address only, because its port is arbitrary.
    """

    side: str
    workload: Workload
    local: str
    peer_network: str | None
    count: int = 0


class OpenCounts:
    """Groups of connections.

    Beyond `limit` groups, a new group combines all networks of an owner; beyond twice as many, all owners of a side.
    """

    def __init__(self, limit: int = DEFAULT.groups) -> None:
        self._limit = limit
        self._groups: dict[_Key, Group] = {}

    def add(self, identity: Identity, workload: Workload) -> Group:
        """Count one more connection with these ends and this owner; return the group that counts it."""
        local = identity.local if identity.server_side else identity.local.rpartition(":")[0]
        group = Group(identity.side, workload, local, identity.peer_network)
        if len(self._groups) >= self._limit and _key(group) not in self._groups:
            group.peer_network = None
        if len(self._groups) >= 2 * self._limit and _key(group) not in self._groups:
            group = _rest(group.side)
        counted = self._groups.setdefault(_key(group), group)
        counted.count += 1
        return counted

    def remove(self, group: Group) -> None:
        """Count one connection less in a group."""
        group.count -= 1
        if not group.count:
            del self._groups[_key(group)]

    def report(self) -> list[OpenGroup]:
        """Return `open` of the `agent` event: the largest groups, others without networks, and the rest by side."""
        largest = sorted(self._groups.values(), key=lambda group: group.count, reverse=True)
        others: dict[_Key, Group] = {}
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


def _counted(group: Group) -> OpenGroup:
    workload = group.workload.named()
    return {
        "side": group.side,
        "workload": {**workload, "cmdline": None, "labels": None},  # the longest fields; `open` events have them
        "local": group.local,
        "peer_network": group.peer_network,
        "count": group.count,
    }


def _rest(side: str) -> Group:
    """Return a group for all connections of a side that have no group of their own."""
    return Group(side, NOBODY, "", None)


def _key(group: Group) -> _Key:
    return group.side, group.workload, group.local, group.peer_network
