"""Counts of open connections by owner and peer network, updated when connections open, change and close.

So a hundred thousand idle connections cost no CPU. kafka-probe's own connections are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from kafka_probe.connections.identity import Identity
from kafka_probe.events import OpenCountFacts
from kafka_probe.memory import DEFAULT
from kafka_probe.text import printable_json
from kafka_probe.workloads import NOBODY, Workload

_CountKey = tuple[str, Workload, str, str | None]

MAX_COUNTS = 256
"""Most counts that are reported one by one: clients may be in thousands of networks."""
MAX_BYTES = 256 << 10
"""Most bytes of a report's counts as JSON: names may be hostile, and the event must fit into a record."""


@dataclass(slots=True)
class OpenCount:
    """Open connections of one owner with the same local end and peer network.

    local: address and port of a server end; of a client end the address only, because its port is arbitrary.
    """

    side: str
    workload: Workload
    local: str
    peer_network: str | None
    count: int = 0


class OpenCounts:
    """The counts of all open connections.

    Beyond `limit` counts, a new count combines all networks of an owner; beyond twice as many, all owners of a side.
    """

    def __init__(self, limit: int = DEFAULT.open_counts) -> None:
        self._limit = limit
        self._counts: dict[_CountKey, OpenCount] = {}

    def add(self, identity: Identity, workload: Workload) -> OpenCount:
        """Count one more connection with these ends and this owner; return the count that includes it."""
        local = identity.local if identity.server_side else identity.local.rpartition(":")[0]
        new = OpenCount(identity.side, workload, local, identity.peer_network)
        if len(self._counts) >= self._limit and _key(new) not in self._counts:
            new.peer_network = None
        if len(self._counts) >= 2 * self._limit and _key(new) not in self._counts:
            new = _rest(new.side)
        counted = self._counts.setdefault(_key(new), new)
        counted.count += 1
        return counted

    def remove(self, one: OpenCount) -> None:
        """Count one connection less."""
        one.count -= 1
        if not one.count:
            del self._counts[_key(one)]

    def report(self) -> list[OpenCountFacts]:
        """Return `open` of the `agent` event: the largest counts, others without networks, and the rest by side."""
        largest = sorted(self._counts.values(), key=lambda each: each.count, reverse=True)
        others: dict[_CountKey, OpenCount] = {}
        rest = {side: _rest(side) for side in ("client", "server")}
        for each in largest[MAX_COUNTS:]:
            other = OpenCount(each.side, each.workload, each.local, None)
            if len(others) >= MAX_COUNTS and _key(other) not in others:
                rest[each.side].count += each.count
            else:
                others.setdefault(_key(other), other).count += each.count
        reported, left_bytes = [], MAX_BYTES
        for each in (*largest[:MAX_COUNTS], *others.values()):
            counted = _counted(each)
            size = len(printable_json(orjson.dumps(counted)))
            if size <= left_bytes:
                reported.append(counted)
                left_bytes -= size
            else:
                rest[each.side].count += each.count
        return reported + [_counted(each) for each in rest.values() if each.count]


def _counted(one: OpenCount) -> OpenCountFacts:
    workload = one.workload.named()
    return {
        "side": one.side,
        "workload": {**workload, "cmdline": None, "labels": None},  # the longest fields; `open` events have them
        "local": one.local,
        "peer_network": one.peer_network,
        "count": one.count,
    }


def _rest(side: str) -> OpenCount:
    """Return a count for all connections of a side that have no count of their own."""
    return OpenCount(side, NOBODY, "", None)


def _key(one: OpenCount) -> _CountKey:
    return one.side, one.workload, one.local, one.peer_network
