"""The demo works for a newcomer: one command, and nothing stays behind but its results. Part of `make test-long`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.lab.broker import Broker
from tests.lab.cgroups import mount
from tests.lab.processes import free_port
from tests.lab.topics import create_topics

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]


CLIENT_IDS = {
    f"{library}-{role}" for library in ("kafka-python", "librdkafka", "java") for role in ("producer", "consumer")
}
A_COMMAND = re.compile(r"^(?:Tables: |    )((?:\.venv/bin|nsenter|curl).*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield `make demo KEEP=1` once it has printed everything, and its output."""
    with (tmp_path_factory.mktemp("demo") / "errors").open("w+") as errors:
        command = ["make", "demo", "KEEP=1"]
        demo = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        assert demo.stdout
        try:
            output = ""
            while not output.endswith("Ctrl-C ends.\n"):
                line = demo.stdout.readline()
                assert line, output + errors.read()
                output += line
            errors.seek(0)
            assert errors.read() == ""
            yield demo, output
        finally:
            if demo.poll() is None:
                os.killpg(demo.pid, signal.SIGINT)
            demo.stdout.read()
            demo.stdout.close()
            demo.wait()


def test_one_command_shows_who_talks_to_whom(kept: tuple[subprocess.Popen[str], str]) -> None:
    _, output = kept
    result = json.loads((ROOT / "build" / "demo.json").read_text())
    assert {row["client_id"] for row in result["clients"]} == CLIENT_IDS
    for row in result["clients"]:
        assert row["cgroup"] == f"/kafka-probe-lab/{row['client_id']}"
        assert f"process {row['pid']} in {row['cgroup']}" in output
        assert row["software_name"]
        assert row["software_version"]
        assert row["requests"] > 0
        assert row["bytes"] > 0
        assert row["records"] >= 600
    assert result["losses"]
    assert not any(count for reason, count in result["losses"].items() if reason != "before_proof")
    assert "Lost: nothing" in output
    assert (ROOT / "build" / "demo" / "events.ndjson").stat().st_size
    assert [*(ROOT / "build" / "demo" / "pipeline" / "traffic").glob("date=*/*.parquet")]


def test_what_it_prints_to_try_works_while_the_clients_go_on(kept: tuple[subprocess.Popen[str], str]) -> None:
    show, top, *asked = A_COMMAND.findall(kept[1])
    assert len(asked) == 2
    for command in asked:
        rows = json.loads(output(command))["rows"]
        assert {row["client"]["id"] for row in rows} >= CLIENT_IDS
    assert "middlebox_reset" in output(show)
    with subprocess.Popen(f"exec {top}", shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        found: set[str] = set()
        while not found >= CLIENT_IDS:
            line = watching.stdout.readline()
            assert line, found
            found |= {client_id for client_id in CLIENT_IDS if client_id in line}
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode == 0


def output(command: str) -> str:
    return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout


def test_ctrl_c_stops_all_of_it(kept: tuple[subprocess.Popen[str], str]) -> None:
    demo, _ = kept
    assert demo.stdout
    family = psutil.Process(demo.pid).children(recursive=True)
    assert {Path(cgroup).name for cgroup in cgroups()} >= CLIENT_IDS
    os.killpg(demo.pid, signal.SIGINT)
    assert "Stopping ..." in demo.stdout.read()
    demo.wait(60)
    assert psutil.wait_procs(family, timeout=0)[1] == []
    assert CLIENT_IDS.isdisjoint(Path(cgroup).name for cgroup in cgroups())


def cgroups() -> list[Path]:
    return [*mount().glob("kafka-probe-lab/*")]


def test_an_existing_broker_is_used(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        command = ["make", "demo", f"BOOTSTRAP={broker.bootstrap}"]
        demo = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert (demo.returncode, demo.stderr) == (0, "")
    result = json.loads((ROOT / "build" / "demo.json").read_text())
    assert {row["client_id"] for row in result["clients"]} == CLIENT_IDS
    assert "Lost: nothing" in demo.stdout


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
    """Return the reason why the demo refuses a broker."""
    command = [sys.executable, "-m", "tests.demo"]
    environment = {**os.environ, "BOOTSTRAP": bootstrap}
    demo = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (demo.returncode, demo.stdout) == (1, "")
    return demo.stderr.removeprefix("kafka-probe demo: ")
