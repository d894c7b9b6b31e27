"""Creates a cgroup per client in the v2 hierarchy, as a container engine would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.lab.processes import LabError, wait_until

_MOUNTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_PARENT = "kafka-probe-lab"
_MEMORY_V1 = Path("/sys/fs/cgroup/memory")


@contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """Yield the directory of an empty cgroup `kafka-probe-lab/<name>`; remove it once its processes have ended.

    Raises:
        LabError: no cgroup v2 hierarchy is mounted.
    """
    with _made(mount() / _PARENT / name) as directory:
        yield directory


class Peak:
    """The most memory that a cgroup has used since it was last reset, kernel memory such as BPF maps included."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def reset(self) -> None:
        """Start again from the current use."""
        self._file.write("0")
        self._file.flush()

    def read(self) -> int:
        """Return the peak in bytes."""
        self._file.seek(0)
        return int(self._file.read())


@contextmanager
def memory_cgroup(name: str) -> Iterator[tuple[Path, Peak]]:
    """Yield the directory of an empty cgroup with the memory controller, v1 or v2 (6.12 or newer), and its peak.

    Raises:
        LabError: this machine has no memory controller.
    """
    if _MEMORY_V1.is_dir():
        parent, file = _MEMORY_V1 / _PARENT, "memory.max_usage_in_bytes"
    else:
        parent, file = mount() / _PARENT, "memory.peak"
        parent.mkdir(exist_ok=True)
        for each in (mount(), parent):
            (each / "cgroup.subtree_control").write_text("+memory")
    with _made(parent / name) as directory:
        if not (directory / file).exists():
            raise LabError(f"no {file} in {directory}")
        with (directory / file).open("r+") as opened:
            yield directory, Peak(opened)


@contextmanager
def _made(directory: Path) -> Iterator[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        wait_until(lambda: not (directory / "cgroup.procs").read_text(), f"the processes in {directory} to end")
        directory.rmdir()
        with suppress(OSError):  # other cgroups are still in it
            directory.parent.rmdir()


def path_of(directory: Path) -> str:
    """Return the path of a cgroup below the mount point, as the kernel names it."""
    return f"/{directory.relative_to(mount())}"


def mount() -> Path:
    """Return the mount point of the v2 hierarchy, pure or beside v1 controllers."""
    for candidate in _MOUNTS:
        if (candidate / "cgroup.procs").exists():
            return candidate
    raise LabError(f"no cgroup v2 hierarchy at any of {', '.join(map(str, _MOUNTS))}")
