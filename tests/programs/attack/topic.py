"""Reads a topic of gigabytes with librdkafka: kafka-python would take minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

_TIMEOUT_S = 30


def values(bootstrap: str, topic: str) -> Iterator[bytes]:
    """Yield the values of all records that are in the topic now."""
    with closing(_consumer(bootstrap)) as consumer:
        yield from _from(consumer, topic, {number: low for number, (low, _) in _offsets(consumer, topic).items()})


def last_values(bootstrap: str, topic: str) -> Iterator[bytes]:
    """Yield the value of the last record of each partition."""
    with closing(_consumer(bootstrap)) as consumer:
        yield from _from(consumer, topic, {number: high - 1 for number, (_, high) in _offsets(consumer, topic).items()})


def _consumer(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "lab", "enable.auto.commit": False})


def _offsets(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first offset of each non-empty partition, and the offset after its last record."""
    partitions = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
    each = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), _TIMEOUT_S) for number in partitions}
    return {number: (low, high) for number, (low, high) in each.items() if high > low}


def _from(consumer: Consumer, topic: str, starts: Mapping[int, int]) -> Iterator[bytes]:
    """Yield the values from these offsets to the current last ones."""
    ends = {number: high for number, (_, high) in _offsets(consumer, topic).items() if number in starts}
    consumer.assign([TopicPartition(topic, number, starts[number]) for number in ends])
    while ends:
        message = consumer.poll(_TIMEOUT_S)
        if message is None or message.error():
            raise KafkaException(message.error() if message else f"no more of {topic}")
        number, offset, value = message.partition(), message.offset(), message.value()
        if number in ends and value is not None:
            yield value
        if number in ends and offset is not None and offset + 1 >= ends[number]:
            del ends[number]
