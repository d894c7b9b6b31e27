"""Owners in containers are found on every layout of cgroup hierarchies: tests/golden/test_cgroups.py in guests.

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

BACKEND, BUFFER = "kprobe", "ring"
# In the agent's order of preference. Debian's kernels from 6.12 on have no memory controller in v1.
CONTROLLERS = {"6.1": ("memory", "pids"), "newest": ("pids",)}
# A guest starts with cgroup2 alone, none of whose controllers is in use yet.
V1 = """
umount /sys/fs/cgroup
mount -t tmpfs layout /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
for controller in {controllers}; do
    mkdir /sys/fs/cgroup/$controller
    mount -t cgroup -o $controller $controller /sys/fs/cgroup/$controller
done
"""
LAYOUTS = {"v1": V1, "v2": "", "hybrid": f"{V1}mount -t cgroup2 unified /sys/fs/cgroup/unified\n"}


@pytest.mark.parametrize("series", CONTROLLERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_owners_are_found_in_their_containers(layout: str, series: str) -> None:
    found, controllers = kernel(series), CONTROLLERS[series]
    compile_for_guests(found, [BACKEND], [BUFFER], None if layout == "v2" else controllers[0])
    mounts = LAYOUTS[layout].format(controllers=" ".join(controllers))
    script = f"set -e\n{mounts}{SCRIPT.format(port=PORT, arguments=f'cgroups {BACKEND}-{BUFFER}')}"
    job, log = Job({**FILES, "programs": programs(found)}, script), LOGS / f"cgroups-{layout}-{series}.log"
    outcome = run(found, root_disk(), job, log, timeout_s=TIMEOUT_S)
    report = outcome.results.get(f"{BACKEND}-{BUFFER}.json")
    assert report, log.read_text()
    result = json.loads(report)
    assert (result["failures"], outcome.status) == ({}, 0)
    assert [*result["tests"].values()] == ["passed"] * 10
