"""Owners in containers, on every layout of cgroup hierarchies: tests/golden/test_cgroups.py in guests.

Part of `make test-kernels`, not of `make test`, which runs it on the host's own layout only.
"""

from __future__ import annotations

import json

import pytest

from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import FILES, LOGS, PORT, SCRIPT, TIMEOUT_S, compile_for_guests, programs
from tests.kernel.root import root_disk

pytestmark = pytest.mark.root

SERIES = "6.1"
BACKEND, BUFFER = "kprobe", "ring"
# A guest starts with cgroup2 alone, which has no controller in use yet.
V1 = """
umount /sys/fs/cgroup
mount -t tmpfs layout /sys/fs/cgroup
mkdir /sys/fs/cgroup/memory /sys/fs/cgroup/pids /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
mount -t cgroup -o memory memory /sys/fs/cgroup/memory
mount -t cgroup -o pids pids /sys/fs/cgroup/pids
mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
"""
LAYOUTS = {"v1": V1, "v2": "", "hybrid": f"{V1}mount -t cgroup2 unified /sys/fs/cgroup/unified\n"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_owners_are_found_in_their_containers(layout: str) -> None:
    found = kernel(SERIES)
    compile_for_guests(found, [BACKEND], [BUFFER], None if layout == "v2" else "memory")
    script = f"set -e\n{LAYOUTS[layout]}{SCRIPT.format(port=PORT, arguments=f'cgroups {BACKEND}-{BUFFER}')}"
    job, log = Job({**FILES, "programs": programs(found)}, script), LOGS / f"cgroups-{layout}.log"
    outcome = run(found, root_disk(), job, log, timeout_s=TIMEOUT_S)
    report = outcome.results.get(f"{BACKEND}-{BUFFER}.json")
    assert report, log.read_text()
    said = json.loads(report)
    assert (said["failures"], outcome.status) == ({}, 0)
    assert len(said["tests"]) == 10
