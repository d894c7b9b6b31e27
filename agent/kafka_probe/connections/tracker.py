"""The open connections with the facts from their samples, and the events of opens, closes and resets.

A connection is added by its first sample or from the list at the start, and deleted once no sample can follow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from kafka_probe.capture.sample import OPEN_DATA, Protocol, Sample, SampleKind, Samples, sample_of
from kafka_probe.connections import conntrack
from kafka_probe.connections.activity import ACTIVITY_BYTES, ACTIVITY_LIMIT, UNCOUNTED, ConnectionActivity
from kafka_probe.connections.clients import OF_CONSUMERS, Clients
from kafka_probe.connections.close_reason import read_close
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.fetch_sessions import NamedFrames, Naming, Topic
from kafka_probe.connections.identity import Identity, read_keepalive_s, read_open
from kafka_probe.connections.lifecycle_events import close_event, open_event, reset_event
from kafka_probe.connections.listed import ListedConnections, ends_of
from kafka_probe.connections.open_counts import OpenCounts
from kafka_probe.connections.pending_closes import PendingClose, PendingCloses, without_response
from kafka_probe.connections.repeats import Repeats, SocketEnds
from kafka_probe.connections.silences import HeadsOf, Silences, no_heads
from kafka_probe.events import (
    CloseEvent,
    FlowEvent,
    Nat,
    OpenCountFacts,
    OpenEvent,
    RepeatedFacts,
    ResetEvent,
    WallClock,
)
from kafka_probe.memory import DEFAULT, Bounds
from kafka_probe.peer_limits import SharedBudget, peer_of
from kafka_probe.protocol.facts import Facts
from kafka_probe.time_limit import NO_LIMIT, ReportPart, TimeLimit
from kafka_probe.workloads import NOBODY, Owner, Workload, WorkloadResolver

LOSSES = {
    **conntrack.LOSSES,
    "connection_unknown": "frames and closes of connections whose first sample was lost: see ring_full",
    "open_incomplete": "first samples of connections, and changes of their owner, that arrived half written: the "
    "connection has no `open` event, or its events keep the owner before",
    "close_unknown": "closed connections without a known reason, because the sample was lost: see ring_full",
    "connection_limit": "connections that exceed `--memory-limit`; their frames count as `connection_unknown`",
    "open_limit": "opened connections without an event, beyond `--memory-limit`: counted in `other` of `agent`",
    "close_limit": "closed connections without an event, beyond `--memory-limit`: counted in `other` of `agent`; "
    "records that brokers refused by these closes count as written",
    "reset_limit": "resets without an event, beyond `--memory-limit`: counted in `other` of `agent`",
    "text_limit": "client ids, software, cluster ids and groups of connections that exceed `--memory-limit`: null",
    "partition_limit": "partitions of fetch sessions that exceed `--memory-limit`: requests do not count for them",
    ACTIVITY_LIMIT: "sums of connections that exceed `--memory-limit`: `close` lacks them or the group, "
    "or topics have no name",
}

LEAST_CLOSES = 1000
"""Closes that a report sends at least, however late it is."""
_RESETS_PER_SLOT = 4  # resets that take the memory of one closed connection


class Tracker:
    """Holds the connections by the kernel's id. `losses` counts by the names of LOSSES.

    nat: source of this host's NAT translations of new connections; None: they are not queried. open_interval_s: time in
    which `repeat` reports each open connection once.
    """

    def __init__(
        self,
        resolver: WorkloadResolver,
        nat: Conntrack | None = None,
        bounds: Bounds = DEFAULT,
        open_interval_s: float = 3600.0,
    ) -> None:
        self._bounds = bounds
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self.budget = SharedBudget(bounds.learned_bytes, self.losses)
        self.activity_budget = SharedBudget(bounds.activity_bytes, self.losses)
        self._resolver = resolver
        self._nat = nat
        self._clients = Clients(self.budget)
        self._connections: dict[int, Connection] = {}
        self._listed = ListedConnections(bounds.connections)
        self._unreported: dict[int, Connection] = {}  # by `conn_id`
        self._lost_unreported: deque[Connection] = deque()  # those whose close was lost
        self._resets: deque[bytes] = deque()  # their samples
        self._repeats = Repeats(open_interval_s)
        self._pending_closes = PendingCloses(resolver)
        self._other: Counter[str] = Counter()
        self._open = 0
        self._open_counts = OpenCounts(bounds.open_counts)

    def __len__(self) -> int:
        """Return the number of open connections."""
        return self._open

    def get(self, conn: int) -> Connection | None:
        return self._connections.get(conn)

    def of_frames(self, conn: int, frames: int) -> Connection | None:
        """Return the connection of frames; count the frames if it is unknown."""
        connection = self._connections.get(conn)
        if connection is None:
            self.losses["connection_unknown"] += frames
        return connection

    def snapshot(self) -> tuple[Connection, ...]:
        """Return the open connections, internal ones too. Other threads may call it: the GIL makes dict copies atomic.

        A listed connection whose first sample arrives between the two copies is returned twice or not at all.
        """
        known = *self._listed.all(), *tuple(self._connections.values())
        return tuple(connection for connection in known if not connection.closed)

    def both_ends_here(self) -> set[str]:
        """Return the flow ids of connections of which both ends are on this host, with closed ones not yet reported."""
        sides: dict[bool, set[str]] = {True: set(), False: set()}
        for connection in chain(self._connections.values(), self._pending_closes.connections()):
            if connection.identity.flow_id:
                sides[connection.identity.server_side].add(connection.identity.flow_id)
        return sides[True] & sides[False]

    def learn(self, connection: Connection, facts: Facts) -> None:
        """Keep the facts that a frame contains about its connection and its client."""
        internal = connection.internal
        connection.learn(facts)
        if connection.internal != internal:
            self._count(connection)
        if not facts.response and facts.api_key in OF_CONSUMERS:
            connection.client = self._clients.learn(connection.client_key, facts, connection.sharing_peer)

    def fetch(self, connection: Connection, facts: Facts) -> Naming | None:
        """Return the naming of a frame for its fetch session; None without a session or memory for a new one."""
        return connection.fetch(facts)

    def see_fetches(self, connection: Connection, api_key: int, frames: list[NamedFrames]) -> None:
        """Apply the frames of one batch to the connection's fetch session of this API."""
        for session in connection.sessions:
            if session.api_key == api_key:
                session.see(frames)

    def take_fetches(self, connection: Connection) -> list[tuple[int, int, dict[Topic, int]]]:
        """Return the requests by fetch sessions since the last call: API key, newest API version, number by topic."""
        return [(session.api_key, *session.take()) for session in connection.sessions]

    def forget_sessions(self, connection: Connection) -> None:
        """Empty the connection's fetch sessions; they start again with the next frame that names partitions."""
        for session in connection.sessions:
            session.forget()

    def add_flow(self, connection: Connection, flow: FlowEvent) -> None:
        """Add a `flow` event of the connection to its activity."""
        if connection.activity is None:
            peer = connection.sharing_peer
            fits = self.activity_budget.take(peer, ACTIVITY_BYTES, ACTIVITY_LIMIT)
            connection.activity = ConnectionActivity(self.activity_budget, peer) if fits else UNCOUNTED
        connection.activity.add(flow)

    def take(self, sample: Sample) -> None:
        """Process a sample of kind OPEN, OWNER, REJECT, LISTEN or RESET; count half-written ones, ignore others."""
        match int(sample["kind"]):
            case SampleKind.OPEN | SampleKind.OWNER if sample["size"] == OPEN_DATA.itemsize:
                self._take_owner(sample)
            case SampleKind.OPEN | SampleKind.OWNER | 0:  # the kernel writes the size last
                self.losses["open_incomplete"] += 1
            case SampleKind.REJECT:
                connection = self._connections.get(int(sample["conn"]))
                if connection:
                    connection.opaque = "tls" if sample["api_key"] == Protocol.TLS else "unknown"
            case SampleKind.LISTEN:
                self._pending_closes.note_listener(sample)
            case SampleKind.RESET:
                if len(self._resets) < self._bounds.closes * _RESETS_PER_SLOT // 2 and self._has_slot_for_close():
                    self._resets.append(sample.tobytes())
                else:
                    self._leave_out("reset_limit", "reset")

    def add_listed(self, listed: Iterable[tuple[Identity, Owner] | None], now_ns: int) -> None:
        """Add all or some of the listed connections that were open when capture began.

        None: a connection that did not fit into the list.
        """
        for one in listed:
            if one is None:
                self.losses["connection_limit"] += 1
                continue
            identity, owner = one
            if not self._listed.had_sample(ends_of(identity)) and self._has_slot_for_connection():
                added = self._add(identity, self._workload(identity, owner), now_ns)
                self._listed.add(added)
                self._unreported[added.conn_id] = added

    def end_list(self) -> None:
        """Note that all parts of the list were added, or that there is no list."""
        self._listed.end_list()

    def refusing(self, closes: Samples) -> dict[int, int]:
        """Return the connections that brokers may have closed to refuse a request: the kernel's ids and times in ns.

        closes: CLOSE samples; those that `close` has processed are left out.
        """
        ends = ((self._connections.get(int(sample["conn"])), sample) for sample in without_response(closes))
        pending = [
            PendingClose.of(connection, sample) for connection, sample in ends if connection and not connection.closed
        ]
        return {
            each.connection.identity.conn: each.ended_ns for each in pending if each.refused_request_bytes is not None
        }

    def close(self, sample: Sample) -> None:
        """Process a CLOSE sample: the connection has ended, and its owner may only read data received before."""
        connection = self._connections.get(int(sample["conn"]))
        if connection is None or connection.closed:
            self.losses["connection_unknown"] += 1
            return
        self._end(connection)
        if self._has_slot_for_close():
            self._pending_closes.add(PendingClose.of(connection, sample))
        else:
            self._leave_out_close(connection, sample)

    def gone(self, conn: int) -> Connection | None:
        """Delete a connection of which no sample can follow; return it if it was known."""
        connection = self._connections.pop(conn, None)
        if connection:
            if not connection.closed:
                self._lose(connection)
            self.forget_sessions(connection)
        return connection

    def known(self) -> set[int]:
        """Return the kernel's ids of the connections that had samples and are not gone."""
        return set(self._connections)

    def orphans(self) -> list[SocketEnds]:
        """Return the connections without a sample whose process has ended."""
        return self._listed.orphans(self._resolver)

    def forget_listed(self, orphans: Iterable[SocketEnds]) -> None:
        """Delete the orphans that still have no sample, and count their closes as unknown."""
        for ends in orphans:
            connection = self._listed.pop(ends)
            if connection:
                self._lose(connection)

    def open_now(self) -> list[OpenCountFacts]:
        """Return the open connections, counted by owner and peer network: `open` of the `agent` event."""
        return self._open_counts.report()

    def settle(self, until_ns: int) -> list[PendingClose]:
        """Move closes that are final by then to the next report, see pending_closes.py. Return them.

        Call it every second.
        """
        return self._pending_closes.settle(until_ns)

    def note_frames(self, closed: PendingClose, frames: int, *, evicted: bool) -> None:
        """Add to a settled close how many frames the archive has of its connection."""
        self._pending_closes.note_frames(closed, frames, evicted=evicted)

    def awaits_close(self, conn: int) -> bool:
        """Return True if a connection, by the kernel's id, is open or its close is not settled."""
        return conn in self._connections or self._pending_closes.awaits(conn)

    def report_opens(self, clock: WallClock, limit: TimeLimit = NO_LIMIT) -> Iterator[OpenEvent | ResetEvent]:
        """Yield the events of the resets and opens that are not reported yet, within the limit.

        The limit begins after the queries for NAT, which are bounded by their number.
        """
        opened = deque(self._unreported.values())
        nats = iter(self._translations(opened))
        for _ in range(len(self._resets)):
            if limit.is_over(ReportPart.RESETS):
                break
            yield reset_event(sample_of(self._resets.popleft()), clock)
        while opened and not limit.is_over(ReportPart.OPENS):
            connection, nat = opened.popleft(), next(nats)
            if self._unreported.pop(connection.conn_id, None):
                yield open_event(connection, nat, clock)
        while self._lost_unreported and not limit.is_over(ReportPart.OPENS):
            yield open_event(self._lost_unreported.popleft(), None, clock)
        self._unreported = dict(self._unreported)  # without the memory of those that were removed

    def report_closes(self, clock: WallClock, limit: TimeLimit = NO_LIMIT) -> Iterator[OpenEvent | CloseEvent]:
        """Return an iterator over the events of the closes that are settled by now, within the limit.

        If the open of a closed connection is not reported yet, its event comes before the close.
        """
        return self._closes(self._pending_closes.settled_count, clock, limit)

    def _closes(self, settled_count: int, clock: WallClock, limit: TimeLimit) -> Iterator[OpenEvent | CloseEvent]:
        closes, sent = self._pending_closes.take(settled_count), 0
        while (sent < LEAST_CLOSES or not limit.is_over(ReportPart.CLOSES)) and (closed := next(closes, None)):
            if self._unreported.pop(closed.connection.conn_id, None):
                yield open_event(closed.connection, None, clock)
            yield close_event(closed, clock)
            sent += 1

    def sent_until(self, settled_ns: int) -> int:
        """Return the time in ns before which all closes and resets were sent.

        settled_ns: time up to which closes were settled.
        """
        left = [int(sample_of(self._resets[0])["ts_ns"])] if self._resets else []
        if (oldest_ns := self._pending_closes.oldest_settled_ns) is not None:
            left.append(oldest_ns)
        return min((settled_ns, *(ns - 1000 for ns in left)))  # events have microseconds

    def repeat(self, open_ns: int, clock: WallClock, heads_of: HeadsOf = no_heads) -> Iterator[OpenEvent]:
        """Return an iterator over the `open` events that are due for repetition at `open_ns`.

        open_ns: time up to which closes are known; heads_of: returns what the kernel keeps of connections, see
        Programs. The iterator keeps no connection: one that closes before the iterator reaches it has no such event.
        """
        ids, listed = self._repeats.due(reversed(self._connections), self._listed.ends(), open_ns)
        due = chain(map(self._connections.get, ids), map(self._listed.get, listed))
        silences = Silences(heads_of(ids))

        def again(connection: Connection) -> RepeatedFacts:
            sums, silence = connection.activity_facts(), silences.facts(connection, open_ns)
            return {"still_open_ts": clock.epoch_us(open_ns), **sums, **silence}

        return (open_event(one, None, clock, again(one)) for one in due if one and not one.closed)

    def other(self) -> dict[str, int]:
        """Return and reset the counts of opens, closes and resets without an event of their own: `other` of `agent`."""
        other, self._other = dict(self._other), Counter()
        return other

    @property
    def full(self) -> bool:
        """Return True if the bounds allow no further connection."""
        return len(self._connections) + len(self._listed) >= self._bounds.connections

    @property
    def free(self) -> int:
        """Return how many more connections the bounds allow; below 0 if ended ones use the memory of `ends`."""
        kept = len(self._connections) + len(self._listed) + len(self._pending_closes) + len(self._lost_unreported)
        return self._bounds.connections - kept - -(-len(self._resets) // _RESETS_PER_SLOT)

    def _has_slot_for_connection(self) -> bool:
        """Return True if the bounds allow one more connection.

        The connection takes the slot of the oldest one whose close was lost, else that of the oldest close, as a loss.
        """
        if self.full:
            self.losses["connection_limit"] += 1
            return False
        if self._has_slot_for_close():
            return True
        if self._lost_unreported:
            self._leave_out_open(self._lost_unreported.popleft())
        elif closed := self._pending_closes.drop_oldest():
            self._leave_out_close(closed.connection, closed.sample)
        return True

    def _has_slot_for_close(self) -> bool:
        """Return True if one more close or reset can wait for the report. They may use what connections leave free."""
        return self.free + self._bounds.closes > 0

    def _leave_out(self, loss: str, kind: str) -> None:
        """Count an open, close or reset instead of an event."""
        self.losses[loss] += 1
        self._other[kind] += 1

    def _leave_out_close(self, connection: Connection, sample: Sample) -> None:
        facts = read_close(sample, tls=connection.opaque == "tls")
        self._leave_out("close_limit", f"close/{connection.side}/{facts['how']}/{facts['closed_by']}")
        if self._unreported.pop(connection.conn_id, None):
            self._leave_out_open(connection)

    def _leave_out_open(self, connection: Connection) -> None:
        self._leave_out("open_limit", f"open/{connection.side}")

    def _translations(self, opened: Collection[Connection]) -> list[Nat | None]:
        if self._nat is None:
            return [None] * len(opened)
        translations = self._nat.translations([connection.identity for connection in opened])
        self.losses["nat_not_asked"] = self._nat.not_asked
        return translations

    def _take_owner(self, sample: Sample) -> None:
        identity, owner = read_open(sample)
        workload = self._workload(identity, owner)
        known = self._connections.get(identity.conn)
        if known:
            known.workload, known.keepalive_s = workload, read_keepalive_s(sample)
            self._count(known)
            return
        ends = ends_of(identity)
        self._listed.note_sample(ends)
        connection = self._listed.pop(ends)
        if connection:
            connection.identity = identity
            connection.workload = connection.workload if workload is NOBODY else workload
            self._count(connection)
        elif self._has_slot_for_connection():
            connection = self._add(identity, workload, int(sample["ts_ns"]))
        else:
            return
        connection.keepalive_s = read_keepalive_s(sample)
        self._connections[identity.conn] = connection
        self._unreported[connection.conn_id] = connection

    def _workload(self, identity: Identity, owner: Owner) -> Workload:
        return self._resolver.resolve(owner, peer_of(identity.side, identity.peer, owner.pid))

    def _add(self, identity: Identity, workload: Workload, opened_ns: int) -> Connection:
        self._open += 1
        connection = Connection(identity, workload, opened_ns, identity.conn, self.budget)
        self._count(connection)
        return connection

    def _lose(self, connection: Connection) -> None:
        self._end(connection)
        self.losses["close_unknown"] += 1
        if self._unreported.pop(connection.conn_id, None) is None:
            return
        if self._has_slot_for_close():
            self._lost_unreported.append(connection)
        else:
            self._leave_out_open(connection)

    def _end(self, connection: Connection) -> None:
        self._open -= 1
        connection.closed = True
        self._count(connection)

    def _count(self, connection: Connection) -> None:
        """Count a connection anew. Call this after each change of its owner, identity or state."""
        if connection.counted:
            self._open_counts.remove(connection.counted)
        counts = not (connection.closed or connection.internal)
        connection.counted = self._open_counts.add(connection.identity, connection.workload) if counts else None
