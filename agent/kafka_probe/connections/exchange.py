"""Pairs requests with their responses, for `request` events.

Without `--requests` it pairs only requests that change the cluster or the members of a group, see `pair_all`. Anybody
can send these, so both have a limit.

Kafka answers the requests of a connection in order. The kernel has matched each response to its request, so the
correlation id finds the request here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from kafka_probe.capture.sample import NO_API
from kafka_probe.connections import request_events
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.frame_reader import Frames
from kafka_probe.connections.request_events import Exchange, Frame, RequestEvents
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import RequestEvent, WallClock
from kafka_probe.memory import DEFAULT
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.administration import ADMINISTRATION
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Facts, shape_bytes
from kafka_probe.protocol.membership import GROUP_CHANGES, HEARTBEATS, changes_member, joins_or_leaves

LOSSES = {
    "request_limit": "`request` events without their response, because requests in flight exceed `--memory-limit`",
    **request_events.LOSSES,
    "administration_limit": "requests that changed the cluster and have no event, because all peers, or one peer, sent "
    "too many in an interval: look for a client that sends very many",
    "membership_limit": "requests that may have changed the members of a group and have no event, because all peers, "
    "or one peer, sent too many in an interval: look for a client that joins again and again",
}
MOST_ADMINISTRATION = 4096  # entries of requests of administration in an interval
MOST_MEMBERSHIP = 8192  # requests that change the members of groups in an interval
EVENT_ENTRIES = 4  # memory of an event without topics, in entries
# Entries as which a request counts at most: the share of a peer, so that one that names very many is paired, too.
MOST_REQUEST_ENTRIES = MOST_ADMINISTRATION // 8
_WAITING_BYTES = 512  # memory of a waiting request besides its shape
_CHOSEN = ADMINISTRATION | GROUP_CHANGES
_MAY_BE_CHOSEN = _CHOSEN | {NO_API}  # responses whose API is not known belong to any request


@dataclass(slots=True)
class _Limit:
    """The entries that peers use in an interval, at most `most`."""

    most: int
    used: int = 0
    shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self.shares = Shares(self.most)

    def take(self, peer: str, entries: int) -> bool:
        """Return True and count the entries, unless all peers, or this one, have used too many."""
        used = self.used + entries
        fits = used <= self.most and self.shares.take(peer, entries, used)
        self.used += entries * fits
        return fits


class Exchanges:
    """Pairs requests with responses. Only requests in flight wait: a response also ends the requests before it.

    Beyond `limit_bytes` the requests of the connection that has had waiting requests for the longest time end without
    a response. internal: pair kafka-probe's own requests as well; those of administration are paired in any case.
    """

    def __init__(
        self,
        tracker: Tracker,
        names: TopicNames,
        limit_bytes: int = DEFAULT.exchanges_bytes,
        *,
        internal: bool = False,
    ) -> None:
        self._internal = internal
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self.pairs_all = True
        self._paired: list[Exchange] = []
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self.begin_interval()
        self._tracker = tracker
        self._events = RequestEvents(names, self.losses)
        self._waiting: dict[int, dict[int, Frame]] = {}
        self._joining_or_leaving: set[int] = set()  # those of them with a heartbeat that joins or leaves

    def pair_all(self, *, pair_all: bool) -> None:
        """Pair all requests, or only those that change the cluster or a group, within their limits per interval."""
        self.pairs_all = pair_all
        if not pair_all:
            for conn, waiting in [*self._waiting.items()]:
                for correlation_id, request in [*waiting.items()]:
                    if not _is_chosen(request.shape.facts):
                        self._take_out(conn, correlation_id)

    def begin_interval(self) -> None:
        """Begin an interval of the limits for requests that change the cluster or a group."""
        self._administration, self._membership = _Limit(MOST_ADMINISTRATION), _Limit(MOST_MEMBERSHIP)

    def chosen(self, batch: list[Frames]) -> list[Frames]:
        """Return the frames of a batch that may be of exchanges to pair: all, or those of possible changes."""
        if self.pairs_all:
            return batch
        chosen, answers, joining = list[Frames](), list[Frames](), self._joining_or_leaving.copy()
        for frames in batch:
            facts = frames.shape.facts
            if facts.api_key in _MAY_BE_CHOSEN:
                chosen.append(frames)
            elif facts.api_key in HEARTBEATS:
                if joins_or_leaves(facts):
                    joining.update(frames.column("conn").tolist())
                    chosen.append(frames)
                elif facts.response:
                    (chosen if changes_member(facts) else answers).append(frames)
        return [*chosen, *_of_connections(answers, joining)] if joining else chosen

    def pair(self, batch: list[Frames]) -> None:
        """Pair a batch of frames, in the order of the frames. `take_events` returns what it completes."""
        frames = [
            (
                sample,
                Frame(part.shape, int(sample["ts_ns"]), int(sample["frame_bytes"]), int(sample["latency_us"]), row),
            )
            for part in batch
            for sample, row in zip(part.batch[part.index], part.values.tolist(), strict=True)
        ]
        # A response comes after its request, also if both have the same time.
        frames.sort(key=lambda pair: (pair[1].ts_ns, pair[1].shape.facts.response))
        for sample, frame in frames:
            connection = self._tracker.get(int(sample["conn"]))
            if connection and (
                self._internal or not connection.internal or frame.shape.facts.api_key in ADMINISTRATION
            ):
                self._paired.extend(self._take(connection, int(sample["correlation_id"]), frame))

    def take_events(self, clock: WallClock) -> Iterator[RequestEvent]:
        """Return an event for each exchange that is complete and was not returned before; each is made when reached."""
        paired, self._paired = self._paired, []
        return (self._events.event(exchange, clock, brief=not self.pairs_all) for exchange in paired)

    def forget_connection(self, connection: Connection) -> None:
        """Complete the requests of a connection that ended without their responses."""
        for correlation_id, request in self._forget(connection.identity.conn).items():
            self._paired.append(Exchange(connection, correlation_id, request, None))

    def finish(self) -> None:
        """Complete the unanswered requests that change the cluster or a group when the agent ends."""
        self.pair_all(pair_all=False)
        for conn in [*self._waiting]:
            if connection := self._tracker.get(conn):
                self.forget_connection(connection)

    def _take(self, connection: Connection, correlation_id: int, frame: Frame) -> Iterator[Exchange]:
        """Yield the exchanges that a frame completes.

        Few heartbeats change anything. If only the response to one shows a change, it is yielded without its request.
        """
        facts = frame.shape.facts
        conn = connection.identity.conn
        waiting = self._waiting.get(conn, {})
        if facts.response:
            if correlation_id in waiting:
                # Earlier requests that still wait have lost their responses.
                for passed in list(takewhile(lambda asked: asked != correlation_id, waiting)):
                    yield Exchange(connection, passed, self._take_out(conn, passed), None)
                yield Exchange(connection, correlation_id, self._take_out(conn, correlation_id), frame)
            elif facts.api_key in HEARTBEATS and changes_member(facts) and self._admits(connection, facts):
                yield Exchange(connection, correlation_id, None, frame)
        elif facts.api_key == ApiKey.PRODUCE and facts.acks == 0:
            yield Exchange(connection, correlation_id, frame, None)
        else:
            if correlation_id in waiting:  # a client may use an id again, and only one can have the response
                yield Exchange(connection, correlation_id, self._take_out(conn, correlation_id), None)
            if self._admits(connection, facts):
                self._waiting.setdefault(conn, {})[correlation_id] = frame
                if joins_or_leaves(facts):
                    self._joining_or_leaving.add(conn)
                self._held_bytes += _size(frame)
            while self._held_bytes > self._limit_bytes:
                yield from self._evict(next(iter(self._waiting)))

    def _admits(self, connection: Connection, facts: Facts) -> bool:
        """Return True if a request is paired; count one that exceeds the limit or the share of its peer."""
        if self.pairs_all:
            return True
        peer = connection.sharing_peer
        if facts.api_key not in ADMINISTRATION:
            fits = self._membership.take(peer, 1)
            self.losses["membership_limit"] += not fits
            return fits
        named = sum(max(len(topic.partitions), 1) for topic in facts.topics)
        fits = self._administration.take(peer, min(EVENT_ENTRIES + named, MOST_REQUEST_ENTRIES))
        self.losses["administration_limit"] += not fits
        return fits

    def _evict(self, conn: int) -> Iterator[Exchange]:
        connection = self._tracker.get(conn)
        for correlation_id, request in self._forget(conn).items():
            self.losses["request_limit"] += 1
            if connection:
                yield Exchange(connection, correlation_id, request, None)

    def _take_out(self, conn: int, correlation_id: int) -> Frame:
        request = self._waiting[conn].pop(correlation_id)
        self._held_bytes -= _size(request)
        if not self._waiting[conn]:
            del self._waiting[conn]
            self._joining_or_leaving.discard(conn)
        return request

    def _forget(self, conn: int) -> dict[int, Frame]:
        waiting = self._waiting.pop(conn, {})
        self._joining_or_leaving.discard(conn)
        self._held_bytes -= sum(map(_size, waiting.values()))
        return waiting


def _size(frame: Frame) -> int:
    return _WAITING_BYTES + shape_bytes(frame.shape)


def _is_chosen(facts: Facts) -> bool:
    """Return True if a request is paired without `--requests`, whatever its response is."""
    return facts.api_key in _CHOSEN or joins_or_leaves(facts)


def _of_connections(batch: list[Frames], conns: Collection[int]) -> Iterator[Frames]:
    """Yield those frames of a batch that are of some connections, by the kernel's ids."""
    if not batch:
        return
    # Frames of each member have a shape of their own, so that a search per shape would take long.
    ids = np.concatenate([frames.column("conn") for frames in batch])
    wanted = np.isin(ids, np.fromiter(conns, np.uint64, len(conns)))
    starts = np.cumsum([0, *(len(frames.index) for frames in batch)]).tolist()
    for frames, start, end in zip(batch, starts, starts[1:], strict=False):
        if (rows := wanted[start:end]).any():
            yield replace(frames, index=frames.index[rows], values=frames.values[rows])
