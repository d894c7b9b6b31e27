"""Runs producers of kafka-python; see the package's docstring for their arguments."""

from __future__ import annotations

from kafka import KafkaProducer

from tests.lab.producers.orders import Settings, obey

DELIVERY_S = 60


class _Producer:
    def __init__(self, topic: str, settings: Settings) -> None:
        self._topic = topic
        self._producer = KafkaProducer(**{name.replace(".", "_"): value for name, value in settings.items()})

    def send(self, value: bytes) -> None:
        self._producer.send(self._topic, value).get(DELIVERY_S)

    def close(self) -> None:
        self._producer.close()


if __name__ == "__main__":
    obey(_Producer)
