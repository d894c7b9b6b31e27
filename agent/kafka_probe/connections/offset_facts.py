"""Finds the offsets in an exchange: ends of partitions, and positions that groups have committed.

Only offsets that the broker has confirmed count: those of partitions that its response names without an error. Three
kinds are left out: offsets that a consumer asks for, commits of transactions, which may still be aborted, and offsets
of a response for several groups, which no longer belong to one of them once they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.frames_by_connection import Key
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, MeasureKind, Shape, Status, TopicFacts
from kafka_probe.protocol.measures import Integers

PAIRED = frozenset({ApiKey.PRODUCE, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH})
"""The APIs of which only request and response together give an offset."""
MEASURED = (MeasureKind.RECORDS, MeasureKind.OFFSET, MeasureKind.HIGH_WATERMARK, MeasureKind.TIMESTAMP)
"""The measures that are read for offsets."""
_LATEST = -1  # timestamp in a ListOffsets request: the end of the partition
_READ_COMMITTED = 1  # the broker responds with the last stable offset, which is no end
_MOST_OFFSET = (1 << 63) - 1
_FRAME_BYTES, _MEASURE_BYTES = 384, 8  # memory of a frame without its shape, and of each measure

_Named = tuple[str | None, str | None, int]
"""Name or id of a topic as in the frame, and a partition."""


class OneFrame(NamedTuple):
    """One frame of a connection. A named tuple, because creating a frozen dataclass takes three times as long.

    key: its connection and shape; values: (measures,) of the shape; ts_ns: its time, CLOCK_MONOTONIC.
    """

    key: Key
    connection: Connection
    shape: Shape
    values: Integers
    correlation_id: int
    ts_ns: int

    @property
    def held_bytes(self) -> int:
        """Return its memory in bytes without its shape."""
        return _FRAME_BYTES + _MEASURE_BYTES * len(self.values)


class Exchanged(NamedTuple):
    """A response, and its request unless the response alone gives offsets."""

    request: OneFrame | None
    response: OneFrame


class FoundOffset(NamedTuple):
    """An offset in an exchange. group: the group whose position it is, None: it is the end of the partition."""

    group: str | None
    topic: TopicFacts
    partition: int
    offset: int
    source: str


def gives_ends(shape: Shape) -> bool:
    """Return True if frames of a shape give ends of partitions without their request."""
    facts = shape.facts
    return (
        facts.api_key == ApiKey.FETCH
        and facts.response
        and any(measure.kind is MeasureKind.HIGH_WATERMARK for measure in shape.measures)
    )


def found_offsets(exchanged: Exchanged) -> Iterator[FoundOffset]:
    """Yield the offsets of an exchange, each partition at most once for each time that the response names the topic."""
    request, response = exchanged
    facts = response.shape.facts
    if request is None:
        values = _values(response, MeasureKind.HIGH_WATERMARK)
        yield from _found("fetch", None, facts, lambda at, _: values.get(at, -1))
    elif facts.api_key in PAIRED and facts.api_key == request.shape.facts.api_key:
        yield from _OF_APIS[ApiKey(facts.api_key)](request, response)


def _produced(request: OneFrame, response: OneFrame) -> Iterator[FoundOffset]:
    """Yield the offset after the produced records of each partition, if the kernel could count them."""
    records: dict[_Named, int] = {}
    for measure, value in zip(request.shape.measures, request.values.tolist(), strict=True):
        if measure.kind is MeasureKind.RECORDS:
            topic = request.shape.facts.topics[measure.topic]
            key = topic.name, topic.topic_id, measure.partition
            records[key] = records.get(key, 0) + value
    bases = _values(response, MeasureKind.OFFSET)

    def end(at: tuple[int, int], named: _Named) -> int:
        base, count = bases.get(at, -1), records.get(named, 0)
        return base + count if base >= 0 and count > 0 else -1

    yield from _found("produce", None, response.shape.facts, end)


def _listed(request: OneFrame, response: OneFrame) -> Iterator[FoundOffset]:
    """Yield the ends that the request asked for."""
    if request.shape.facts.number(Fact.ISOLATION_LEVEL) == _READ_COMMITTED:
        return
    asked: dict[_Named, set[int]] = {}
    for measure, value in zip(request.shape.measures, request.values.tolist(), strict=True):
        if measure.kind is MeasureKind.TIMESTAMP:
            topic = request.shape.facts.topics[measure.topic]
            asked.setdefault((topic.name, topic.topic_id, measure.partition), set()).add(value)
    offsets = _values(response, MeasureKind.OFFSET)
    yield from _found(
        "list_offsets",
        None,
        response.shape.facts,
        lambda at, named: offsets.get(at, -1) if asked.get(named) == {_LATEST} else -1,
    )


def _committed(request: OneFrame, response: OneFrame) -> Iterator[FoundOffset]:
    """Yield the committed offsets of the partitions for which the response has no error."""
    if not (group := request.shape.facts.group):
        return
    topics = request.shape.facts.topics
    committed = {
        (topics[index].name, topics[index].topic_id, partition): offset
        for (index, partition), offset in _values(request, MeasureKind.OFFSET).items()
    }
    yield from _found("offset_commit", group, response.shape.facts, lambda _, named: committed.get(named, -1))


def _position_fetched(request: OneFrame, response: OneFrame) -> Iterator[FoundOffset]:
    """Yield the positions of the group that the request names, if it names one. Older responses name none."""
    if not (group := request.shape.facts.group):
        return
    offsets = _values(response, MeasureKind.OFFSET)
    yield from _found("offset_fetch", group, response.shape.facts, lambda at, _: offsets.get(at, -1))


_OF_APIS: dict[ApiKey, Callable[[OneFrame, OneFrame], Iterator[FoundOffset]]] = {
    ApiKey.PRODUCE: _produced,
    ApiKey.LIST_OFFSETS: _listed,
    ApiKey.OFFSET_COMMIT: _committed,
    ApiKey.OFFSET_FETCH: _position_fetched,
}


def _found(
    source: str, group: str | None, response: Facts, offset_of: Callable[[tuple[int, int], _Named], int]
) -> Iterator[FoundOffset]:
    """Yield the offsets of the partitions without an error.

    offset_of: returns the offset by the place in the response, topic and partition, and by name; below 0 for none.
    """
    for index, partition in _without_error(response):
        topic = response.topics[index]
        offset = offset_of((index, partition), (topic.name, topic.topic_id, partition))
        if 0 <= offset <= _MOST_OFFSET and partition >= 0 and (topic.name or topic.topic_id):
            yield FoundOffset(group, topic, partition, offset, source)


def _without_error(response: Facts) -> list[tuple[int, int]]:
    """Return the partitions that a response names without an error, as index of the topic and partition.

    After an error of the whole response there are none. If the response was cut, the last partition may have an error.
    """
    if response.status not in (Status.COMPLETE, Status.TRUNCATED):
        return []
    if sum(times for _, times in response.errors) > sum(len(topic.errors) for topic in response.topics):
        return []
    named = [(index, partition) for index, topic in enumerate(response.topics) for partition in topic.partitions]
    if response.status is Status.TRUNCATED:
        del named[-1:]
    refused = {(index, partition) for index, topic in enumerate(response.topics) for partition, _ in topic.errors}
    return [at for at in dict.fromkeys(named) if at not in refused and (at[0], -1) not in refused]


def _values(frame: OneFrame, kind: MeasureKind) -> dict[tuple[int, int], int]:
    """Return the largest value of a kind by index of the topic and partition. ListOffsets 0 has several of one."""
    values: dict[tuple[int, int], int] = {}
    for measure, value in zip(frame.shape.measures, frame.values.tolist(), strict=True):
        if measure.kind is kind:
            at = measure.topic, measure.partition
            values[at] = max(values.get(at, value), value)
    return values
