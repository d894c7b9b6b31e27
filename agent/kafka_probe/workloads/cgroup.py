"""Paths by the kernel's cgroup ids, on cgroup v1, v2 and hybrid hosts.

A cgroup's id is the inode number of its directory (kernel 5.5 and newer). So one stat proves a path that
/proc/<pid>/cgroup contains, and a walk of the hierarchy finds the path of a process that has ended. A hybrid host needs
an id of each version: some engines create the cgroups of containers in v1 only, others in both, and a unit may be in v2
only. This module never interprets paths: container.py does.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from kafka_probe.workloads.process import PROC

Mode = Literal["v2", "hybrid", "v1", "none"]

UNIFIED = ""
"""The name of the v2 hierarchy in /proc/<pid>/cgroup."""
V1_CONTROLLERS = ("memory", "pids", "cpu")
"""Controllers in order of preference: for these, every container engine creates a cgroup per container."""
V1_NAMES = (*V1_CONTROLLERS, "name=systemd")

WALK_SHARE = 20
"""Pause after a walk, as a multiple of its duration: at most 5 % of a CPU per hierarchy."""
WALK_PAUSE_S = 0.01
# Limits of a walk, as users may create cgroups below their own: it takes up to 0.2 s and keeps at most 3 MiB.
MOST_CGROUPS, MOST_PATH_BYTES = 4096, 512


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: its name in /proc/<pid>/cgroup, its mount point, and the path of the mounted cgroup."""

    name: str
    mount_point: Path
    root: str


def memberships(proc_cgroup: str) -> dict[str, str]:
    """Parse /proc/<pid>/cgroup to paths by hierarchy name; controllers mounted together have an entry each.

    A cgroup's name may contain any character but a line feed, also those at which `splitlines` splits.
    """
    lines = (line.removesuffix(" (deleted)").split(":", 2) for line in proc_cgroup.split("\n") if line)
    return {name: path for _, names, path in lines for name in names.split(",")}


class Cgroups:
    """The cgroup hierarchies of the host, read once from the mounts in `proc`/self/mountinfo."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        unified, v1 = _mounts((proc / "self/mountinfo").read_bytes())
        self.mode: Mode = ("hybrid" if v1 else "v2") if unified else ("v1" if v1 else "none")
        self.v1_controller = next((name for name in V1_CONTROLLERS if name in v1), None)
        """The controller whose hierarchy has the cgroup ids of v1; None if the host has no usable one."""
        used = [unified, v1.get(self.v1_controller or "")]
        self._trees = {hierarchy.name: _Tree(hierarchy, clock) for hierarchy in used if hierarchy}

    def candidates(self, cgroup_id: int, cgroup_v1_id: int, member_of: Mapping[str, str]) -> Iterator[str]:
        """Yield the paths of a process: in v2, then in the hierarchies of v1.

        `member_of` is empty for a process that has ended. On a hybrid host the path in v2 may be `/` or that of the
        engine's service, and only the paths in v1 contain the container.
        """
        for name in (UNIFIED, *V1_NAMES):
            path = member_of.get(name)
            if name in self._trees:
                path = self._trees[name].path(cgroup_v1_id if name else cgroup_id, path)
            if path:
                yield path


class _Tree:
    """The cgroups of one hierarchy by their ids, within the limits of a walk."""

    def __init__(self, hierarchy: Hierarchy, clock: Callable[[], float]) -> None:
        self._hierarchy = hierarchy
        self._clock = clock
        self._paths: dict[int, bytes] = {}  # as str they could take four times the memory
        self._next_walk = clock()

    def path(self, cgroup_id: int, claimed: str | None) -> str | None:
        """Return the path of a cgroup. `claimed`: the current path of its process, from /proc."""
        known = self._paths.get(cgroup_id)
        if known is None and claimed and _inode(self._hierarchy, claimed) == cgroup_id:
            return claimed
        if known is None and self._clock() >= self._next_walk:
            self._walk()
            known = self._paths.get(cgroup_id)
        # The process may have moved, and its old cgroup may be deleted: its current path is the next best.
        return claimed if known is None else known.decode("utf-8", "replace")

    def _walk(self) -> None:
        began = self._clock()
        self._paths = {}  # frees the old paths first: the new ones may be as large
        found = islice(_walk(self._hierarchy), MOST_CGROUPS)
        self._paths = {inode: path for inode, path in found if len(path) <= MOST_PATH_BYTES}
        ended = self._clock()
        self._next_walk = ended + max(WALK_PAUSE_S, WALK_SHARE * (ended - began))


def _mounts(mountinfo: bytes) -> tuple[Hierarchy | None, dict[str, Hierarchy]]:
    """Return the v2 hierarchy, and those of v1 by name: see proc_pid_mountinfo(5).

    The kernel escapes spaces, tabs, line feeds and backslashes in names, and no other character.
    """
    unified: list[Hierarchy] = []
    v1: dict[str, list[Hierarchy]] = {}
    for line in filter(None, mountinfo.split(b"\n")):
        mount, _, source = line.partition(b" - ")
        root, mount_point = (os.fsdecode(_unescape(field)) for field in mount.split(b" ")[3:5])
        filesystem, _, options = source.split(b" ", 2)
        if filesystem == b"cgroup2":
            unified.append(Hierarchy(UNIFIED, Path(mount_point), root))
        elif filesystem == b"cgroup":
            for name in os.fsdecode(options).split(","):
                v1.setdefault(name, []).append(Hierarchy(name, Path(mount_point), root))
    outermost = {name: min(mounts, key=_depth) for name, mounts in v1.items()}
    return min(unified, key=_depth, default=None), outermost


def _depth(hierarchy: Hierarchy) -> tuple[int, int]:
    """Return a sort key for mounts of one hierarchy, the most comprehensive first.

    A root outside the agent's cgroup namespace starts with `/..`.
    """
    return -hierarchy.root.count("/.."), len(hierarchy.root)


def _unescape(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), field)


def _inode(hierarchy: Hierarchy, path: str) -> int | None:
    try:
        return os.stat(f"{hierarchy.mount_point}{path}").st_ino
    except OSError:
        return None


def _walk(hierarchy: Hierarchy) -> Iterator[tuple[int, bytes]]:
    """Yield inode and path of every cgroup below the mount point, the upper ones first.

    It leaves out cgroups that are removed meanwhile, and cgroups below a path that is too long.
    """
    # The mount may contain one cgroup only (a container's view, bind-mounted): then all paths start with its path.
    above = b"" if hierarchy.root == "/" or "/.." in hierarchy.root else os.fsencode(hierarchy.root)
    top = os.fsencode(hierarchy.mount_point)
    root_inode = _inode(hierarchy, "")
    if root_inode is not None:
        yield root_inode, above or b"/"
    pending = deque([b""])
    while pending:
        parent = pending.popleft()
        try:
            with os.scandir(top + parent) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        path = parent + b"/" + entry.name
                        yield entry.inode(), above + path
                        if len(path) < MOST_PATH_BYTES:
                            pending.append(path)
        except OSError:
            continue
