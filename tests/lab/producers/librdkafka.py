"""Runs producers of librdkafka (confluent-kafka); see the package's docstring for their arguments."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.lab.producers.orders import Settings, obey


class _Producer:
    def __init__(self, topic: str, settings: Settings) -> None:
        self._topic = topic
        self._producer = Producer(settings)

    def send(self, value: bytes) -> None:
        self._producer.produce(self._topic, value, on_delivery=_delivered)
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


if __name__ == "__main__":
    obey(_Producer)
