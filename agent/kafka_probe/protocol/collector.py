"""What a walk over one frame finds, as plain lists that compiled walks append to, and what it adds up to.

Walks append plain tuples, which are given their class in the end: that takes a third of the time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka_probe.protocol.facts import Encoding, Fact, Facts, Kind, Measure, RecordSet, Status, TopicFacts

# Name, id, partitions, and errors by partition.
Topic = list[Any]

_new = tuple.__new__


class Collector:
    """Empty for each frame; `facts` may be asked for wherever the walk ended."""

    __slots__ = ("errors", "forgotten", "measures", "record_sets", "topics", "values")

    def __init__(self) -> None:
        self.values: list[tuple[Fact, str | int]] = []
        self.errors: list[int] = []
        self.topics: list[Topic] = []
        self.forgotten: list[Topic] = []
        self.record_sets: list[tuple[int, int, int, int, int, bool, bool]] = []
        self.measures: list[tuple[Kind, int, int, int, int, Encoding]] = []

    def facts(self, response: bool, api_key: int, api_version: int, status: Status, stopped_at: str | None) -> Facts:
        return Facts(
            response,
            api_key,
            api_version,
            status,
            stopped_at,
            tuple(self.values),
            tuple(sorted(Counter(self.errors).items())) if self.errors else (),
            _topics(self.topics, stopped_at) if self.topics else (),
            _topics(self.forgotten, stopped_at) if self.forgotten else (),
            tuple([_new(RecordSet, found) for found in self.record_sets]) if self.record_sets else (),
        )

    def all_measures(self) -> tuple[Measure, ...]:
        return tuple([_new(Measure, measure) for measure in self.measures])


def _topics(topics: list[Topic], stopped_at: str | None) -> tuple[TopicFacts, ...]:
    if stopped_at is not None and topics[-1] == [None, None, [], []]:
        del topics[-1]  # the frame ended before it named its last topic
    return tuple([_new(TopicFacts, (name, id_, tuple(parts), tuple(errors))) for name, id_, parts, errors in topics])
