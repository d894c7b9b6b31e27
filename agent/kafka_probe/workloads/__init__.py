"""Workloads: the process, container, pod or service that owns a socket.

`WorkloadResolver` turns the kernel's facts about an owner into a `Workload`. It reads /proc, cgroupfs and, if asked,
files of container engines. It never queries an engine and never raises: facts that cannot be read any more are None.
kubernetes.py collects the names of pods, which workloads look up when events are made. Workloads share a memory budget,
which they use while other objects refer to them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from kafka_probe.events import ProcessFacts
from kafka_probe.memory import DEFAULT
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.workloads.cgroup import Cgroups, Hierarchy, memberships
from kafka_probe.workloads.container import Placement, is_of_users, placement
from kafka_probe.workloads.container_names import ContainerNames
from kafka_probe.workloads.log_dirs import StoredTopic, stored_topics
from kafka_probe.workloads.pods import Pods
from kafka_probe.workloads.process import PROC, Owner, boot_time_us, describe, hidden, living, present
from kafka_probe.workloads.workload import NOBODY, Workload, cut_texts, workload_bytes

__all__ = [
    "NOBODY",
    "Cgroups",
    "Hierarchy",
    "Owner",
    "StoredTopic",
    "Workload",
    "WorkloadResolver",
    "present",
    "workload_bytes",
]

LOSSES = {"workload_limit": "connections without their process, because it exceeds `--memory-limit`: null"}


class WorkloadResolver:
    """Resolves owners to workloads. Also keeps workloads without other references while half of the budget is free.

    command_lines: if False, `cmdline` is always null. container_names: if False, `container_name` is always null.
    """

    def __init__(
        self,
        proc: Path = PROC,
        pods: Pods | None = None,
        *,
        command_lines: bool = True,
        container_names: bool = False,
        limit_bytes: int = DEFAULT.workloads_bytes,
    ) -> None:
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self.budget = SharedBudget(limit_bytes, self.losses)
        self._kept_bytes = limit_bytes // 2
        self.cgroups = Cgroups(proc)
        self._proc = proc
        self._pods = pods or Pods()
        self._command_lines = command_lines
        self._container_names = ContainerNames(proc) if container_names else None
        self._boot_us = boot_time_us()
        # All facts are the key, not only pid and start: after an exec the same process has another command.
        self._held: WeakValueDictionary[Owner, Workload] = WeakValueDictionary()
        self._recent: OrderedDict[Owner, Workload] = OrderedDict()

    def resolve(self, owner: Owner, peer: str = "") -> Workload:
        """Return the workload of an owner; NOBODY if the owner is unknown or there is no memory for the workload.

        peer: the peer whose share of the budget it uses, see peer_limits.py.
        """
        workload = self._held.get(owner) or self._new(owner, peer) if owner.pid else None
        if workload is None:
            return NOBODY
        self._recent[owner] = workload
        self._recent.move_to_end(owner)
        return workload

    def stored_topics(self, pid: int, start_time_us: int) -> Iterator[StoredTopic | None]:
        """Yield the topics in the log directories of a workload's process, see log_dirs.py."""
        with living(pid, (start_time_us - self._boot_us) * 1000, self._proc) as live:
            if live:
                yield from stored_topics(live)

    def ended(self, process: tuple[int, int] | None) -> bool | None:
        """Return True if a process has ended, None if that is not known. process: pid and start in µs since epoch."""
        if process is None:
            return None
        pid, start_time_us = process
        with living(pid, (start_time_us - self._boot_us) * 1000, self._proc) as live:
            if live:
                return live.is_zombie()
        return None if hidden(pid, self._proc) else True

    def _new(self, owner: Owner, peer: str) -> Workload | None:
        """Return a new workload for an owner that has none; None if the budget has no memory for it."""
        while self._recent and self.budget.used_bytes > self._kept_bytes:
            self._recent.popitem(last=False)
        facts = cut_texts(self._resolve(owner))
        size = workload_bytes(facts)
        if not self.budget.take(peer, size, "workload_limit"):
            return None
        workload = self._held[owner] = Workload(owner, facts, self._pods, self.budget, size)
        return workload

    def _resolve(self, owner: Owner) -> ProcessFacts:
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
            "container_name": self._container_name(path, place),
            "runtime": place.runtime,
            "unit": place.unit,
            "pod_uid": place.pod_uid,
        }

    def _container_name(self, path: str | None, place: Placement) -> str | None:
        if self._container_names is None or place.container_id is None or is_of_users(path):
            return None
        return self._container_names.name(place.runtime, place.container_id)

    def _place(self, owner: Owner, member_of: Mapping[str, str]) -> tuple[str | None, Placement]:
        """Return the most specific path, the first of equals: one with a container, with a unit, or below the root."""
        paths = self.cgroups.candidates(owner.cgroup_id, owner.cgroup_v1_id, member_of)
        placed = [(path, placement(path)) for path in paths]
        return max(placed, key=_specificity, default=(None, Placement()))


def _specificity(placed: tuple[str, Placement]) -> tuple[bool, bool, bool]:
    path, place = placed
    return place.container_id is not None, place.unit is not None, path != "/"
