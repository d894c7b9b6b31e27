"""Closed connections wait here for a second: then it shows whether their process or its listener ended with them.

The order of these ends within a stopping process is nobody's contract: Kafka closes connections and listeners from
several threads, and a client ends some milliseconds after its last connection.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from kafka_probe.capture.record import Flag
from kafka_probe.connections.identity import Identity, read_open
from kafka_probe.workloads import WorkloadResolver

Record = npt.NDArray[Any]
Event = dict[str, object]

SETTLED_NS = 1_000_000_000
_ANY = "0.0.0.0", "[::]"  # listens for every address


@dataclass(frozen=True, slots=True)
class _Closed:
    ended_ns: int
    closing_ns: int
    identity: Identity
    workload: Mapping[str, object]
    event: Event


class Settling:
    """The `close` events of connections, in the order in which they ended; times are of CLOCK_MONOTONIC."""

    def __init__(self, resolver: WorkloadResolver) -> None:
        self._resolver = resolver
        self._waiting: deque[_Closed] = deque()
        self._settled: list[tuple[int, Event]] = []
        # When listening sockets were closed, by network namespace and port, and by address.
        self._listeners: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)

    def listen(self, record: Record) -> None:
        """A LISTEN record."""
        identity, _ = read_open(record)
        address, _, port = identity.local.rpartition(":")
        closed = self._listeners[identity.netns, port]
        if record["flags"] & Flag.CLOSED:
            closed[address] = int(record["ts_ns"])
        elif address in _ANY:
            closed.clear()
        else:
            for listened in (address, *_ANY):
                closed.pop(listened, None)

    def add(
        self, ended_ns: int, closing_ns: int, identity: Identity, workload: Mapping[str, object], event: Event
    ) -> None:
        """The `close` event of a connection, as far as it is known when it ends."""
        self._waiting.append(_Closed(ended_ns, closing_ns, identity, workload, event))

    def settle(self, until_ns: int) -> None:
        """What ended until then has waited long enough, and what is to be seen is what is there now."""
        ended: dict[int, bool | None] = {}  # of the owners, each asked for once: a broker may be that of thousands
        while self._waiting and self._waiting[0].ended_ns <= until_ns:
            closed = self._waiting.popleft()
            if id(closed.workload) not in ended:
                ended[id(closed.workload)] = self._resolver.ended(closed.workload)
            company = {
                "owner_ended": ended[id(closed.workload)],
                "listener_closed_us": self._listener_closed_us(closed),
            }
            self._settled.append((closed.ended_ns, {**closed.event, **company}))

    def take(self) -> list[tuple[int, Event]]:
        """(ts_ns, event) of those that were settled since the last call."""
        settled, self._settled = self._settled, []
        return settled

    def _listener_closed_us(self, closed: _Closed) -> int | None:
        """How long before the connection its listener was closed; None if it was not."""
        address, _, port = closed.identity.local.rpartition(":")
        listeners = self._listeners.get((closed.identity.netns, port), {})
        closed_ns = [listeners[listened] for listened in (address, *_ANY) if listened in listeners]
        if not (closed_ns and closed.identity.accepting):
            return None
        return max(closed.closing_ns - max(closed_ns), 0) // 1000
