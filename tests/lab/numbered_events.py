"""Configures sinks for numbered events, and reads the numbers back from a topic."""

from __future__ import annotations

from typing import Any

import orjson
from kafka import KafkaConsumer, TopicPartition

from kafka_probe.config import Config
from tests.lab.broker import Broker


def read_all(bootstrap: str, topic: str, agent: str = "agent-1") -> list[int]:
    """Return an agent's sequence numbers in the topic, in the order of the partition of its key."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        found: list[int] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    events = [orjson.loads(line) for line in record.value.splitlines()]
                    assert {event["agent_id"].encode() for event in events} == {record.key}
                    found += [event["seq"] for event in events if event["agent_id"] == agent]
        return found
    finally:
        consumer.close()


def config(broker: Broker, topic: str, **settings: Any) -> Config:
    return Config(bootstrap_servers=broker.bootstrap, topic=topic, node="test", **settings)
