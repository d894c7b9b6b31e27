"""Sends generated events to the events topic as agents do, and reads the alerts topic."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from kafka_probe.events import Event
from kafka_probe.sinks.batch import RECORD_BYTES, batches
from kafka_probe.sinks.outbox import encode
from tests.lab.processes import LabError
from tests.lab.product import ALERTS, EVENTS
from tests.lab.topics import create_topics

_PARTITIONS = 4  # as many as agents and the job create
_TIMES_OF_BROKER = {"message.timestamp.type": "LogAppendTime"}
_LINES = 1_000  # of an agent, before they become records
_FLUSH_S = 120.0
_SILENT = 0  # librdkafka reports when the broker stops


class Feed:
    """Sends events: lines of JSON, many per record, keyed by agent, zstd.

    It creates both topics with the broker's times, so that an alert's time is that of its arrival.
    """

    def __init__(self, bootstrap: str) -> None:
        create_topics(bootstrap, [EVENTS, ALERTS], partitions=_PARTITIONS, settings=_TIMES_OF_BROKER)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "zstd",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "log_level": _SILENT,
            }
        )
        self._ends: dict[int, int] = {}

    @property
    def ends(self) -> Mapping[int, int]:
        """Return by partition the offset after the last record that was sent."""
        return self._ends

    def send(self, events: Iterable[Event]) -> int:
        """Send events; return their number when the broker has them.

        Raises:
            LabError: the broker refused them, or does not have them after two minutes.
        """
        count = 0
        waiting: dict[str, list[bytes]] = defaultdict(list)
        for event in events:
            count += 1
            lines = waiting[event["agent_id"]]
            lines.append(encode(event))
            if len(lines) == _LINES:
                self._produce(event["agent_id"], waiting.pop(event["agent_id"]))
        for agent_id, lines in waiting.items():
            self._produce(agent_id, lines)
        if self._producer.flush(_FLUSH_S):
            raise LabError(f"the broker does not have all events after {_FLUSH_S:g} s")
        return count

    def _produce(self, agent_id: str, lines: list[bytes]) -> None:
        for batch in batches(lines, RECORD_BYTES):
            while True:
                try:
                    self._producer.produce(EVENTS, batch.lines, agent_id, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise LabError(f"the broker refused events: {error.str()}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._ends[partition] = max(self._ends.get(partition, 0), offset + 1)


class Alerts:
    """The alerts topic from its start."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-pipeline",
                "enable.auto.commit": False,
                "log_level": _SILENT,
            }
        )
        self._consumer.assign([TopicPartition(ALERTS, number, 0) for number in range(_PARTITIONS)])
        self._received: list[tuple[float, bytes]] = []

    def arrived_s(self, name: str) -> float | None:
        """Return the arrival time of the first alert that contains a name, seconds since epoch; None: not yet."""
        self._received += self._new()
        return min((at_s for at_s, value in self._received if name.encode() in value), default=None)

    def ids(self, kind: str, since_s: float) -> set[str]:
        """Return the ids of storms of a kind that an alert opened since a time, in seconds since epoch."""
        self._received += self._new()
        alerts = [json.loads(value) for at_s, value in self._received if at_s >= since_s]
        return {alert["id"] for alert in alerts if alert["kind"] == kind and alert["change"] == "opened"}

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _new(self) -> Iterator[tuple[float, bytes]]:
        until = time.monotonic() + 0.1  # a new consumer connects first
        while (message := self._consumer.poll(max(0.0, until - time.monotonic()))) is not None:
            if error := message.error():
                raise LabError(f"the broker does not return alerts: {error.str()}")
            yield message.timestamp()[1] / 1000, message.value() or b""
