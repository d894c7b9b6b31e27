"""Topic ids to names, learned from responses that carry both; shared by all connections of an agent."""

from __future__ import annotations

from kafka_probe.protocol.facts import Facts, TopicFacts

_LIMIT = 1 << 17


class TopicNames:
    """Names by topic id. Ids are UUIDs, so those of several clusters do not collide (KIP-516)."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def learn(self, facts: Facts) -> None:
        for topic_id, name in facts.topic_names:
            if len(self._names) >= _LIMIT:
                self._names.clear()
                self._ids.clear()
            self._names[topic_id] = name
            self._ids[name] = topic_id

    def resolve(self, topic: TopicFacts) -> tuple[str | None, str | None]:
        """(name, id) of a topic, each None while it is not known."""
        name = topic.name or (self._names.get(topic.topic_id) if topic.topic_id else None)
        return name, topic.topic_id or (self._ids.get(name) if name else None)
