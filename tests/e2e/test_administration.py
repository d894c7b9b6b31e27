"""Real tools change a real broker: each change is an event without `--requests`, and nothing else is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from tests.lab.broker import Broker
from tests.lab.java import java
from tests.lab.product import Watched

pytestmark = [pytest.mark.root, pytest.mark.broker]

CHANGES: list[tuple[str, dict[str, int], list[str]]] = [
    ("CreateTopics", {}, ["orders"]),
    ("CreateTopics", {"TOPIC_ALREADY_EXISTS": 1}, ["orders"]),
    ("IncrementalAlterConfigs", {}, []),
    ("DeleteTopics", {}, ["orders"]),
]


def test_changes_by_tools_of_two_families_are_events_with_their_results(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        watched = Watched(tmp_path, broker.port, "--side", "client")
        with watched.agent:
            admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id="python-admin")
            admin.create_topics([NewTopic("orders", 1, 1)])
            admin.list_topics()
            for tool, *flags in (
                ("org.apache.kafka.tools.TopicCommand", "--create", "--topic", "orders"),
                ("kafka.admin.ConfigCommand", "--alter", "--topic", "orders", "--add-config", "retention.ms=60000"),
            ):
                subprocess.run(java(tool, "--bootstrap-server", broker.bootstrap, *flags), timeout=120, check=False)
            admin.delete_topics(["orders"])
            admin.close()
            found = watched.wait_for(len(CHANGES), "the changes to be reported", kind="request")
        assert len(watched.events(kind="request")) == len(CHANGES)
    changes = [(one["api"], one["error_names"], sorted({row["topic"] for row in one["topics"]})) for one in found]
    assert changes == CHANGES
    assert [one["workload"]["comm"] == "java" for one in found] == [False, True, True, False]
    assert found[0]["client"]["id"] == "python-admin"
