"""Fetch sessions: the topics that a connection's Fetch and ShareFetch requests ask for without naming them.

A full request names all partitions, an incremental one only changes (KIP-227, KIP-932): a consumer that waits for
records names none. The order of frames determines which partitions a session has. Almost no frame changes a session,
and frames that change nothing may be counted in any order. A session that was open before the agent saw it has the
partitions named so far, in requests and in responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.frame_reader import Frames
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, Status, TopicFacts, text_bytes

FETCHES = ApiKey.FETCH, ApiKey.SHARE_FETCH
SESSION_BYTES = 512  # memory of an empty session,
_TOPIC_BYTES, _PARTITION_BYTES = 768, 144  # of each topic besides its texts, and of each partition

Topic = tuple[str | None, str | None]


class FrameRole(Enum):
    """The effect of a frame on the session of its connection."""

    ALONE = auto()  # a full request without a session: it ends the previous session
    FULL = auto()  # begins a session with the partitions that it names
    INCREMENTAL = auto()
    RESPONSE = auto()


_ROLES: dict[int | None, FrameRole] = {0: FrameRole.FULL, 1: FrameRole.INCREMENTAL}


@dataclass(frozen=True, slots=True)
class Naming:
    """The content of all frames of one shape that concerns a session: partitions by topic."""

    role: FrameRole
    version: int
    complete: bool
    added: dict[Topic, set[int]]
    forgotten: dict[Topic, set[int]]

    @property
    def by_session(self) -> bool:
        """Return True for a request for all partitions of the session."""
        return self.role in (FrameRole.FULL, FrameRole.INCREMENTAL)


def naming(facts: Facts) -> Naming | None:
    """Return the naming of a frame; None if it concerns no session, or broke off before its session fields."""
    if facts.api_key not in FETCHES or (facts.response and not facts.topics):
        return None
    complete = facts.status is Status.COMPLETE
    epoch = facts.number(Fact.SESSION_EPOCH)
    if not facts.response and epoch is None and not complete:
        return None
    role = FrameRole.RESPONSE if facts.response else _ROLES.get(epoch, FrameRole.ALONE)
    return Naming(role, facts.api_version, complete, _partitions(facts.topics), _partitions(facts.forgotten))


NamedFrames = tuple[Naming, Frames, npt.NDArray[np.intp]]
"""A naming, the frames of its shape, and the indices in them of those of one connection."""


@dataclass(slots=True)
class _Held:
    """The partitions of a topic that a session has.

    The requests for the topic since `take` are those for the whole session plus `more`.
    """

    partitions: set[int]
    more: int  # below 0 if the topic was added after `take`


class FetchSession:
    """The session of a connection, and the number of requests for each topic since `take`.

    The caller takes SESSION_BYTES of the budget for it. The session takes more for its topics and partitions, and gives
    all bytes back when it is deleted. A topic that was removed keeps its bytes until the requests for it are reported.
    The time to process a frame depends on the number of partitions in the frame, not on the size of the session.
    """

    __slots__ = (
        "_budget",
        "_bytes",
        "_held",
        "_known",
        "_left",
        "_peer",
        "_reported_bytes",
        "_requests",
        "_size",
        "_version",
        "api_key",
    )

    def __init__(self, api_key: int, budget: SharedBudget, peer: str) -> None:
        self.api_key = api_key
        self._budget = budget
        self._peer = peer
        self._bytes = SESSION_BYTES
        self._held: dict[Topic, _Held] = {}
        self._size = 0
        self._known = False  # True after a complete full request: all partitions are known
        self._requests = 0
        self._version = 0  # the newest API version of these requests
        self._left: dict[Topic, int] = {}  # requests for topics that were removed
        self._reported_bytes = 0  # of topics removed before the last report, which may be unsent

    def __del__(self) -> None:
        self._budget.give_back(self._bytes)

    def see(self, batch: list[NamedFrames]) -> None:
        """Count the frames of one batch, and apply their changes to the session."""
        if all(self._stays(frame) for frame, _, _ in batch):
            for frame, _, members in batch:
                self._count(frame, len(members))
            return
        for frame in _in_order(batch):
            if self._stays(frame):
                self._count(frame, 1)
            else:
                self._change(frame)

    def take(self) -> tuple[int, dict[Topic, int]]:
        """Return the newest API version of requests since the last call, and the number of requests by topic."""
        asked = {topic: times for topic, times in self._left.items() if times}
        for topic, held in self._held.items():
            if times := self._requests + held.more:
                asked[topic] = times
            held.more = 0
        version, self._version, self._requests = self._version, 0, 0
        self._free(self._reported_bytes)
        self._reported_bytes = sum(map(_topic_bytes, self._left))
        self._left, self._held = {}, dict(self._held)  # a dict does not shrink when keys are deleted
        return version, asked

    def forget(self) -> None:
        """Drop all partitions; the session is unknown then. The counts of requests are kept for `take`."""
        for topic, held in self._held.items():
            self._remove(topic, held.partitions)
        self._let_go(list(self._held))
        self._known = False

    def _stays(self, frame: Naming) -> bool:
        """Return True if the frame does not change the session."""
        match frame.role:
            case FrameRole.ALONE:
                return self._known and not self._held
            case FrameRole.FULL:
                return self._known and self._size == _size(frame.added) and self._holds(frame.added)
            case FrameRole.INCREMENTAL:
                return self._holds(frame.added) and self._lacks(frame.forgotten)
            case FrameRole.RESPONSE:
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
        """Apply a frame that changes the session; count it for the session's topics then and those that it names."""
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
        if size and not self._budget.take(self._peer, size, "partition_limit", max(new, 1)):
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
        """Remove those of the topics that have no partition left; keep their counts."""
        for topic in topics:
            held = self._held.get(topic)
            if held and not held.partitions:
                self._left[topic] = self._requests + held.more
                del self._held[topic]

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._budget.give_back(size)


def _in_order(batch: list[NamedFrames]) -> Iterator[Naming]:
    """Yield the naming of each frame, in the order of the frames.

    Frames that span several samples are in a batch of their own, so their order among other frames follows from times.
    """
    order = []
    for n, (_, frames, members) in enumerate(batch):
        indices = frames.index[members]
        order += [
            (time, index, n)
            for time, index in zip(frames.batch["ts_ns"][indices].tolist(), indices.tolist(), strict=True)
        ]
    yield from (batch[n][0] for _, _, n in sorted(order))


def _topic_bytes(topic: Topic) -> int:
    return _TOPIC_BYTES + sum(text_bytes(text) for text in topic if text)


def _size(topics: dict[Topic, set[int]]) -> int:
    return sum(map(len, topics.values()))


def _partitions(topics: Iterable[TopicFacts]) -> dict[Topic, set[int]]:
    found: dict[Topic, set[int]] = {}
    for topic in topics:
        found.setdefault((topic.name, topic.topic_id), set()).update(topic.partitions)
    return found
