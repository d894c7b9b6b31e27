"""An owner is reported in its own container, with every hierarchy that engines use, also after it has exited.

`make test` runs this on the host's layout of hierarchies; tests/kernel/check_cgroups.py runs it on all layouts.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_probe.workloads import WorkloadResolver
from tests.builders.wire import METADATA, request
from tests.lab.capture import Capture
from tests.lab.conversation import receive_all
from tests.lab.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.cgroups]

FRAME = request(METADATA, 12, 1)
CLIENT = """
import socket, sys
sys.stdin.readline()
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(bytes.fromhex(sys.argv[2]))
sys.stdin.read()
"""
CONTAINER_ID = secrets.token_hex(32)
# Docker's, and others' that make containers in v1 only: what they start stays in their own service's cgroup of v2.
CONTAINER, ENGINE = f"/docker-{secrets.token_hex(4)}/{CONTAINER_ID}", "/containerd.service"
V1_OPTIONS = {"memory", "pids", "name=systemd"}

Put = Callable[[int, Path, str], None]


@pytest.fixture
def put() -> Iterator[Put]:
    """Put a process into a cgroup, which is removed when the process has ended."""
    made: list[Path] = []

    def put(pid: int, mount_point: Path, path: str) -> None:
        cgroup = mount_point / path[1:]
        made.extend(folder for folder in (cgroup, *cgroup.parents) if not folder.exists())
        cgroup.mkdir(parents=True, exist_ok=True)
        (cgroup / "cgroup.procs").write_text(str(pid))

    yield put
    wait_until(lambda: not any((cgroup / "cgroup.procs").read_text() for cgroup in made), "the cgroups to be empty")
    for cgroup in made:
        cgroup.rmdir()


def mount_points(kind: str) -> list[Path]:
    """Return the mounts of the hierarchies: of cgroup2, or of v1 (kind cgroup) those that engines use."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [
        Path(mount[1])
        for mount in mounts
        if mount[2] == kind and (kind == "cgroup2" or not V1_OPTIONS.isdisjoint(mount[3].split(",")))
    ]


@contextmanager
def client(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that connects and sends a request on command, and ends with its input."""
    command = [sys.executable, "-c", CLIENT, str(port), FRAME.wire.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as process:
        yield process


def paths(pid: int) -> set[str]:
    """Return the cgroups of a process from the kernel."""
    return {line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}


@pytest.mark.parametrize("living", [True, False], ids=["living", "ended"])
@pytest.mark.parametrize(
    ("in_v1", "in_v2"),
    [(CONTAINER, CONTAINER), (CONTAINER, ENGINE), (CONTAINER, "/"), ("/", CONTAINER), ("/", "/")],
    ids=["everywhere", "v1-only", "v1-and-root", "v2-only", "nowhere"],
)
def test_an_owner_is_found_in_its_container(
    capture: Capture, port: int, put: Put, in_v1: str, in_v2: str, living: bool
) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener, client(port) as process:
        assert process.stdin
        for kind, path in (("cgroup", in_v1), ("cgroup2", in_v2)):
            for mount_point in mount_points(kind):
                put(process.pid, mount_point, path)
        own = paths(process.pid)
        placed = {path for kind, path in (("cgroup", in_v1), ("cgroup2", in_v2)) if mount_points(kind)}
        assert placed
        assert placed <= own
        process.stdin.write(b"\n")
        with listener.accept()[0] as server:
            receive_all(server, len(FRAME))
            if not living:
                process.communicate()
            (owner,) = (owner for end in capture.ends for owner in end.owners if owner.pid == process.pid)
            workload = WorkloadResolver().resolve(owner).named()
    assert workload["cgroup"] == (CONTAINER if CONTAINER in own else ENGINE if ENGINE in own else "/")
    assert workload["container_id"] == (CONTAINER_ID if CONTAINER in own else None)
