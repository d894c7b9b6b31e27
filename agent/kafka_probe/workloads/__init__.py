"""Workloads: which process, container, pod or service owns a socket.

`WorkloadResolver` turns the kernel's record of an owner into the `workload` object of an event. It reads /proc and
cgroupfs, never asks a container engine and never raises: what nobody can know any more is None. The names of pods come
from elsewhere, maybe later, see kubernetes.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafka_probe.events import WORKLOAD
from kafka_probe.memory import DEFAULT
from kafka_probe.workloads.cgroup import Cgroups, Hierarchy, memberships
from kafka_probe.workloads.container import Placement, placement
from kafka_probe.workloads.log_dirs import StoredTopic, stored_topics
from kafka_probe.workloads.pods import NAMELESS, Pods
from kafka_probe.workloads.process import PROC, Owner, boot_time_us, describe, hidden, living, present

__all__ = ["Cgroups", "Hierarchy", "Owner", "StoredTopic", "WorkloadResolver", "present"]

NOBODY: Mapping[str, object] = dict.fromkeys(field.name for field in WORKLOAD.fields)
"""The workload of a socket whose owner is not known."""


class WorkloadResolver:
    """Owners to workloads, the `limit` most recently used ones remembered."""

    def __init__(
        self,
        proc: Path = PROC,
        pods: Pods | None = None,
        *,
        command_lines: bool = True,
        limit: int = DEFAULT.workloads,
    ) -> None:
        """command_lines: False leaves `cmdline` null."""
        self._limit = limit
        self.cgroups = Cgroups(proc)
        self._proc = proc
        self._pods = pods or Pods()
        self._command_lines = command_lines
        self._boot_us = boot_time_us()
        # The whole record is the key, not only pid and start: after an exec the same process has another command.
        self._remembered: OrderedDict[Owner, dict[str, object]] = OrderedDict()

    def resolve(self, owner: Owner) -> Mapping[str, object]:
        """The `workload` object of events.py, all keys present. Shared between callers: not to be changed."""
        if not owner.pid:
            return NOBODY
        workload = self._remembered.get(owner)
        if workload is None:
            workload = self._remembered[owner] = self._resolve(owner)
            if len(self._remembered) > self._limit:
                self._remembered.popitem(last=False)
        else:
            self._remembered.move_to_end(owner)
        return workload

    def name_pods(self) -> None:
        """Give the remembered workloads the names of pods that came or changed since the last call."""
        if self._pods.news():
            for workload in self._remembered.values():
                workload.update(self._pods.names(workload["container_id"], workload["pod_uid"]) or {})

    def stored_topics(self, pid: int, start_time_us: int) -> Iterator[StoredTopic | None]:
        """The topics in the log directories of a workload's process, see log_dirs.py."""
        with living(pid, (start_time_us - self._boot_us) * 1000, self._proc) as live:
            if live:
                yield from stored_topics(live)

    def ended(self, workload: Mapping[str, object]) -> bool | None:
        """Whether the process of a workload has ended; None if it is not known."""
        match workload:
            case {"pid": int(pid), "start_time": int(start_time_us)}:
                with living(pid, (start_time_us - self._boot_us) * 1000, self._proc) as live:
                    if live:
                        return live.is_zombie()
                return None if hidden(pid, self._proc) else True
        return None

    def _resolve(self, owner: Owner) -> dict[str, object]:
        with living(owner.pid, owner.start_boottime_ns, self._proc) as live:
            process = describe(owner, live, self._boot_us)
            member_of = memberships(live.cgroup()) if live else {}
        path, place = self._place(owner, member_of)
        return {
            "pid": process.pid,
            "start_time": process.start_time_us,
            "comm": process.comm,
            "exe": process.exe,
            "cmdline": process.cmdline if self._command_lines else None,
            "uid": process.uid,
            "cgroup": path,
            "cgroup_id": owner.cgroup_v1_id if self.cgroups.mode == "v1" else owner.cgroup_id,
            "container_id": place.container_id,
            "runtime": place.runtime,
            "unit": place.unit,
            "pod_uid": place.pod_uid,
            **(self._pods.names(place.container_id, place.pod_uid) or NAMELESS),
        }

    def _place(self, owner: Owner, member_of: Mapping[str, str]) -> tuple[str | None, Placement]:
        """The path that says most, the first of equals: a container, a unit, anything below the root."""
        paths = self.cgroups.candidates(owner.cgroup_id, owner.cgroup_v1_id, member_of)
        placed = [(path, placement(path)) for path in paths]
        return max(placed, key=_specificity, default=(None, Placement()))


def _specificity(placed: tuple[str, Placement]) -> tuple[bool, bool, bool]:
    path, place = placed
    return place.container_id is not None, place.unit is not None, path != "/"
