"""`groups` gives the lag that Kafka's own tool gives. Rows of an agent's events stand in for a pipeline's tables."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer

from kafka_probe_console.groups_command import groups
from tests.builders.tables import write_rows
from tests.lab.answers import answered
from tests.lab.broker import Broker
from tests.lab.java import SHORT_LIVED, java
from tests.lab.processes import wait_until
from tests.lab.product import Watched
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.usefixtures("clients_end")]

TOPIC, PARTITIONS, FIRST, MORE = "orders", 2, 300, 60
DESCRIBE = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSUME = "org.apache.kafka.tools.consumer.ConsoleConsumer"
Offsets = dict[int, tuple[int, int, int]]
"""Position, end and lag by partition."""


def produce(broker: Broker, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, client_id="writer")
    for number in range(count):
        producer.send(TOPIC, b"x" * 100, partition=number % PARTITIONS)
    producer.flush(timeout=30)
    producer.close(timeout=10)


def consume_by_kafka_python(broker: Broker, group: str, count: int) -> None:
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    for _ in zip(range(count), consumer, strict=False):
        pass
    consumer.commit()
    consumer.close()


def consume_by_librdkafka(broker: Broker, group: str, count: int) -> None:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.subscribe([TOPIC])
    left = count
    while left:
        left -= len(consumer.consume(left, timeout=1))
    consumer.commit(asynchronous=False)
    consumer.close()


def consume_by_java(broker: Broker, group: str, count: int) -> None:
    where = ("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--group", group)
    command = java(CONSUME, *where, "--from-beginning", "--max-messages", str(count), options=SHORT_LIVED)
    subprocess.run(command, timeout=120, check=True, capture_output=True)


def described(broker: Broker, group: str) -> Offsets:
    """Return what Kafka's own tool prints of a group."""
    where = ("--bootstrap-server", broker.bootstrap)
    command = java(DESCRIBE, *where, "--describe", "--group", group, options=SHORT_LIVED)
    ended = subprocess.run(command, timeout=120, check=True, capture_output=True, text=True)
    rows = [line.split() for line in ended.stdout.splitlines() if line.split()[:2] == [group, TOPIC]]
    return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


def write_offsets(directory: Path, events: Iterable[dict[str, Any]]) -> None:
    """Write the rows of `offsets` events as the pipeline does."""

    def time_of(us: int) -> datetime:
        return datetime.fromtimestamp(us / 1e6, UTC)

    for name in ("partition_ends", "group_positions"):
        rows = [
            {
                **entry,
                "seen_ts": time_of(entry["seen"]),
                "ts": time_of(event["ts"]),
                "received_ts": time_of(event["ts"]),
            }
            for event in events
            for entry in event[name]
        ]
        write_rows(directory, name, [{key: row[key] for key in row if key != "seen"} for row in rows])


def test_lag_is_that_of_kafkas_own_tool(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, [TOPIC], partitions=PARTITIONS)
        watched = Watched(tmp_path, broker.port)
        with watched.agent:
            produce(broker, FIRST)
            consume_by_kafka_python(broker, "python", 100)
            consume_by_librdkafka(broker, "librdkafka", FIRST)
            consume_by_java(broker, "java", 150)
            produced_s = time.time()
            produce(broker, MORE)
            expected = {group: described(broker, group) for group in ("python", "librdkafka", "java")}
            lags = {group: sum(lag for _, _, lag in of.values()) for group, of in expected.items()}
            assert lags == {"python": FIRST + MORE - 100, "librdkafka": MORE, "java": FIRST + MORE - 150}

            def found() -> dict[str, Offsets]:
                write_offsets(tmp_path, watched.events(kind="offsets"))
                rows = answered(groups, tmp_path, "--partitions")
                by_group: dict[str, Offsets] = {}
                for row in rows:
                    of = by_group.setdefault(row["group"], {})
                    of[row["partition"]] = row["position"], row["end"], row["lag"]
                return by_group

            wait_until(lambda: found() == expected, "the offsets to be reported", timeout_s=60)
            (row,) = answered(groups, tmp_path, "--group", "librdkafka")
            assert row["lag"] == MORE
            assert row["lag_s"] == pytest.approx(time.time() - produced_s, abs=30)
