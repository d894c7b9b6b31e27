"""Runs a producer or a consumer of kafka-python that ends after a number of records.

It writes its own count of what it sent or received to a JSON file: {topic: {"records": n, "bytes": n or null}}.
"""

from __future__ import annotations

import json
from collections import Counter

from kafka import KafkaConsumer, KafkaProducer
from kafka.metrics.stats import Total
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from kafka_probe.protocol.api_keys import ApiKey
from tests.lab.client_arguments import Arguments, paced, parse


def produce(arguments: Arguments) -> dict[str, dict[str, int | None]]:
    """Send `records` records to each topic; bytes are the record sets as the library's own metric counts them."""
    producer = KafkaProducer(
        bootstrap_servers=arguments.bootstrap,
        client_id=arguments.client_id,
        linger_ms=20,
        compression_type="gzip",
        **arguments.settings,
    )
    totals = {topic: Total() for topic in arguments.topics}
    metrics = producer._metrics  # its public form has rates only
    for topic, total in totals.items():
        metrics.sensor(f"topic.{topic}.bytes").add(metrics.metric_name("byte-total", f"lab.{topic}"), total)
    sent: Counter[str] = Counter()
    for number in paced(arguments):
        for topic in arguments.topics:
            producer.send(topic, key=b"%d" % number, value=b"order %d from kafka-python" % number)
            sent[topic] += 1
    producer.flush()
    bytes_sent = {topic: int(total.measure(None, 0)) for topic, total in totals.items()}
    producer.close()
    return {topic: {"records": sent[topic], "bytes": bytes_sent[topic]} for topic in arguments.topics}


def consume(arguments: Arguments) -> dict[str, dict[str, int | None]]:
    """Receive `records` records of each topic from the start on, as a member of a group."""
    consumer = KafkaConsumer(
        *arguments.topics,
        bootstrap_servers=arguments.bootstrap,
        client_id=arguments.client_id,
        group_id=arguments.group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=arguments.patience_s * 1000,
        **arguments.settings,
    )
    received: Counter[str] = Counter()
    for record in consumer:
        received[record.topic] += 1
        if received.total() == arguments.records * len(arguments.topics):
            break
    consumer.close()
    return {topic: {"records": received[topic], "bytes": None} for topic in arguments.topics}


def limit_versions(release: str, limits: str) -> None:
    """Make the library use lower versions of some APIs than a release has. `limits`: such as Produce:4,Fetch:9."""
    versions = BROKER_API_VERSIONS[tuple(map(int, release.split(".")))]
    for api, _, version in (limit.partition(":") for limit in limits.split(",")):
        versions[ApiKey[api.upper()]] = (0, int(version))


if __name__ == "__main__":
    arguments = parse()
    if limits := arguments.settings.pop("limits", None):
        limit_versions(str(arguments.settings["api_version"]), str(limits))
    report = produce(arguments) if arguments.role == "produce" else consume(arguments)
    arguments.report.write_text(json.dumps(report))
