"""Topic ids to names, learned from messages and files that carry both; shared by all connections of an agent.

Ids are UUIDs, so those of several clusters do not collide (KIP-516), and an id never gets another name. A topic that
was deleted and created again has a new id: both ids have the name, and the name has the newer one. A name that several
clusters have is an id's only where the cluster is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.facts import Facts, TopicFacts, text_bytes

LOSSES = {"topic_name_limit": "topic ids whose names were forgotten, the oldest first: see `--memory-limit`"}
_NAME_BYTES, _CLUSTER_BYTES = (
    640,
    64,
)  # what an id takes besides its name, and each cluster of a name besides its own id


class TopicNames:
    """Names by topic id, the newest in `limit_bytes`. `learned` counts them since the start."""

    def __init__(self, limit_bytes: int = DEFAULT.topic_names_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._names: dict[str, str] = {}
        self._ids: dict[str, dict[str | None, str]] = {}  # by name and cluster, the newest last
        self._unreported: dict[str, str] = {}
        self.learned = 0

    def learn(self, facts: Facts, cluster_id: str | None = None) -> None:
        for topic_id, name in facts.topic_names:
            self.add(topic_id, name, cluster_id)

    def add(self, topic_id: str, name: str, cluster_id: str | None = None, *, gone: bool = False) -> bool:
        """Whether that was new. `gone`: the topic is known to be deleted, another one may have its name by now."""
        if topic_id in self._names:
            return False
        self._names[topic_id] = self._unreported[topic_id] = name
        self._held_bytes += _NAME_BYTES + text_bytes(name)
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
        """(name, id) of a topic, each None while it is not known."""
        name = topic.name or (self._names.get(topic.topic_id) if topic.topic_id else None)
        return name, topic.topic_id or (self._id_of(name, cluster_id) if name else None)

    def lacks(self, facts: Facts) -> bool:
        """Whether a frame shows a topic of which only the id is known."""
        return any(t.topic_id is not None and not t.name and t.topic_id not in self._names for t in facts.topics)

    def report(self) -> Iterator[tuple[str, str]]:
        """(id, name) of what was learned since the last report."""
        yield from self._unreported.items()
        self._unreported = {}

    def _id_of(self, name: str, cluster_id: str | None) -> str | None:
        ids = self._ids.get(name, {})
        if cluster_id is None and len(ids.keys() - {None}) < 2:
            return next(reversed(ids.values()), None)
        return ids.get(cluster_id, ids.get(None))

    def _forget(self, topic_id: str) -> None:
        name = self._names.pop(topic_id)
        self._unreported.pop(topic_id, None)
        self._held_bytes -= _NAME_BYTES + text_bytes(name)
        ids = self._ids[name]
        for cluster in [cluster for cluster, known in ids.items() if known == topic_id]:
            del ids[cluster]
            self._held_bytes -= _cluster_bytes(cluster)
        if not ids:
            del self._ids[name]


def _cluster_bytes(cluster_id: str | None) -> int:
    return _CLUSTER_BYTES + text_bytes(cluster_id or "")
