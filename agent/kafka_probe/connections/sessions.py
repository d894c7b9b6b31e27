"""Fetch sessions: which topics a connection's Fetch and ShareFetch requests ask for without naming them.

A full request names all partitions, an incremental one only what changed (KIP-227, KIP-932): a consumer that waits for
records names nothing at all. The order of frames decides what a session holds, but almost no frame changes it, and
frames that change nothing may come in any order. A session that was open before we saw it holds what was named so far,
in requests and in their answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.frames import Frames
from kafka_probe.protocol.facts import Fact, Facts, Status, TopicFacts, text_bytes
from kafka_probe.shares import Place

FETCH, SHARE_FETCH = 1, 78
SESSION_BYTES = 512  # what a session takes that holds nothing,
_TOPIC_BYTES, _PARTITION_BYTES = 768, 144  # and each topic besides its texts, and each of its partitions

Topic = tuple[str | None, str | None]
Asked = tuple[int, Topic, int]
"""API version, topic, and requests of the session that asked for it."""


class Role(Enum):
    """What a frame means to the session of its connection."""

    ALONE = auto()  # a full request without a session: it ends the one that there was
    FULL = auto()  # begins a session with what it names
    INCREMENTAL = auto()
    ANSWER = auto()


_ROLES: dict[int | None, Role] = {0: Role.FULL, 1: Role.INCREMENTAL}


@dataclass(frozen=True, slots=True)
class Naming:
    """What all frames of one shape say of a session: partitions by topic."""

    role: Role
    version: int
    complete: bool
    added: dict[Topic, frozenset[int]]
    forgotten: dict[Topic, frozenset[int]]

    @property
    def by_session(self) -> bool:
        """A request for all that the session holds."""
        return self.role in (Role.FULL, Role.INCREMENTAL)


def naming(facts: Facts) -> Naming | None:
    """None for frames that have nothing to do with a session, or ended before they said so."""
    if facts.api_key not in (FETCH, SHARE_FETCH) or (facts.response and not facts.topics):
        return None
    complete = facts.status is Status.COMPLETE
    epoch = facts.number(Fact.SESSION_EPOCH)
    if not facts.response and epoch is None and not complete:
        return None
    role = Role.ANSWER if facts.response else _ROLES.get(epoch, Role.ALONE)
    return Naming(role, facts.api_version, complete, _partitions(facts.topics), _partitions(facts.forgotten))


Group = tuple[Naming, Frames, npt.NDArray[np.intp]]
"""What some frames of a batch say, and which members of their group they are."""


class FetchSession:
    """The session of a connection, and how often its topics were asked for since `take`.

    SESSION_BYTES of the place were taken for it; it takes more for what it holds, and gives all back in the end.
    """

    __slots__ = ("_asked", "_bytes", "_held", "_known", "_peer", "_pending", "_place", "_size", "api_key")

    def __init__(self, api_key: int, place: Place, peer: str) -> None:
        self.api_key = api_key
        self._place = place
        self._peer = peer
        self._bytes = SESSION_BYTES
        self._held: dict[Topic, set[int]] = {}
        self._size = 0
        self._known = False  # all of it, from a full request on
        self._pending: Counter[int] = Counter()  # by API version: requests for all that is held
        self._asked: Counter[tuple[int, Topic]] = Counter()

    def __del__(self) -> None:
        self._place.give_back(self._bytes)

    def see(self, groups: list[Group]) -> None:
        """The frames of one batch."""
        if all(self._stays(said) for said, _, _ in groups):
            for said, _, members in groups:
                self._ask(said, len(members))
            return
        for said in _in_order(groups):
            if not self._stays(said):
                self._settle()
                self._change(said)
            self._ask(said, 1)

    def take(self) -> Iterator[Asked]:
        """What was asked for since the last time."""
        self._settle()
        for (version, topic), times in self._asked.items():
            yield version, topic, times
        self._asked.clear()

    def forget(self) -> None:
        """Hold nothing, and know nothing. What was asked for until now stays, for `take`."""
        self._settle()
        self._free(self._bytes - SESSION_BYTES)
        self._held, self._size, self._known = {}, 0, False

    def _ask(self, frame: Naming, times: int) -> None:
        if frame.by_session:
            self._pending[frame.version] += times
            # What the request names but the session does not hold: it may be forgotten in the same breath.
            for topic in frame.added.keys() - self._held.keys():
                self._asked[frame.version, topic] += times

    def _settle(self) -> None:
        for version, times in self._pending.items():
            for topic in self._held:
                self._asked[version, topic] += times
        self._pending.clear()

    def _stays(self, frame: Naming) -> bool:
        """Whether the session is the same after the frame."""
        match frame.role:
            case Role.ALONE:
                return self._known and not self._held
            case Role.FULL:
                return self._known and self._size == _size(frame.added) and self._holds(frame.added)
            case Role.INCREMENTAL:
                return not frame.forgotten and self._holds(frame.added)
            case Role.ANSWER:
                return self._known or self._holds(frame.added)

    def _holds(self, topics: dict[Topic, frozenset[int]]) -> bool:
        return all(topic in self._held and self._held[topic] >= partitions for topic, partitions in topics.items())

    def _change(self, frame: Naming) -> None:
        if frame.role in (Role.ALONE, Role.FULL):
            self.forget()
            self._known = frame.complete
        if frame.role is not Role.ALONE:
            for topic, partitions in frame.added.items():
                new = len(partitions - self._held.get(topic, set()))
                size = _PARTITION_BYTES * new + (0 if topic in self._held else _topic_bytes(topic))
                if new and self._place.take(self._peer, size, "partition_limit", new):
                    self._held.setdefault(topic, set()).update(partitions)
                    self._size += new
                    self._bytes += size
        for topic in frame.forgotten.keys() & self._held.keys():
            held = self._held[topic]
            left = len(frame.forgotten[topic] & held)
            self._size -= left
            held -= frame.forgotten[topic]
            if not held:
                del self._held[topic]
            self._free(_PARTITION_BYTES * left + (0 if held else _topic_bytes(topic)))

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._place.give_back(size)


def _in_order(groups: list[Group]) -> Iterator[Naming]:
    """One for each frame. A frame of many records has a batch of its own, and finds its place by time only."""
    order = []
    for n, (_, frames, members) in enumerate(groups):
        places = frames.index[members]
        order += [
            (time, place, n)
            for time, place in zip(frames.batch["ts_ns"][places].tolist(), places.tolist(), strict=True)
        ]
    yield from (groups[n][0] for _, _, n in sorted(order))


def _topic_bytes(topic: Topic) -> int:
    return _TOPIC_BYTES + sum(text_bytes(text) for text in topic if text)


def _size(topics: dict[Topic, frozenset[int]]) -> int:
    return sum(map(len, topics.values()))


def _partitions(topics: Iterable[TopicFacts]) -> dict[Topic, frozenset[int]]:
    found: dict[Topic, frozenset[int]] = {}
    for topic in topics:
        key = topic.name, topic.topic_id
        found[key] = found.get(key, frozenset()).union(topic.partitions)
    return found
