"""Runs a producer or a consumer of librdkafka (confluent-kafka) that ends after a number of records.

It writes its own count of what it sent or received to a JSON file: {topic: {"records": n, "bytes": n or null}}.
"""

from __future__ import annotations

import json
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tests.lab.client_arguments import Arguments, paced, parse


def produce(arguments: Arguments) -> dict[str, dict[str, int | None]]:
    """Send `records` records to each topic and count the delivered ones."""
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "client.id": arguments.client_id,
            "compression.type": "lz4",
            **arguments.settings,
        }
    )
    delivered: Counter[str] = Counter()

    def count(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        delivered[str(message.topic())] += 1

    for number in paced(arguments):
        for topic in arguments.topics:
            producer.produce(topic, key=b"%d" % number, value=b"payment %d" % number, on_delivery=count)
        producer.poll(0)
    producer.flush()
    return {topic: {"records": delivered[topic], "bytes": None} for topic in arguments.topics}


def consume(arguments: Arguments) -> dict[str, dict[str, int | None]]:
    """Receive `records` records of each topic from the start on, as a member of a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "client.id": arguments.client_id,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
            **arguments.settings,
        }
    )
    consumer.subscribe(list(arguments.topics))
    received: Counter[str] = Counter()
    deadline = time.monotonic() + arguments.patience_s
    while received.total() < arguments.records * len(arguments.topics) and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if error := message.error():
            raise KafkaException(error)
        received[str(message.topic())] += 1
        deadline = time.monotonic() + arguments.patience_s
    consumer.close()
    return {topic: {"records": received[topic], "bytes": None} for topic in arguments.topics}


if __name__ == "__main__":
    arguments = parse()
    report = produce(arguments) if arguments.role == "produce" else consume(arguments)
    arguments.report.write_text(json.dumps(report))
