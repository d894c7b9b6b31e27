"""Closed connections, kept for a second until it is known whether their process or its listener ended with them.

A stopping process guarantees no order of these closes: Kafka closes connections and listeners from several threads, and
a client process ends some milliseconds after its last connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Self

from kafka_probe.capture.sample import CLOSE_DATA, DATA_AT, Flag, Sample, Samples, sample_of
from kafka_probe.connections.close_reason import JUST_NS, closing_ns, read_close
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.identity import read_open
from kafka_probe.workloads import WorkloadResolver

SETTLED_NS = 1_000_000_000
_NO_RESPONSE_AT = CLOSE_DATA.fields["no_response"][1]  # type: ignore[index]  # it has fields
_ANY = "0.0.0.0", "[::]"  # local addresses of listeners on all addresses
_LISTENERS, _ADDRESSES = 256, 4  # most ports of processes with closed listeners, and addresses of each: 1 MiB


def without_response(closes: Samples) -> Samples:
    """Return those CLOSE samples whose connection's last request is one that has no response."""
    found: Samples = closes[closes["data"][:, _NO_RESPONSE_AT] != 0]
    return found


@dataclass(slots=True)
class PendingClose:
    """A closed connection and its packed CLOSE sample, which takes a tenth of an event's memory.

    owner_ended: whether its process had ended when the close was settled. listener_closed_us: time from the close of
    its listener to the close of the connection; None if the listener was not closed. recorded_frames, evicted: as in
    `close`.
    """

    connection: Connection
    ended_ns: int
    packed: bytes
    owner_ended: bool | None = None
    listener_closed_us: int | None = None
    recorded_frames: int | None = None
    evicted: bool | None = None

    @classmethod
    def of(cls, connection: Connection, sample: Sample) -> Self:
        """Return a close that is not settled."""
        return cls(connection, int(sample["ts_ns"]), sample.tobytes())

    @property
    def refused_request_bytes(self) -> int | None:
        """Return the size of the last request if its broker closed the connection right after it; None otherwise.

        It applies only to a Produce with acks=0, which has no response: a broker closes the connection to refuse it. A
        broker that stops closes it as well. The client's end cannot know that; the server's end does once the close is
        settled.
        """
        if not self.packed[DATA_AT + _NO_RESPONSE_AT]:
            return None
        close, server_side = read_close(self.sample), self.connection.identity.server_side
        by_broker = close["closed_by"] == ("local" if server_side else "peer") and close["how"] in ("fin", "rst_sent")
        stops = server_side and (close["owner_exiting"] or self.owner_ended or self.listener_closed_us is not None)
        just_now = close["idle_us"] is not None and close["idle_us"] < JUST_NS // 1000
        return close["last_request_bytes"] if by_broker and just_now and not stops else None

    @property
    def sample(self) -> Sample:
        return sample_of(self.packed)


class PendingCloses:
    """Closed connections, in the order in which they were closed. Times are ns of CLOCK_MONOTONIC."""

    def __init__(self, resolver: WorkloadResolver) -> None:
        self._resolver = resolver
        self._waiting: deque[PendingClose] = deque()
        self._waiting_conns: set[int] = set()
        self._settled: deque[PendingClose] = deque()
        self.settled_count = self.taken_count = 0  # since the start
        # Times when listening sockets were closed, by network namespace, port and pid, then by address. Any user may
        # listen on the broker's port at an address that the broker leaves free.
        self._listeners: dict[tuple[int, str, int | None], dict[str, int]] = {}

    def connections(self) -> Iterator[Connection]:
        """Yield the closed connections that are kept."""
        return (closed.connection for closed in chain(self._waiting, self._settled))

    def __len__(self) -> int:
        """Return the number of closed connections that are kept."""
        return len(self._waiting) + len(self._settled)

    def note_listener(self, sample: Sample) -> None:
        """Record from a LISTEN sample that a listening socket was opened or closed."""
        identity, owner = read_open(sample)
        address, _, port = identity.local.rpartition(":")
        key = identity.netns, port, owner.pid or None
        closed = self._listeners.pop(key, {})
        if sample["flags"] & Flag.CLOSED:
            closed[address] = int(sample["ts_ns"])
        elif address in _ANY:
            closed.clear()
        else:
            for listened in (address, *_ANY):
                closed.pop(listened, None)
        if len(closed) > _ADDRESSES:
            del closed[next(iter(closed))]
        if closed:
            self._listeners[key] = closed
        if len(self._listeners) > _LISTENERS:
            del self._listeners[next(iter(self._listeners))]

    def add(self, closed: PendingClose) -> None:
        """Keep a closed connection until it is reported.

        The order of the samples may differ by some milliseconds: a CPU can be interrupted after it took the time.
        """
        later = takewhile(lambda one: one.ended_ns > closed.ended_ns, reversed(self._waiting))
        self._waiting.insert(len(self._waiting) - sum(1 for _ in later), closed)
        self._waiting_conns.add(closed.connection.identity.conn)

    def settle(self, until_ns: int) -> list[PendingClose]:
        """Settle the closes up to this time and return them: record whether their process and listener have ended."""
        settled = []
        ended: dict[tuple[int, int] | None, bool | None] = {}  # one check per process, which may have thousands
        while self._waiting and self._waiting[0].ended_ns <= until_ns:
            closed = self._pop_waiting()
            process = closed.connection.workload.process
            if process not in ended:
                ended[process] = self._resolver.ended(process)
            closed.owner_ended = ended[process]
            closed.listener_closed_us = self._listener_closed_us(closed)
            settled.append(closed)
        self._settled += settled
        self.settled_count += len(settled)
        return settled

    def note_frames(self, closed: PendingClose, frames: int, *, evicted: bool) -> None:
        """Add to a settled close how many frames the archive has of its connection."""
        closed.recorded_frames, closed.evicted = frames, evicted

    @property
    def oldest_settled_ns(self) -> int | None:
        """Return the time of the oldest close that is settled and not taken, in ns; None if there is none."""
        return self._settled[0].ended_ns if self._settled else None

    def drop_oldest(self) -> PendingClose | None:
        """Take the oldest close, settled or not; None if there is none."""
        if self._settled:
            self.taken_count += 1
            return self._settled.popleft()
        return self._pop_waiting() if self._waiting else None

    def take(self, settled_count: int) -> Iterator[PendingClose]:
        """Yield the settled closes up to this `settled_count` that are not taken. Each is kept until it is yielded."""
        while self.taken_count < settled_count:
            self.taken_count += 1
            yield self._settled.popleft()

    def awaits(self, conn: int) -> bool:
        """Return True if the connection, by the kernel's id, has a close that is not settled."""
        return conn in self._waiting_conns

    def _pop_waiting(self) -> PendingClose:
        closed = self._waiting.popleft()
        self._waiting_conns.discard(closed.connection.identity.conn)
        return closed

    def _listener_closed_us(self, closed: PendingClose) -> int | None:
        identity, pid = closed.connection.identity, closed.connection.workload.pid
        if not identity.server_side:
            return None
        address, _, port = identity.local.rpartition(":")
        if pid is None:  # the owner is unknown, for example beyond `workload_limit`: any process's listener counts
            listeners = [of for (netns, at, _), of in self._listeners.items() if (netns, at) == (identity.netns, port)]
        else:
            listeners = [self._listeners.get((identity.netns, port, pid), {})]
        closed_ns = [of[listened] for of in listeners for listened in (address, *_ANY) if listened in of]
        return max(closing_ns(closed.sample) - max(closed_ns), 0) // 1000 if closed_ns else None
