"""The demo shows clients in a guest on Debian 12's own kernel; its broker and its pipeline are outside.

Part of `make test-kernels`, not of `make test`: Java is slow in an emulated machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import LOGS, ROOT
from tests.kernel.outside import TAP, give_to_guest
from tests.kernel.root import root_disk
from tests.lab.broker import Broker
from tests.lab.network import nat
from tests.lab.processes import LabError

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]

SERIES = "6.1"
MEMORY_MB = 6144
FILES = {name: ROOT / name for name in ("agent", "bpf", "pipeline", "tests/demo", "tests/lab", "build/jars")}
SCRIPT = """
export HOME=/root PATH={java}:/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:pipeline:. PATIENCE=20
export JDK_JAVA_OPTIONS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
echo localhost >/proc/sys/kernel/hostname
{network}
python3 -m tests.demo.in_parts clients {bootstrap} /results/clients.json
status=$?
[ $status = 0 ] || tail -n 20 build/demo/*.log
exit $status
"""


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
        known = tmp_path / "clients.json"
        known.write_bytes(outcome.results[known.name])
        command = [sys.executable, "-m", "tests.demo.in_parts", "pipeline", broker.bootstrap, str(known)]
        summed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert (summed.returncode, summed.stderr) == (0, "")
    assert "Lost: nothing" in summed.stdout


def java_runtime() -> tuple[Path, str]:
    """Return this machine's `java`, and its Debian package."""
    if not (java := shutil.which("java")):
        raise LabError("java is missing: install default-jre-headless")
    program = Path(java).resolve()
    owner = subprocess.run(["dpkg-query", "--search", program], capture_output=True, text=True)
    if owner.returncode:
        raise LabError(f"{program} is of no Debian package: install default-jre-headless")
    return program, owner.stdout.partition(":")[0]
