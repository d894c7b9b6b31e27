"""Creates topics, makes a broker create its own, and reads topics from start to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

_TIMEOUT_MS = 60_000


def create_topics(
    bootstrap: str,
    names: Sequence[str],
    *,
    partitions: int,
    replicas: int = 1,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Create topics; return when they can be used."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="lab")
    try:
        admin.create_topics([NewTopic(name, partitions, replicas, topic_configs=settings) for name in names])
        admin.wait_for_topics(names, timeout_ms=_TIMEOUT_MS)
    finally:
        admin.close()


def warm_up(bootstrap: str) -> None:
    """Make the broker create its own topics and reserve a block of producer ids, which it does once.

    It sends requests to its controller for that, and JMX counts them like those of clients.
    """
    create_topics(bootstrap, ["warm-up"], partitions=1)
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="warm-up")
    producer.send("warm-up", b"one").get(timeout=10)
    producer.close()
    consumer = KafkaConsumer(
        "warm-up", bootstrap_servers=bootstrap, client_id="warm-up", group_id="warm-up", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"one"
    consumer.close()


def existing(bootstrap: str, names: Iterable[str]) -> list[str]:
    """Return the topics among these that exist."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="lab")
    try:
        return sorted({*names}.intersection(admin.list_topics()))
    finally:
        admin.close()


def read_topic(bootstrap: str, topic: str) -> Iterator[tuple[bytes | None, bytes]]:
    """Return key and value of every record that is in the topic now, partition by partition."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, client_id="lab", enable_auto_commit=False)
    try:
        for number in sorted(consumer.partitions_for_topic(topic) or ()):
            partition = TopicPartition(topic, number)
            end = consumer.end_offsets([partition])[partition]
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            while consumer.position(partition) < end:
                for records in consumer.poll(timeout_ms=1000).values():
                    yield from ((record.key, record.value) for record in records)
    finally:
        consumer.close()
