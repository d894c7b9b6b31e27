"""Keeps the newest end of each partition and the newest position of each group, and makes `offsets` events of changes.

A changed offset is sent at most once per `CHANGED_PAUSE_NS`; one that changes earlier is sent when that time is over.
An unchanged offset is sent again each hour, until it was not seen for a day: readers need only the last hours, also of
a group that is stopped. If several connections show a partition, the newest offset counts. An offset that was not seen
has no row.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.frames_by_connection import FramesByConnection
from kafka_probe.connections.offset_exchanges import OFFSET_LIMIT, IsCounted, OffsetExchanges
from kafka_probe.connections.offset_facts import Exchanged, FoundOffset, found_offsets
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.events import GroupPosition, OffsetsEvent, PartitionEnd, WallClock
from kafka_probe.memory import DEFAULT
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import text_bytes

LOSSES = {
    OFFSET_LIMIT: "offsets, and unanswered requests for offsets, that were dropped because of `--memory-limit` or the "
    "share of a peer; and offsets that are sent an interval later, because more than 10,000, or too many of one peer, "
    "were due",
}
MOST_ROWS = 10_000
"""Most ends and positions that are sent in an interval."""
SEEN_LATELY_NS = 600_000_000_000
CHANGED_PAUSE_NS, UNCHANGED_PAUSE_NS, KEPT_NS = 30_000_000_000, 3_600_000_000_000, 24 * 3_600_000_000_000
ROWS_PER_EVENT, CHARACTERS = 1000, 1 << 17  # most rows of an event, and most characters of their names
_NAME_CLUSTER = frozenset({ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER})
_BROKERS = 1024  # most addresses of brokers whose cluster id is remembered
_SUBJECT_BYTES, _OFFSET_BYTES = 768, 288  # memory of a topic or of a group's topic besides its texts, of each partition


class _Subject(NamedTuple):
    """A topic, or the topic of a group.

    group: the group whose positions they are, None: they are ends; broker: set if the cluster id is not known, since
    topics of two clusters may have one name.
    """

    group: str | None
    cluster_id: str | None
    broker: str | None
    topic: str | None
    topic_id: str | None

    @property
    def place(self) -> tuple[str, str]:
        """Return the cluster, or the broker if that is not known, and the topic, or its id."""
        return self.cluster_id or self.broker or "", self.topic or self.topic_id or ""

    @property
    def held_bytes(self) -> int:
        """Return its memory in bytes without its partitions."""
        return _SUBJECT_BYTES + sum(text_bytes(text) for text in self if text)


@dataclass(slots=True)
class _Offset:
    """The newest offset of a partition. Times are of CLOCK_MONOTONIC.

    peer: the one that showed it first, whose share it uses; sent: the offset sent last, -1 before.
    """

    peer: str
    value: int
    source: str
    seen_ns: int
    sent: int = -1
    sent_ns: int = 0


class GroupLag(NamedTuple):
    """The lag of a group in a topic, in records. cluster: id of the cluster, or the broker's address.

    total, most: sum and maximum over those partitions of which the agent knows end and position.
    """

    cluster: str
    group: str
    topic: str
    partitions: int
    total: int
    most: int

    def plus(self, other: GroupLag) -> GroupLag:
        """Return both as one."""
        return self._replace(
            partitions=self.partitions + other.partitions,
            total=self.total + other.total,
            most=max(self.most, other.most),
        )


class _DueOffset(NamedTuple):
    subject: _Subject
    partition: int
    offset: int
    source: str
    seen_ns: int


class Offsets:
    """The newest offsets, in half of `limit_bytes`, which peers share. `losses` counts by the names of LOSSES."""

    def __init__(self, names: TopicNames, limit_bytes: int = DEFAULT.offsets_bytes) -> None:
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._names = names
        self.exchanges = OffsetExchanges(limit_bytes // 2, self.losses)
        self._limit_bytes = limit_bytes // 2
        self.held_bytes = 0
        self._gone_bytes = 0
        self._shares = Shares(self._limit_bytes)
        # Cluster ids by network namespace and address of a broker, the most recently seen last.
        self._clusters: dict[tuple[int, str], str] = {}
        self._offsets: OrderedDict[_Subject, dict[int, _Offset]] = OrderedDict()  # the most recently seen last

    def see(self, batch: Sequence[FramesByConnection], counts: IsCounted) -> None:
        """Keep the newest frames of a batch that contain offsets."""
        for grouped in batch:
            self._learn_cluster(grouped)
        self.exchanges.see(batch, counts)
        if self.exchanges.full:
            self._take_over(self.exchanges.take())

    def forget(self, conn: int) -> None:
        """Drop the requests of a connection that has ended, by the kernel's id."""
        self.exchanges.forget(conn)

    def report(self, now_ns: int, until_us: int, clock: WallClock) -> Iterator[OffsetsEvent]:
        """End the interval, and return an iterator that makes its events.

        now_ns: the end of the interval, CLOCK_MONOTONIC; until_us: the same in µs since epoch.
        """
        self._take_over(self.exchanges.take(now_ns))
        self._forget_unseen(now_ns)
        return _events(self._due(now_ns), until_us, clock)

    def lags(self, now_ns: int, since_ns: int) -> list[GroupLag]:
        """Return how far groups are behind, by topic, if a response since a time showed one of the offsets.

        Only partitions count of which end and position were seen in the last ten minutes: a partition that moved to
        another consumer, leader or coordinator is seen elsewhere from then on. A position beyond an older end shows
        that the end is seen elsewhere.
        """
        newest: dict[tuple[str | None, str, str], dict[int, _Offset]] = {}
        for subject, partitions in self._offsets.items():  # a topic may be known with and without its id
            found = newest.setdefault((subject.group, *subject.place), {})
            for partition, offset in partitions.items():
                is_newest = partition not in found or offset.seen_ns > found[partition].seen_ns
                if is_newest and now_ns - offset.seen_ns < SEEN_LATELY_NS:
                    found[partition] = offset
        rows = []
        for (group, *place), positions in newest.items():
            ends = newest.get((None, place[0], place[1]), {})
            known = [
                (position, end)
                for partition, position in positions.items()
                if (end := ends.get(partition)) and (position.value <= end.value or position.seen_ns <= end.seen_ns)
            ]
            if group is not None and any(offset.seen_ns >= since_ns for pair in known for offset in pair):
                lags = [max(0, end.value - position.value) for position, end in known]
                rows.append(GroupLag(place[0], group, place[1], len(lags), sum(lags), max(lags)))
        return rows

    def _take_over(self, exchanges: list[Exchanged]) -> None:
        for exchanged in exchanges:
            connection, seen_ns = exchanged.response.connection, exchanged.response.ts_ns
            subjects: dict[int, _Subject] = {}  # by the topic's identity
            for found in found_offsets(exchanged):
                subject = subjects.get(id(found.topic))
                if subject is None:
                    cluster = self._cluster(connection)
                    named = self._names.resolve(found.topic, cluster[0])
                    subject = subjects[id(found.topic)] = _Subject(found.group, *cluster, *named)
                self._add(subject, found, seen_ns, connection)

    def _learn_cluster(self, grouped: FramesByConnection) -> None:
        """Remember the cluster ids of brokers that respond with one. Any client can send a request with a false one."""
        facts = grouped.frames.shape.facts
        if facts.api_key in _NAME_CLUSTER and facts.response and (cluster_id := facts.cluster_id):
            for _, connection, _, _ in grouped.runs:
                if connection:
                    end = connection.identity.netns, _broker(connection)
                    self._clusters.pop(end, None)
                    self._clusters[end] = cluster_id
                    if len(self._clusters) > _BROKERS:
                        del self._clusters[next(iter(self._clusters))]

    def _cluster(self, connection: Connection) -> tuple[str | None, str | None]:
        """Return the cluster id of a connection, or if it is not known the address of the broker's end.

        Connections to a coordinator seldom show the id, but others from the same network to the same broker do.
        """
        broker = _broker(connection)
        cluster_id = self._clusters.get((connection.identity.netns, broker))
        return cluster_id, None if cluster_id else broker

    def _add(self, subject: _Subject, found: FoundOffset, seen_ns: int, connection: Connection) -> None:
        partitions = self._offsets.get(subject)
        known = partitions.get(found.partition) if partitions else None
        if known:
            self._offsets.move_to_end(subject)
            if (seen_ns, found.offset) >= (known.seen_ns, known.value):
                known.value, known.source, known.seen_ns = found.offset, found.source, seen_ns
            return
        peer = intern(connection.sharing_peer)
        size = _OFFSET_BYTES + (0 if partitions else subject.held_bytes)
        if not self._shares.take(peer, size, self.held_bytes, self._gone_bytes):
            self.losses[OFFSET_LIMIT] += 1
            return
        self._offsets.setdefault(subject, {})[found.partition] = _Offset(peer, found.offset, found.source, seen_ns)
        self._offsets.move_to_end(subject)
        self.held_bytes += size
        while self.held_bytes > self._limit_bytes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        subject, partitions = self._offsets.popitem(last=False)
        size = subject.held_bytes + _OFFSET_BYTES * len(partitions)
        self.held_bytes -= size
        self._gone_bytes += size
        self.losses[OFFSET_LIMIT] += sum(offset.value != offset.sent for offset in partitions.values())

    def _forget_unseen(self, now_ns: int) -> None:
        """Forget the topics and groups that were not seen for a day: they may be deleted."""
        while self._offsets:
            oldest = next(iter(self._offsets.values()))
            if any(now_ns - offset.seen_ns < KEPT_NS for offset in oldest.values()):
                return
            self._forget_oldest()

    def _due(self, now_ns: int) -> list[_DueOffset]:
        """Return the offsets to send now, at most MOST_ROWS; count those that are left for the next interval.

        An offset that was sent is not due again for `CHANGED_PAUSE_NS`, so that the others have their turn.
        """
        rows: list[_DueOffset] = []
        shares = Shares(MOST_ROWS)
        for subject, partitions in self._offsets.items():
            for partition, offset in partitions.items():
                pause_ns = UNCHANGED_PAUSE_NS if offset.value == offset.sent else CHANGED_PAUSE_NS
                if offset.sent >= 0 and now_ns - offset.sent_ns < pause_ns:
                    continue
                if len(rows) == MOST_ROWS or not shares.take(offset.peer, 1, len(rows)):
                    self.losses[OFFSET_LIMIT] += 1
                    continue
                rows.append(_DueOffset(subject, partition, offset.value, offset.source, offset.seen_ns))
                offset.sent, offset.sent_ns = offset.value, now_ns
        return rows


def _broker(connection: Connection) -> str:
    identity = connection.identity
    return identity.local if identity.server_side else identity.peer


def _events(rows: list[_DueOffset], until_us: int, clock: WallClock) -> Iterator[OffsetsEvent]:
    for part in _parts(rows):
        ends: list[PartitionEnd] = []
        positions: list[GroupPosition] = []
        for (group, cluster_id, broker, topic, topic_id), partition, offset, source, seen_ns in part:
            end: PartitionEnd = {
                "cluster_id": cluster_id,
                "broker": broker,
                "topic": topic,
                "topic_id": topic_id,
                "partition": partition,
                "offset": offset,
                "source": source,
                "seen": clock.epoch_us(seen_ns),
            }
            if group is None:
                ends.append(end)
            else:
                positions.append({"group": group, **end})
        yield {"kind": "offsets", "partition_ends": ends, "group_positions": positions, "ts": until_us}


def _parts(rows: list[_DueOffset]) -> Iterator[list[_DueOffset]]:
    """Yield the rows of each event."""
    part: list[_DueOffset] = []
    characters = 0
    for row in rows:
        of_row = sum(len(text) for text in row.subject if text)
        if part and (len(part) == ROWS_PER_EVENT or characters + of_row > CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(row)
        characters += of_row
    if part:
        yield part
