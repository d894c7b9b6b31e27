"""Provides real processes and cgroups to resolve, and stand-in mounts for other cgroup modes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_probe.workloads import Cgroups, Owner

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

Start = Callable[..., "subprocess.Popen[bytes]"]
OwnerOf = Callable[..., Owner]


@pytest.fixture
def owner_of() -> OwnerOf:
    """Return the owner that the kernel would record for a living process, with a start inside its clock tick."""

    def owner_of(pid: int, *, cgroup_id: int = 0, cgroup_v1_id: int = 0, cmdline: bytes = b"") -> Owner:
        ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        comm = Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n")
        start_ns = ticks * NS_PER_TICK + NS_PER_TICK // 3
        ids = cgroup_id, cgroup_v1_id
        return Owner(pid, start_ns, comm.ljust(16, b"\0"), os.getuid(), 4026531840, *ids, cmdline)

    return owner_of


@pytest.fixture
def end() -> Callable[[subprocess.Popen[bytes]], None]:
    """End a process and reap it."""
    return _end


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts a Python process: it runs `code`, reports that it is ready, and waits.

    The processes are ended at the end of the test.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | bytes, code: str = "") -> subprocess.Popen[bytes]:
        script = f"{code}\nprint(flush=True)\ninput()"
        command = [sys.executable, "-c", script, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        return process

    yield start
    for process in started:
        _end(process)


@pytest.fixture
def unified() -> Path:
    """Return the mount point of the v2 hierarchy."""
    mount_points = {"v2": Path("/sys/fs/cgroup"), "hybrid": Path("/sys/fs/cgroup/unified")}
    if (mode := Cgroups().mode) not in mount_points:
        pytest.skip(f"no cgroup2 is mounted (mode {mode})")
    return mount_points[mode]


@pytest.fixture
def make_cgroup() -> Iterator[Callable[[Path], Path]]:
    """Make a cgroup of a random name below a mount point of cgroupfs; its descendants are removed with it."""
    made: list[Path] = []

    def make_cgroup(mount_point: Path) -> Path:
        cgroup = mount_point / f"kafka-probe-test-{secrets.token_hex(6)}"
        try:
            cgroup.mkdir()
        except OSError as error:
            reason = "needs root: to make cgroups" if os.geteuid() else "no cgroup can be made"
            pytest.skip(f"{reason} in {mount_point} ({error.strerror})")
        made.append(cgroup)
        return cgroup

    yield make_cgroup
    for cgroup in made:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            for pid in Path(directory, "cgroup.procs").read_text().split():
                (cgroup.parent / "cgroup.procs").write_text(pid)
            Path(directory).rmdir()
