"""What a walk over one frame finds, as plain lists that compiled walks append to, and the shape that it adds up to.

Walks append plain tuples, which are given their class in the end: that takes a third of the time.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from kafka_probe.protocol.facts import Encoding, Fact, Facts, Kind, Measure, RecordSet, Shape, Status, TopicFacts

Topics = list[list[Any]]
"""Of each: name, id, partitions, and errors by partition."""
Sets = list[tuple[int, int, int, int, int, bool, bool]]
"""The fields of RecordSet."""
Numbers = list[tuple[Kind, int, int, int, int, Encoding]]
"""The fields of Measure."""
Found = tuple[list[tuple[Fact, str | int]], list[int], Topics, Topics, Sets, Numbers]
"""Values, error codes, topics, forgotten topics, record sets, measures."""

_new = tuple.__new__
_measure, _record_set = partial(_new, Measure), partial(_new, RecordSet)


def shape_of(
    which: tuple[bool, int, int], status: Status, stopped_at: str | None, found: Found, mask: bytearray, used_bytes: int
) -> Shape:
    """The shape of a frame of (response, API key, API version)."""
    values, errors, topics, forgotten, record_sets, measures = found
    facts = (
        *which,
        status,
        stopped_at,
        tuple(values),
        tuple(sorted(Counter(errors).items())) if errors else (),
        _topics(topics, stopped_at) if topics else (),
        _topics(forgotten, stopped_at) if forgotten else (),
        tuple(map(_record_set, record_sets)),
    )
    return _new(Shape, (_new(Facts, facts), bytes(mask), tuple(map(_measure, measures)), used_bytes))


def _topics(topics: Topics, stopped_at: str | None) -> tuple[TopicFacts, ...]:
    if stopped_at is not None and topics[-1] == [None, None, [], []]:
        del topics[-1]  # the frame ended before it named its last topic
    return tuple([_new(TopicFacts, (name, id_, tuple(parts), tuple(errors))) for name, id_, parts, errors in topics])
