"""A broker that follows another reads its topics, and is reported as a broker, not as a consumer.

Part of `make test-long`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.lab.broker import Broker
from tests.lab.http import get
from tests.lab.processes import free_port, wait_until
from tests.lab.product import Agent
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]


def test_who_follows_is_a_broker_at_both_ends_of_its_connections(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Broker(tmp_path / "first") as first, Broker(tmp_path / "second", joins=first) as second:
        create_topics(first.bootstrap, ["orders"], partitions=2, replicas=2)
        ports = f"{first.port},{second.port}"
        with Agent(tmp_path, "--sink", "stdout", "--interval-s", "0.5", "--ports", ports, "--listen", address):
            producer = KafkaProducer(bootstrap_servers=first.bootstrap, client_id="shop", acks="all")
            for number in range(20):
                producer.send("orders", b"one", partition=number % 2).get(timeout=30)
            producer.close()

            def using() -> set[tuple[str, str, str]]:
                rows = get(f"http://{address}/api/v1/clients?topics.topic=orders&limit=1000").json()["rows"]
                return {(row["client"]["id"], row["side"], row["type"]) for row in rows}

            types = {"shop": "producer", "broker-1-fetcher-0": "broker", "broker-2-fetcher-0": "broker"}
            wanted = {(client, side, types[client]) for client in types for side in ("server", "client")}
            wait_until(lambda: using() == wanted, "both brokers to be reported as such")
