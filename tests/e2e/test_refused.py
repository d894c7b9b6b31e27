"""A real broker refuses a Produce with acks=0 by closing the connection: its records count as refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.lab.broker import Broker
from tests.lab.processes import wait_until
from tests.lab.product import Watched
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

TOPIC, LARGE = "orders", 100_000


def sums(flows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return records and refused records of Produce requests by side."""
    by_side = {"client": Counter[str](), "server": Counter[str]()}
    for flow in flows:
        if flow["api"] == "Produce":
            for topic in flow["topics"]:
                assert topic["topic"] == TOPIC
                for name in ("records", "refused_records"):
                    by_side[flow["side"]][name] += topic.get(name, 0)
    return by_side


def test_the_request_for_which_a_broker_closes_is_refused_and_no_other(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, [TOPIC], partitions=1, settings={"max.message.bytes": str(LARGE)})
        watched = Watched(tmp_path, broker.port)
        with watched.agent:
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks=0, client_id="careless")
            for size in (10, 10, 2 * LARGE):
                producer.send(TOPIC, bytes(size))
                producer.flush(timeout=30)
            expected = {side: Counter(records=3, refused_records=1) for side in ("client", "server")}
            wait_until(lambda: sums(watched.events(kind="flow")) == expected, "the refusal to be reported")
            producer.close(timeout=10)
        assert sums(watched.events(kind="flow")) == expected
