"""Topic names come from a real broker's files alone: no client requests metadata."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from kafka import KafkaAdminClient

from kafka_probe.workloads import Owner, WorkloadResolver
from tests.lab.broker import Broker
from tests.lab.processes import wait_until
from tests.lab.topics import create_topics

pytestmark = pytest.mark.broker

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
RESOLVER = WorkloadResolver()


def stored(broker: Broker) -> dict[str, str]:
    """Return the names of the permanent topics by id."""
    ticks = int(Path(f"/proc/{broker.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    process = RESOLVER.resolve(Owner(broker.pid, ticks * NS_PER_TICK, b"java", 0, 0, 0, 0, b"")).process
    assert process
    topics = RESOLVER.stored_topics(*process)
    return {topic.topic_id: topic.name for topic in topics if topic and not topic.gone and topic.name[0] != "_"}


def named_by_broker(admin: KafkaAdminClient) -> dict[str, str]:
    """Return the names of topics by id, as the broker describes them."""
    return {UUID(topic["topic_id"]).hex: topic["name"] for topic in admin.describe_topics()}


def test_idle_topics_and_one_made_anew_have_their_names_and_ids(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        create_topics(broker.bootstrap, ["orders", "sales.eu-1", "idle"], partitions=3)
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        try:
            described = named_by_broker(admin)
            wait_until(lambda: stored(broker) == described, "the broker's files to name its topics")
            admin.delete_topics(["orders"])
            create_topics(broker.bootstrap, ["orders"], partitions=1)
            anew = named_by_broker(admin)
        finally:
            admin.close()
        assert anew.keys() - described.keys()
        wait_until(lambda: stored(broker) == anew, "the files to name the topic that was made anew")
