"""The activity of a connection: the sums of its flows, which its `close` and repeated `open` events carry.

Sums take their memory from a budget that peers share, and return it when they are deleted. A connection whose sums do
not fit has none. Topics that do not fit are summed in one entry without a name, and so are topics with a name that no
broker allows: so a stranger's names cannot make an event large.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter

from kafka_probe.events import ActivityFacts, ActivityTopic, FlowEvent
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.protocol.facts import text_bytes

ACTIVITY_LIMIT = "activity_limit"
REPORTED_TOPICS = 20  # topics of an event with a name
MOST_TOPICS = 64  # topics of a connection that are counted one by one
MOST = 1 << 48  # a sum of an event is no larger: 281 TB, as the pipeline accepts
ACTIVITY_BYTES = 480  # memory of the sums of a connection,
_TOPIC_BYTES = 272  # and of each topic with its id, besides its name
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Names that brokers allow, as in org.apache.kafka.common.internals.Topic."""


@dataclass(slots=True)
class _TopicTotals:
    name: str | None
    topic_id: str | None
    requests: int = 0
    bytes: int = 0

    def add(self, requests: int, size: int) -> None:
        self.requests += requests
        self.bytes += size

    def facts(self) -> ActivityTopic:
        return {
            "topic": self.name,
            "topic_id": self.topic_id,
            "requests": min(self.requests, MOST),
            "bytes": min(self.bytes, MOST),
        }


class ConnectionActivity:
    """The sums of a connection's `flow` events. The caller takes ACTIVITY_BYTES of the budget for it.

    peer: the peer whose share of the budget it uses.
    """

    __slots__ = (
        "_budget",
        "_bytes",
        "_group",
        "_peer",
        "_refused",
        "_request_bytes",
        "_requests",
        "_response_bytes",
        "_rest",
        "_topics",
    )

    def __init__(self, budget: SharedBudget, peer: str) -> None:
        self._budget = budget
        self._peer = peer
        self._bytes = ACTIVITY_BYTES
        self._refused = False  # the flow that is being added took what was left of the share
        self._requests = self._request_bytes = self._response_bytes = 0
        self._group: str | None = None
        self._topics: dict[str | None, _TopicTotals] = {}  # by name; by id while the name is unknown
        self._rest = _TopicTotals(None, None)

    def __del__(self) -> None:
        self._budget.give_back(self._bytes, self._peer)

    def add(self, flow: FlowEvent) -> None:
        """Add a `flow` event of the connection."""
        self._refused = False
        self._requests += flow["requests"]
        self._request_bytes += flow["request_bytes"]
        self._response_bytes += flow["response_bytes"]
        group = flow["group"]
        if group is not None and group != self._group:
            self._keep_group(group)
        topics = self._topics
        for topic in flow["topics"]:
            if topic["requests"] or topic["bytes"]:
                name, topic_id = topic["topic"], topic["topic_id"]
                found = topics.get(name or topic_id)
                if found is None or (topic_id and found.topic_id != topic_id):
                    found = self._find(name, topic_id)
                found.add(topic["requests"], topic["bytes"])

    def facts(self) -> ActivityFacts:
        """Return the sums as fields of an event."""
        topics = sorted(self._topics.values(), key=attrgetter("bytes", "requests"), reverse=True)
        rest = _TopicTotals(None, None)
        for topic in (*topics[REPORTED_TOPICS:], self._rest):
            rest.add(topic.requests, topic.bytes)
        shown = topics[:REPORTED_TOPICS] + ([rest] if rest.requests or rest.bytes else [])
        facts: ActivityFacts = {
            "requests": min(self._requests, MOST),
            "request_bytes": min(self._request_bytes, MOST),
            "response_bytes": min(self._response_bytes, MOST),
            "topics": [topic.facts() for topic in shown],
        }
        if self._group is not None:
            facts["group"] = self._group
        return facts

    def _find(self, name: str | None, topic_id: str | None) -> _TopicTotals:
        """Return the entry of a topic, added if absent; complete an entry whose id or name was unknown before."""
        by_id = self._topics.pop(topic_id, None) if name and topic_id else None
        if by_id:
            self._free(_size(by_id))
        found = self._topics.get(name or topic_id) or self._new(name, topic_id)
        if found is not self._rest:
            found.topic_id = topic_id or found.topic_id
        if by_id:
            found.add(by_id.requests, by_id.bytes)
        return found

    def _new(self, name: str | None, topic_id: str | None) -> _TopicTotals:
        """Return a new entry for a topic, or `_rest` if its name is not allowed or it does not fit."""
        topic = _TopicTotals(name, topic_id)
        key = name or topic_id
        allowed = bool(TOPIC_NAME.fullmatch(name)) if name else topic_id is not None
        if not allowed or len(self._topics) >= MOST_TOPICS or not self._take(_size(topic)):
            return self._rest
        self._topics[key] = topic
        return topic

    def _keep_group(self, group: str) -> None:
        if self._group is not None:
            self._free(text_bytes(self._group))
        self._group = group if self._take(text_bytes(group)) else None

    def _take(self, size: int) -> bool:
        """Take bytes of the budget; after a refusal no more for the same flow, which may have thousands of topics."""
        if self._refused:
            return False
        fits = self._budget.take(self._peer, size, ACTIVITY_LIMIT)
        self._bytes += size * fits
        self._refused = not fits
        return fits

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._budget.give_back(size, self._peer)


class Uncounted:
    """Stands for the activity of connections whose sums do not fit into the budget: their events have none."""

    __slots__ = ()

    def add(self, flow: FlowEvent) -> None:
        """Do nothing."""

    def facts(self) -> ActivityFacts:
        return {}


UNCOUNTED = Uncounted()


def none_yet() -> ActivityFacts:
    """Return the fields of a connection without a flow."""
    return {"requests": 0, "request_bytes": 0, "response_bytes": 0, "topics": []}


def _size(topic: _TopicTotals) -> int:
    return _TOPIC_BYTES + text_bytes(topic.name or "")
