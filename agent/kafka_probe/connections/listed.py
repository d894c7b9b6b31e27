"""The connections from the list at the start of which no sample has arrived yet."""

from __future__ import annotations

from collections.abc import Collection

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.identity import Identity
from kafka_probe.connections.repeats import SocketEnds
from kafka_probe.workloads import WorkloadResolver


def ends_of(identity: Identity) -> SocketEnds:
    """Return the key of a connection whose id in the kernel is not known."""
    return identity.netns, identity.local, identity.peer


class ListedConnections:
    """Holds the listed connections without a sample, by namespace and ends.

    A connection may have its first sample before the list contains it, so until the list ends, the ends of all
    connections with samples are kept, too: at most `most`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: dict[SocketEnds, Connection] = {}
        self._seen: set[SocketEnds] | None = set()

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Connection) -> None:
        self._connections[ends_of(connection.identity)] = connection

    def get(self, ends: SocketEnds) -> Connection | None:
        return self._connections.get(ends)

    def pop(self, ends: SocketEnds) -> Connection | None:
        """Delete a connection and return it; None if it is not here."""
        return self._connections.pop(ends, None)

    def note_sample(self, ends: SocketEnds) -> None:
        """Note that a connection has its first sample."""
        if self._seen is not None and len(self._seen) < self._most:
            self._seen.add(ends)

    def had_sample(self, ends: SocketEnds) -> bool:
        return self._seen is not None and ends in self._seen

    def end_list(self) -> None:
        """Note that the list is complete, or that there is none."""
        self._seen = None

    def ends(self) -> Collection[SocketEnds]:
        return self._connections.keys()

    def all(self) -> tuple[Connection, ...]:
        return tuple(self._connections.values())

    def orphans(self, resolver: WorkloadResolver) -> list[SocketEnds]:
        """Return the ends of those whose process has ended."""
        processes = {connection.workload.process for connection in self._connections.values()}
        ended = {process for process in processes if resolver.ended(process)}
        return [ends for ends, connection in self._connections.items() if connection.workload.process in ended]
