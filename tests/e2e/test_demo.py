"""The demo as a newcomer runs it: one command, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

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
