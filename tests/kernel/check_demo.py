"""The demo shows clients in a guest on Debian 12's own kernel; its broker and its pipeline are outside.

Part of `make test-kernels`, not of `make test`: emulated, what runs on Java takes its time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.demo import tables
from tests.demo.__main__ import RATE, RECORDS
from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import LOGS, ROOT
from tests.kernel.outside import TAP, give_to_guest
from tests.kernel.root import root_disk
from tests.lab.broker import Broker
from tests.lab.clients import Client, RunningClient, clients, topics
from tests.lab.network import nat
from tests.lab.processes import LabError
from tests.lab.product import report, run_pipeline

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]

SERIES = "6.1"
MEMORY_MB = 6144
PROGRAM = "tests/kernel/demo_clients.py"
FILES = {name: ROOT / name for name in ("agent", "bpf", "pipeline", "tests/demo", "tests/lab", PROGRAM, "build/jars")}
SCRIPT = """
export HOME=/root PATH={java}:/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:pipeline:. PATIENCE=20
export JDK_JAVA_OPTIONS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
export KAFKA_PROBE_PIPELINE_KAFKA_OPTION='{{"default.api.timeout.ms": "200000"}}'
echo localhost >/proc/sys/kernel/hostname
{network}
python3 -m tests.kernel.demo_clients {bootstrap} /results/clients.json
status=$?
[ $status = 0 ] || tail -n 20 build/demo/*.log
exit $status
"""
CLIENTS = {
    f"{library}-{role}" for library in ("kafka-python", "librdkafka", "java") for role in ("producer", "consumer")
}


def test_the_demo_shows_all_clients_on_debian_12(tmp_path: Path) -> None:
    java, package = java_runtime()
    disk, found = root_disk("demo", debian=[package], python=["kafka-probe[demo]"]), kernel(SERIES)
    with nat(clients=1) as network, network.broker.inside(), Broker(tmp_path, host=network.broker.address) as broker:
        (client,) = network.clients
        script = SCRIPT.format(java=java.parent, network=give_to_guest(client), bootstrap=broker.bootstrap)
        with client.inside():
            job, log = Job(FILES, script), LOGS / "demo.log"
            outcome = run(found, disk, job, log, timeout_s=1800, tap=TAP, memory_mb=MEMORY_MB)
        assert outcome.status == 0, log.read_text()
        run_pipeline(broker.bootstrap, tmp_path / "pipeline")
        seen = report(broker.bootstrap)
    of_guest = json.loads(outcome.results["clients.json"])
    lab = clients(broker.bootstrap, tmp_path, records=RECORDS, rate=RATE)
    started = [as_started(one, **of_guest[one.client_id]) for one in lab]
    lines = tables.traffic(seen, topics(lab))
    assert {line["client_id"] for line in lines} == CLIENTS
    assert tables.missing_traffic(lines, started, RECORDS) == []
    assert seen.losses
    assert not any(seen.losses.values())


def as_started(client: Client, *, pid: int, cgroup: str, **own: str) -> RunningClient:
    """Return a client that has run in the guest. own: fields of Client that differ there."""
    process = SimpleNamespace(pid=pid)
    return RunningClient(replace(client, **own), process, cgroup, LOGS)  # type: ignore[arg-type]  # it was in the guest


def java_runtime() -> tuple[Path, str]:
    """Return this machine's `java`, and its Debian package."""
    if not (java := shutil.which("java")):
        raise LabError("java is missing: install default-jre-headless")
    program = Path(java).resolve()
    owner = subprocess.run(["dpkg-query", "--search", program], capture_output=True, text=True)
    if owner.returncode:
        raise LabError(f"{program} is of no Debian package: install default-jre-headless")
    return program, owner.stdout.partition(":")[0]
