"""`unused` asks a real broker which topics exist; rows stand in for the tables of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from kafka_probe_console.unused_command import unused
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, documented_flags
from tests.lab.broker import Broker

pytestmark = [pytest.mark.broker]

TIME = FirstUse()


def test_topics_that_only_the_broker_knows_are_unused(tmp_path: Path) -> None:
    now, agent = TIME.now, {"node": "broker-1", "agent_id": "b"}
    window = {"window_start": now, "window_end": now, "level": "topic", "side": "server"}
    read = {**window, "topic": "orders", "api": "Fetch", "client_id": "billing", "requests": 1, "record_bytes": 100}
    with Broker(tmp_path / "broker") as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics([NewTopic("orders", 3, 1), NewTopic("audit", 2, 1)], wait_for_metadata=True)
        admin.close()
        write_rows(tmp_path, "traffic", [read])
        month = (TIME.ago(days=29, minutes=-minute) for minute in range(0, 29 * 24 * 60, 60))
        write_rows(tmp_path, "agents", [{**agent, "received_ts": at, "ts": at} for at in (*month, now)])
        ends = [end("server", "01", "billing", now, local=f"127.0.0.1:{broker.port}", **agent)]
        write_rows(tmp_path, "opens", ends)
        for flags in documented_flags("unused", "README.md", "docs/guide/answers.md"):
            (found,) = answered(unused, tmp_path, *(flag.replace("kafka-1:9092", broker.bootstrap) for flag in flags))
            assert (found["topic"], found["state"], found["partitions"]) == ("audit", "unused", 2)
        write_rows(tmp_path, "opens", [{**ends[0], "local": f"127.0.0.2:{broker.port}"}])
        (found,) = answered(unused, tmp_path, "--bootstrap-servers", broker.bootstrap)
        assert (found["state"], found["reason"]) == ("not known", f"no agent watches the broker at {broker.bootstrap}")
