"""Topic ids to names, learned from messages and files that carry both; shared by all connections of an agent.

Ids are UUIDs, so those of several clusters do not collide (KIP-516), and an id never gets another name. A topic that
was deleted and created again has a new id: both ids have the name, and the name has the newer one. A name that several
clusters have is an id's only where the cluster is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.facts import Facts, TopicFacts

LOSSES = {"topic_name_limit": "topic ids whose names were forgotten, the oldest first: see `--memory-limit`"}


class TopicNames:
    """Names by topic id, the newest `limit` of them. `learned` counts them since the start."""

    def __init__(self, limit: int = DEFAULT.topic_names) -> None:
        self._limit = limit
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
        if len(self._names) >= self._limit:
            self.losses["topic_name_limit"] += 1
            self._forget(next(iter(self._names)))
        self._names[topic_id] = self._unreported[topic_id] = name
        ids = self._ids.setdefault(name, {})
        if not (gone and ids):
            ids.pop(cluster_id, None)
            ids[cluster_id] = topic_id
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
        self._ids[name] = {cluster: known for cluster, known in self._ids[name].items() if known != topic_id}
        if not self._ids[name]:
            del self._ids[name]
