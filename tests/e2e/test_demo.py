"""The demo as a newcomer runs it: one command, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.broker import Broker
from tests.lab.processes import free_port
from tests.lab.topics import create_topics

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]


def test_one_command_shows_who_talks_to_whom() -> None:
    demo = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=480, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    result = json.loads((ROOT / "build" / "demo.json").read_text())
    assert {row["client_id"] for row in result["clients"]} == {
        f"{library}-{role}" for library in ("kafka-python", "librdkafka", "java") for role in ("producer", "consumer")
    }
    for row in result["clients"]:
        assert row["cgroup"] == f"/kafka-probe-lab/{row['client_id']}"
        assert f"process {row['pid']} in {row['cgroup']}" in demo.stdout
        assert row["software_name"]
        assert row["software_version"]
        assert row["requests"] > 0
        assert row["bytes"] > 0
        assert row["records"] >= 600
    assert result["losses"]
    assert not any(result["losses"].values())
    assert "Lost: nothing" in demo.stdout
    assert (ROOT / "build" / "demo" / "events.ndjson").stat().st_size
    assert [*(ROOT / "build" / "demo" / "pipeline" / "traffic").glob("batch_id=*/*.parquet")]


def test_a_broker_that_has_seen_a_demo_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        create_topics(broker.bootstrap, ["clicks"], partitions=1)
        assert refusal(broker.bootstrap) == (
            f"{broker.bootstrap} has clicks already: take another broker, or delete what an earlier demo left\n"
        )


def test_a_broker_that_is_not_there_is_named() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    assert refusal(nowhere) == f"there is no broker at {nowhere}: BOOTSTRAP is the host:port of one\n"
    assert refusal("kafka-1") == "there is no broker at kafka-1: BOOTSTRAP is the host:port of one\n"


def refusal(bootstrap: str) -> str:
    """Why the demo does not take a broker."""
    command = [sys.executable, "-m", "tests.lab.demo"]
    environment = {**os.environ, "BOOTSTRAP": bootstrap}
    demo = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (demo.returncode, demo.stdout) == (1, "")
    return demo.stderr.removeprefix("kafka-probe demo: ")
