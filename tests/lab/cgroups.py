"""A cgroup per client, made by hand in the v2 hierarchy: what a container engine would do, without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.lab.processes import LabError, wait_until

_MOUNTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_PARENT = "kafka-probe-lab"


@contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """The directory of an empty cgroup `kafka-probe-lab/<name>`; it is removed once its processes have ended.

    Raises:
        LabError: no cgroup v2 hierarchy is mounted.
    """
    directory = mount() / _PARENT / name
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        wait_until(lambda: not (directory / "cgroup.procs").read_text(), f"the processes in {directory} to end")
        directory.rmdir()
        with suppress(OSError):  # the last one out
            directory.parent.rmdir()


def path_of(directory: Path) -> str:
    """The path of a cgroup as the kernel names it: below the mount point."""
    return f"/{directory.relative_to(mount())}"


def mount() -> Path:
    """Where the v2 hierarchy is mounted, pure or beside v1 controllers."""
    for candidate in _MOUNTS:
        if (candidate / "cgroup.procs").exists():
            return candidate
    raise LabError(f"no cgroup v2 hierarchy at any of {', '.join(map(str, _MOUNTS))}")
