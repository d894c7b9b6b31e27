"""What a walk over one frame finds, as plain lists that compiled walks append to, and the facts that it adds up to."""

from __future__ import annotations

from collections import Counter

from kafka_probe.protocol.facts import Fact, Facts, Measure, RecordSet, Status, TopicFacts

# Name, id, partitions, and errors by partition.
Topic = list[object]


class Collector:
    """Empty for each frame; `facts` may be asked for wherever the walk ended."""

    __slots__ = ("errors", "forgotten", "measures", "record_sets", "topics", "values")

    def __init__(self) -> None:
        self.values: list[tuple[Fact, str | int]] = []
        self.errors: list[int] = []
        self.topics: list[Topic] = []
        self.forgotten: list[Topic] = []
        self.record_sets: list[RecordSet] = []
        self.measures: list[Measure] = []

    def facts(self, response: bool, api_key: int, api_version: int, status: Status, stopped_at: str | None) -> Facts:
        return Facts(
            response,
            api_key,
            api_version,
            status,
            stopped_at,
            tuple(self.values),
            tuple(sorted(Counter(self.errors).items())) if self.errors else (),
            _topics(self.topics, stopped_at),
            _topics(self.forgotten, stopped_at),
            tuple(self.record_sets),
        )


def new_topic(name: str | None = None) -> Topic:
    return [name, None, [], []]


def _topics(topics: list[Topic], stopped_at: str | None) -> tuple[TopicFacts, ...]:
    if stopped_at is not None and topics and topics[-1] == new_topic():
        del topics[-1]  # the frame ended before it named its last topic
    return tuple(
        [TopicFacts(name, topic_id, tuple(partitions), tuple(errors)) for name, topic_id, partitions, errors in topics]  # type: ignore[arg-type]  # see Topic
    )
