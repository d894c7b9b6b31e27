"""Drives features of modern clients: each function holds one conversation and returns its own counts.

Clients of Python run in the caller's process, Kafka's Java tools in their own. Records are counted by client and topic.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from tests.lab.clients import counts_of_java
from tests.lab.java import SHORT_LIVED, java
from tests.lab.processes import LabError, start, stop, tail, wait_until
from tests.lab.topics import create_topics

Counts = dict[tuple[str, str], int]
_TIMEOUT_S = 60


@contextmanager
def early(bootstrap: str, topic: str, directory: Path) -> Iterator[None]:
    """Run a producer and a consumer that name the topic by its id only, for longer than the block."""
    flags = ("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "100000", "--payload-monotonic")
    pace = ("--throughput", "20", "--command-property", "client.id=early-producer")
    consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": "early-consumer", "group.id": "early"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    with _tool(directory / "early", "ProducerPerformance", *flags, *pace):
        if not consumer.consume(2, _TIMEOUT_S):
            raise LabError(f"nobody writes to {topic}:\n{tail(directory / 'early.log')}")
        yield
    consumer.close()


def write_to_many(bootstrap: str, topics: Sequence[str], partitions: int, rounds: int) -> Counts:
    """Write a record to every partition of every topic in each round, with two producers, to one broker."""
    python = KafkaProducer(bootstrap_servers=bootstrap, client_id="many-python", linger_ms=50)
    librdkafka = Producer({"bootstrap.servers": bootstrap, "client.id": "many-librdkafka", "linger.ms": 50})
    for number in range(rounds):
        for topic in topics:
            for partition in range(partitions):
                python.send(topic, b"round %d" % number, partition=partition)
                librdkafka.produce(topic, b"round %d" % number, partition=partition)
        python.flush()
        librdkafka.flush()
    python.close()
    return {(client, topic): rounds * partitions for client in ("many-python", "many-librdkafka") for topic in topics}


def idle(bootstrap: str, topic: str, polls: int) -> Counts:
    """Let a consumer poll without result `polls` times, lose its fetch session, make a new one, and receive a record.

    Another connection closes its session: the broker finds sessions by their id, for any client.
    """
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        client_id="idle",
        group_id="idlers",
        fetch_max_wait_ms=5,
        max_poll_records=10,
    )

    def session() -> tuple[int, int]:
        handlers = consumer._fetcher._session_handlers.values()
        return next(((each.next_metadata.session_id, each.next_metadata.epoch) for each in handlers), (0, 0))

    def poll_until_epoch(epoch: int, *, of_session_other_than: int = 0) -> int:
        def there() -> bool:
            assert not consumer.poll(timeout_ms=20)
            return session()[0] != of_session_other_than and session()[1] >= epoch

        wait_until(there, f"fetch number {epoch} of a session", timeout_s=_TIMEOUT_S, every_s=0)
        return session()[0]

    with closing(consumer):
        first = poll_until_epoch(polls)
        _close_session(bootstrap, first)
        poll_until_epoch(2, of_session_other_than=first)
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="waker")
        producer.send(topic, b"wake up").get(timeout=_TIMEOUT_S)
        producer.close()
        received = Counter(("idle", record.topic) for record in [next(consumer)])
    return {**received, ("waker", topic): 1}


def reborn(bootstrap: str, topic: str, records: int) -> Counts:
    """Write and read a topic, delete it, and do the same with a new topic of the same name."""
    counts: Counter[tuple[str, str]] = Counter()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="reborn-admin")
    for life in range(2):
        create_topics(bootstrap, [topic], partitions=1)
        producer = Producer({"bootstrap.servers": bootstrap, "client.id": f"reborn-producer-{life}"})
        for _ in range(records):
            producer.produce(topic, b"life %d" % life)
        producer.flush()
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "reborn-consumer",
                "group.id": "reborn",
                "enable.auto.commit": "false",
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        for message in consumer.consume(records, _TIMEOUT_S):
            if error := message.error():
                raise KafkaException(error)
            counts["reborn-consumer", topic] += 1
        consumer.close()
        counts[f"reborn-producer-{life}", topic] += records
        admin.delete_topics([topic])
    admin.close()
    return dict(counts)


def transactions(bootstrap: str, source: str, target: str, records: int, directory: Path) -> Counts:
    """Write records in transactions, read them in a share group and a KIP-848 group, and copy them in transactions."""
    source_flags = ("--bootstrap-server", bootstrap, "--topic", source)
    perf_flags = (*source_flags, "--num-records", str(records), "--print-metrics")
    modern = _tool(
        directory / "modern",
        *("ConsumerPerformance", *perf_flags, "--group", "moderns", "--timeout", "30000"),
        *("--command-property", "client.id=modern", "--command-property", "group.protocol=consumer"),
    )
    sharer = _tool(
        directory / "sharer",
        *("VerifiableShareConsumer", *source_flags, "--group-id", "sharers", "--max-messages", str(records)),
        *("--offset-reset-strategy", "earliest"),
    )
    producer = _tool(
        directory / "transactional",
        *("ProducerPerformance", *perf_flags, "--payload-monotonic", "--throughput", "200"),
        *("--command-property", "client.id=transactional", "--transactional-id", "till"),
        *("--transaction-duration-ms", "300"),
    )
    copier = _tool(
        directory / "copier",
        *("TransactionalMessageCopier", "--broker-list", bootstrap, "--input-topic", source, "--input-partition", "0"),
        *("--output-topic", target, "--transactional-id", "copier", "--consumer-group", "copiers"),
        *("--transaction-size", "50", "--max-messages", str(records)),
    )
    with modern as read, sharer as shared:
        with producer as written:
            # its metrics count what it sends again, the last of these lines does not
            sent = max(int(count) for count in re.findall(r"^(\d+) records sent", written(), re.MULTILINE))
        with copier as copied:
            processed = [each["totalProcessed"] for each in _json_lines(copied()) if "totalProcessed" in each]
        consumed = [each["count"] for each in _json_lines(shared()) if each["name"] == "records_consumed"]
        received = counts_of_java(read())
    return {
        ("transactional", source): sent,
        ("modern", source): received[source].records,
        ("consumer-sharers-1", source): sum(consumed),
        ("producer-copier", target): max(processed),
    }


@contextmanager
def _tool(report: Path, name: str, *arguments: str) -> Iterator[Callable[[], str]]:
    """Run a tool of Kafka's; call the result to wait for its end and get its output."""
    report.unlink(missing_ok=True)
    log = report.with_suffix(".log")
    process = start(java(f"org.apache.kafka.tools.{name}", *arguments, options=SHORT_LIVED), log=log, stdout=report)

    def output() -> str:
        try:
            status = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise LabError(f"{name} still runs after {_TIMEOUT_S} s:\n{tail(log)}") from None
        if status:
            raise LabError(f"{name} ended with status {status}:\n{tail(log)}")
        return report.read_text()

    try:
        yield output
    finally:
        stop(process)


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _close_session(bootstrap: str, session_id: int) -> None:
    """Send an empty Fetch v12 with the epoch that ends a session (KIP-227)."""
    body = struct.pack(">iiiibiiBBBB", -1, 0, 0, 1 << 20, 0, session_id, -1, 1, 1, 1, 0)
    request = struct.pack(">hhih6sB", 1, 12, 1, 6, b"closer", 0) + body
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        assert connection.makefile("rb").read(4), "the broker answers"
