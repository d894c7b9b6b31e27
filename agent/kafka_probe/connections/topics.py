"""Topic ids to names, learned from messages and files that carry both; shared by all connections of an agent.

Ids are UUIDs, so those of several clusters do not collide (KIP-516), and an id never gets another name. A topic that
was deleted and created again has a new id: both ids have the name, and the name has the newer one.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafka_probe.protocol.facts import Facts, TopicFacts

_LIMIT = 1 << 17


class TopicNames:
    """Names by topic id, the newest `_LIMIT` of them. `learned` counts them since the start."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._unreported: dict[str, str] = {}
        self.learned = 0

    def learn(self, facts: Facts) -> None:
        for topic_id, name in facts.topic_names:
            self.add(topic_id, name)

    def add(self, topic_id: str, name: str, *, gone: bool = False) -> bool:
        """Whether that was new. `gone`: the topic is known to be deleted, another one may have its name by now."""
        if topic_id in self._names:
            return False
        if len(self._names) >= _LIMIT:
            self._forget(next(iter(self._names)))
        self._names[topic_id] = self._unreported[topic_id] = name
        if not (gone and name in self._ids):
            self._ids[name] = topic_id
        self.learned += 1
        return True

    def resolve(self, topic: TopicFacts) -> tuple[str | None, str | None]:
        """(name, id) of a topic, each None while it is not known."""
        name = topic.name or (self._names.get(topic.topic_id) if topic.topic_id else None)
        return name, topic.topic_id or (self._ids.get(name) if name else None)

    def lacks(self, facts: Facts) -> bool:
        """Whether a frame shows a topic of which only the id is known."""
        return any(t.topic_id is not None and not t.name and t.topic_id not in self._names for t in facts.topics)

    def report(self) -> Iterator[tuple[str, str]]:
        """(id, name) of what was learned since the last report."""
        yield from self._unreported.items()
        self._unreported = {}

    def _forget(self, topic_id: str) -> None:
        name = self._names.pop(topic_id)
        self._unreported.pop(topic_id, None)
        if self._ids.get(name) == topic_id:
            del self._ids[name]
