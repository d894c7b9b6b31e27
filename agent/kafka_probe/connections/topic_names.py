"""Topic names by topic id, learned from messages and files that contain both, for all connections of an agent.

Ids are UUIDs, so those of several clusters do not collide (KIP-516), and an id never changes its name: if an id appears
with two names, one of them is false, and the id has none from then on. Files of brokers on this host override messages.
A topic that was deleted and created again has a new id: both ids map to the name, and the name maps to the newer id. A
name that exists in several clusters maps to an id only if the cluster is known.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from kafka_probe.memory import DEFAULT
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.facts import Facts, TopicFacts, text_bytes

LOSSES = {
    "topic_name_limit": "names of topic ids that exceed `--memory-limit`, the least recently used first",
    "topic_name_conflict": "topic ids with two different names, one of which is false: they have no name since then",
}
_NAME_BYTES = 640  # memory of an id besides its name,
_CLUSTER_BYTES = 64  # and of each cluster of a name besides the cluster id


@dataclass(slots=True)
class _KnownName:
    """The name of an id, its cluster, and whether a file contains it. No name: the id appeared with two names."""

    name: str | None = None
    cluster_id: str | None = None
    stored: bool = False


class TopicNames:
    """Names by topic id, the most recently used ones in `limit_bytes`, which peers share.

    `learned` counts names since the start.
    """

    def __init__(self, limit_bytes: int = DEFAULT.topic_names_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._gone_bytes = 0
        self._shares = Shares(limit_bytes)
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._names: OrderedDict[str, _KnownName] = OrderedDict()  # the most recently used last
        self._ids: dict[str, dict[str | None, str]] = {}  # by name and cluster, the newest last
        self._unreported: dict[str, str] = {}
        self.learned = 0

    def learn(self, facts: Facts, peer: str, cluster_id: str | None = None) -> None:
        for topic_id, name in facts.topic_names:
            self.add(topic_id, name, peer, cluster_id)

    def add(
        self,
        topic_id: str,
        name: str,
        peer: str,
        cluster_id: str | None = None,
        *,
        stored: bool = False,
        gone: bool = False,
    ) -> bool:
        """Add the name of a topic id; return True if it is new.

        stored: a file of a broker on this host contains it. gone: the topic may be deleted, and a newer topic may have
        its name.
        """
        named = self._names.get(topic_id)
        if named is None:
            needed = _NAME_BYTES + text_bytes(name) + _cluster_bytes(cluster_id)
            if not self._shares.take(peer, needed, self._held_bytes, self._gone_bytes):
                self.losses["topic_name_limit"] += 1
                return False
            named = self._names[topic_id] = _KnownName()
            self._held_bytes += _NAME_BYTES
        elif named.name == name:
            named.stored |= stored
            return False
        elif named.stored >= stored:
            if named.stored == stored and named.name:
                self.losses["topic_name_conflict"] += 1
                self._unname(topic_id, named)
            return False
        self._unname(topic_id, named)
        named.name, named.cluster_id, named.stored = name, cluster_id, stored
        self._held_bytes += text_bytes(name)
        self._unreported[topic_id] = name
        ids = self._ids.setdefault(name, {})
        if not (gone and ids):
            self._held_bytes += 0 if cluster_id in ids else _cluster_bytes(cluster_id)
            ids.pop(cluster_id, None)
            ids[cluster_id] = topic_id
        while self._held_bytes > self._limit_bytes:
            self.losses["topic_name_limit"] += 1
            self._forget(next(iter(self._names)))
        self.learned += 1
        return True

    def resolve(self, topic: TopicFacts, cluster_id: str | None = None) -> tuple[str | None, str | None]:
        """Return (name, id) of a topic, each None if unknown.

        The name of an id is the one that was learned; a name beside it in the frame does not count.
        """
        if topic.topic_id:
            named = self._names.get(topic.topic_id)
            name = named.name if named else None
        else:
            name = topic.name
        topic_id = topic.topic_id or (self._id_of(name, cluster_id) if name else None)
        if topic_id and topic_id in self._names:
            self._names.move_to_end(topic_id)
        return name, topic_id

    def lacks(self, facts: Facts) -> bool:
        """Return True if a frame contains a topic id without a learned name."""
        return any(topic.topic_id and not self.resolve(topic)[0] for topic in facts.topics)

    def report(self) -> Iterator[tuple[str, str]]:
        """Yield (id, name) for each name learned since the last report."""
        yield from self._unreported.items()
        self._unreported = {}

    def _id_of(self, name: str, cluster_id: str | None) -> str | None:
        ids = self._ids.get(name, {})
        if cluster_id is None and len(ids) - (None in ids) < 2:
            return next(reversed(ids.values()), None)
        return ids.get(cluster_id, ids.get(None))

    def _forget(self, topic_id: str) -> None:
        self._unname(topic_id, self._names.pop(topic_id))
        self._free(_NAME_BYTES)

    def _unname(self, topic_id: str, named: _KnownName) -> None:
        if named.name is None:
            return
        self._unreported.pop(topic_id, None)
        self._free(text_bytes(named.name))
        ids = self._ids.get(named.name, {})
        if ids.get(named.cluster_id) == topic_id:  # else the name maps to a newer id
            del ids[named.cluster_id]
            self._free(_cluster_bytes(named.cluster_id))
            if not ids:
                del self._ids[named.name]
        named.name = None

    def _free(self, size: int) -> None:
        self._held_bytes -= size
        self._gone_bytes += size


def _cluster_bytes(cluster_id: str | None) -> int:
    return _CLUSTER_BYTES + text_bytes(cluster_id or "")
