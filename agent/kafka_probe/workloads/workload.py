"""The workload of a socket. It takes bytes of a budget until the last object that refers to it is deleted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import cast

from kafka_probe.events import ProcessFacts, WorkloadFacts
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.protocol.facts import cut, text_bytes
from kafka_probe.workloads.container import is_of_users
from kafka_probe.workloads.pods import NAMELESS, Pods
from kafka_probe.workloads.process import Owner

TEXT_CHARACTERS = 1024
"""Most characters kept of a text: a Java class path can be megabytes."""
_WORKLOAD_BYTES = 1408  # memory of a workload besides texts, with its key, the owner


class Workload:
    """The process, container or service of an owner. It never changes, and is equal to those of the same owner.

    When deleted, it gives back the bytes taken for it. facts: those of the owner's process. pods: the source of the
    names of its pod.
    """

    __slots__ = ("__weakref__", "_budget", "_bytes", "_facts", "_owner", "_pods")

    def __init__(self, owner: Owner, facts: ProcessFacts, pods: Pods, budget: SharedBudget, taken_bytes: int) -> None:
        self._owner = owner
        self._facts: WorkloadFacts = {**facts, **NAMELESS}
        self._pods = pods
        self._budget = budget
        self._bytes = taken_bytes

    def __del__(self) -> None:
        self._budget.give_back(self._bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self._owner == other._owner

    def __hash__(self) -> int:
        return hash(self._owner)

    @property
    def pid(self) -> int | None:
        """Return the process id; None if the owner is unknown."""
        return self._owner.pid or None

    @property
    def process(self) -> tuple[int, int] | None:
        """Return pid and start of the process, µs since epoch; None if the owner is unknown."""
        pid, start_time_us = self._facts["pid"], self._facts["start_time"]
        return None if pid is None or start_time_us is None else (pid, start_time_us)

    def named(self) -> WorkloadFacts:
        """Return the `workload` object of an event that is made now, with the names that its pod has now.

        Events share it: nobody changes it.
        """
        container_id, pod_uid = self._facts["container_id"], self._facts["pod_uid"]
        if is_of_users(self._facts["cgroup"]):
            return self._facts
        names = self._pods.names(container_id, pod_uid) if container_id or pod_uid else None
        return {**self._facts, **names} if names else self._facts


_NO_OWNER = Owner(pid=0, start_boottime_ns=0, comm=b"", uid=0, netns=0, cgroup_id=0, cgroup_v1_id=0, cmdline=b"")
_NO_FACTS = cast("ProcessFacts", dict.fromkeys(ProcessFacts.__annotations__))
NOBODY = Workload(_NO_OWNER, _NO_FACTS, Pods(), SharedBudget(0, Counter()), 0)
"""The workload of a socket with an unknown owner."""


def cut_texts(facts: ProcessFacts) -> ProcessFacts:
    """Return the facts of a process with its texts cut to TEXT_CHARACTERS."""
    texts = {name: cut(fact, TEXT_CHARACTERS) for name, fact in facts.items() if isinstance(fact, str)}
    return cast("ProcessFacts", facts | texts)


def workload_bytes(workload: Mapping[str, object]) -> int:
    """Return about how much memory a `workload` object takes, rounded up, with the labels of its pod."""
    labels = workload.get("labels")
    named = (*labels, *labels.values()) if isinstance(labels, Mapping) else ()
    texts = [text_bytes(text, TEXT_CHARACTERS) for text in (*workload.values(), *named) if isinstance(text, str)]
    return _WORKLOAD_BYTES + sys.getsizeof(labels) + sum(texts)
