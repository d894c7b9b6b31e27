"""Fetch sessions: which topics a connection's Fetch and ShareFetch requests ask for without naming them.

A full request names all partitions, an incremental one only what changed (KIP-227, KIP-932): a consumer that waits for
records names nothing at all. The order of frames decides what a session holds, but almost no frame changes it, and
frames that change nothing may come in any order. A session that was open before we saw it holds what was named so far,
in requests and in their answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.frames import Frames
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, Status, TopicFacts, text_bytes
from kafka_probe.shares import SharedBudget

FETCHES = ApiKey.FETCH, ApiKey.SHARE_FETCH
SESSION_BYTES = 512  # what a session takes that holds nothing,
_TOPIC_BYTES, _PARTITION_BYTES = 768, 144  # and each topic besides its texts, and each of its partitions

Topic = tuple[str | None, str | None]


class FrameRole(Enum):
    """What a frame means to the session of its connection."""

    ALONE = auto()  # a full request without a session: it ends the one that there was
    FULL = auto()  # begins a session with what it names
    INCREMENTAL = auto()
    ANSWER = auto()


_ROLES: dict[int | None, FrameRole] = {0: FrameRole.FULL, 1: FrameRole.INCREMENTAL}


@dataclass(frozen=True, slots=True)
class Naming:
    """What all frames of one shape say of a session: partitions by topic."""

    role: FrameRole
    version: int
    complete: bool
    added: dict[Topic, set[int]]
    forgotten: dict[Topic, set[int]]

    @property
    def by_session(self) -> bool:
        """A request for all that the session holds."""
        return self.role in (FrameRole.FULL, FrameRole.INCREMENTAL)


def naming(facts: Facts) -> Naming | None:
    """None for frames that have nothing to do with a session, or ended before they said so."""
    if facts.api_key not in FETCHES or (facts.response and not facts.topics):
        return None
    complete = facts.status is Status.COMPLETE
    epoch = facts.number(Fact.SESSION_EPOCH)
    if not facts.response and epoch is None and not complete:
        return None
    role = FrameRole.ANSWER if facts.response else _ROLES.get(epoch, FrameRole.ALONE)
    return Naming(role, facts.api_version, complete, _partitions(facts.topics), _partitions(facts.forgotten))


Group = tuple[Naming, Frames, npt.NDArray[np.intp]]
"""What some frames of a batch say, and which members of their group they are."""


@dataclass(slots=True)
class _Held:
    """Partitions that a session holds of a topic, which its requests since `take` asked for, and so many `more`."""

    partitions: set[int]
    more: int  # below 0 if the session did not hold the topic all the time


class FetchSession:
    """The session of a connection, and how often its topics were asked for since `take`.

    SESSION_BYTES of the place were taken for it; it takes more for what it holds, and gives all back in the end. A
    topic that it holds no more keeps its bytes until the requests for it are reported. A frame costs no more than what
    it names, however much the session holds.
    """

    __slots__ = (
        "_bytes",
        "_held",
        "_known",
        "_left",
        "_peer",
        "_place",
        "_reported_bytes",
        "_requests",
        "_size",
        "_version",
        "api_key",
    )

    def __init__(self, api_key: int, place: SharedBudget, peer: str) -> None:
        self.api_key = api_key
        self._place = place
        self._peer = peer
        self._bytes = SESSION_BYTES
        self._held: dict[Topic, _Held] = {}
        self._size = 0
        self._known = False  # all of it, from a full request on
        self._requests = 0
        self._version = 0  # the newest of them
        self._left: dict[Topic, int] = {}  # requests for what was held
        self._reported_bytes = 0  # of what had left before the last report, which may not be sent yet

    def __del__(self) -> None:
        self._place.give_back(self._bytes)

    def see(self, groups: list[Group]) -> None:
        """The frames of one batch."""
        if all(self._stays(said) for said, _, _ in groups):
            for said, _, members in groups:
                self._count(said, len(members))
            return
        for said in _in_order(groups):
            if self._stays(said):
                self._count(said, 1)
            else:
                self._change(said)

    def take(self) -> tuple[int, dict[Topic, int]]:
        """The newest API version of the requests since the last time, and how many of all asked for each topic."""
        asked = {topic: times for topic, times in self._left.items() if times}
        for topic, held in self._held.items():
            if times := self._requests + held.more:
                asked[topic] = times
            held.more = 0
        version, self._version, self._requests = self._version, 0, 0
        self._free(self._reported_bytes)
        self._reported_bytes = sum(map(_topic_bytes, self._left))
        self._left, self._held = {}, dict(self._held)  # a dict does not shrink with what leaves it
        return version, asked

    def forget(self) -> None:
        """Hold nothing, and know nothing. What was asked for until now stays, for `take`."""
        for topic, held in self._held.items():
            self._remove(topic, held.partitions)
        self._let_go(list(self._held))
        self._known = False

    def _stays(self, frame: Naming) -> bool:
        """Whether the session is the same after the frame."""
        match frame.role:
            case FrameRole.ALONE:
                return self._known and not self._held
            case FrameRole.FULL:
                return self._known and self._size == _size(frame.added) and self._holds(frame.added)
            case FrameRole.INCREMENTAL:
                return self._holds(frame.added) and self._lacks(frame.forgotten)
            case FrameRole.ANSWER:
                return self._known or self._holds(frame.added)

    def _holds(self, topics: dict[Topic, set[int]]) -> bool:
        return all(topic in self._held and self._held[topic].partitions >= topics[topic] for topic in topics)

    def _lacks(self, topics: dict[Topic, set[int]]) -> bool:
        return all(
            topic not in self._held or self._held[topic].partitions.isdisjoint(topics[topic]) for topic in topics
        )

    def _count(self, frame: Naming, times: int) -> None:
        if frame.by_session:
            self._requests += times
            self._version = max(self._version, frame.version)

    def _change(self, frame: Naming) -> None:
        """Count a frame that changes the session: for what it holds then, and what the frame names."""
        if frame.role in (FrameRole.ALONE, FrameRole.FULL):
            self.forget()
            self._known = frame.complete
        if frame.role is not FrameRole.ALONE:
            for topic, partitions in frame.added.items():
                self._add(topic, partitions)
        for topic, partitions in frame.forgotten.items():
            if topic in self._held:
                self._remove(topic, partitions)
        self._let_go(frame.forgotten.keys() - frame.added.keys())
        self._count(frame, 1)
        self._let_go(frame.added)

    def _add(self, topic: Topic, partitions: set[int]) -> None:
        held = self._held.get(topic)
        new = len(partitions - held.partitions if held else partitions)
        size = _PARTITION_BYTES * new + (0 if held or topic in self._left else _topic_bytes(topic))
        if size and not self._place.take(self._peer, size, "partition_limit", max(new, 1)):
            return
        if held is None:
            held = self._held[topic] = _Held(set(), self._left.pop(topic, 0) - self._requests)
        held.partitions |= partitions
        self._size += new
        self._bytes += size

    def _remove(self, topic: Topic, partitions: set[int]) -> None:
        held = self._held[topic].partitions
        before = len(held)
        held -= partitions
        self._size -= before - len(held)
        self._free(_PARTITION_BYTES * (before - len(held)))

    def _let_go(self, topics: Iterable[Topic]) -> None:
        """Hold those of the topics no more of which no partition is held."""
        for topic in topics:
            held = self._held.get(topic)
            if held and not held.partitions:
                self._left[topic] = self._requests + held.more
                del self._held[topic]

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


def _size(topics: dict[Topic, set[int]]) -> int:
    return sum(map(len, topics.values()))


def _partitions(topics: Iterable[TopicFacts]) -> dict[Topic, set[int]]:
    found: dict[Topic, set[int]] = {}
    for topic in topics:
        found.setdefault((topic.name, topic.topic_id), set()).update(topic.partitions)
    return found
