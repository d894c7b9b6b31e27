"""Pods and their names for events, by the pod's uid or by the id of any of its containers.

Owners are derived from a pod's own metadata, because the agent may read nothing but pods. A deleted pod is kept for a
while, because the last events of its connections come late. One thread updates `Pods`, any other may read it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from kafka_probe.events import PodNames

LABELS_MAX = 16
LABELS_MAX_BYTES = 1024
GONE_S = 600.0
GONE_MAX = 1024

NAMELESS: PodNames = {"pod": None, "namespace": None, "labels": None, "owner_kind": None, "owner_name": None}
"""The names of a workload in no pod, or in an unknown one."""

_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
# A CronJob's controller names a Job by its due time in minutes since epoch; other digits are a date or the like.
_SCHEDULED = re.compile(r"(?P<cron_job>.+)-(?P<minute>\d{8})")
_EARLIEST_S, _LATEST_S = -60, 7 * 86400
"""Range of a pod's creation, s after that minute: clocks differ, and a Job may retry for days."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `ids`: its uid and the ids of its containers."""

    uid: str
    ids: frozenset[str]
    names: PodNames


def described(pod: Mapping[str, Any]) -> Pod:
    """Return a pod from the API server's JSON object."""
    metadata = pod["metadata"]
    kind, name = _owner(metadata)
    return Pod(
        uid=metadata["uid"],
        ids=frozenset((metadata["uid"], *_container_ids(pod.get("status") or {}))),
        names={
            "pod": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": dict(_bounded(metadata.get("labels") or {})),
            "owner_kind": kind,
            "owner_name": name,
        },
    )


class Pods:
    """The pods of a node, and at most GONE_MAX deleted pods, each for at most GONE_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pods: dict[str, Pod] = {}
        self._by_id: dict[str | None, Pod] = {}
        self._gone: dict[str, float] = {}  # time of deletion by uid, the oldest first

    def names(self, *ids: str | None) -> PodNames | None:
        """Return the names of the pod that one of these ids belongs to; None if no id is known."""
        for each in ids:
            if pod := self._by_id.get(each):
                return pod.names
        return None

    def put(self, pod: Pod) -> None:
        """Add or update a pod that exists."""
        known = self._pods.get(pod.uid)
        self._gone.pop(pod.uid, None)
        if pod != known:
            self._pods[pod.uid] = pod
            self._by_id.update(dict.fromkeys(pod.ids, pod))
            if known:
                self._drop(known.ids - pod.ids, known)

    def remove(self, uid: str) -> None:
        """Mark a pod as deleted now."""
        if uid in self._pods:
            self._gone.setdefault(uid, self._clock())

    def replace(self, pods: Iterable[Pod]) -> None:
        """Add or update all pods that exist; mark all others as deleted."""
        gone = set(self._pods)
        for pod in pods:
            self.put(pod)
            gone.discard(pod.uid)
        for uid in gone:
            self.remove(uid)

    def forget(self) -> None:
        """Drop the pods that were deleted GONE_S ago, and the oldest beyond GONE_MAX deleted ones."""
        due = self._clock() - GONE_S
        while self._gone and (len(self._gone) > GONE_MAX or next(iter(self._gone.values())) <= due):
            uid = next(iter(self._gone))
            del self._gone[uid]
            pod = self._pods.pop(uid)
            self._drop(pod.ids, pod)

    def _drop(self, ids: Iterable[str], pod: Pod) -> None:
        # The mirror of a static pod may be created again, with another uid and the same containers.
        for each in ids:
            if self._by_id.get(each) is pod:
                del self._by_id[each]


def _container_ids(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of its containers and of their predecessors: `containerd://<id>` without the engine."""
    for container in chain.from_iterable(status.get(name) or () for name in _STATUSES):
        before = (container.get("lastState") or {}).get("terminated") or {}
        for url in (container.get("containerID"), before.get("containerID")):
            if url:
                yield url.rpartition("://")[2]


def _bounded(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    size = 0
    for name, value in sorted(labels.items())[:LABELS_MAX]:
        size += len(name) + len(value)
        if size > LABELS_MAX_BYTES:
            return
        yield name, value


def _owner(metadata: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return kind and name of a pod's controller, or of that controller's owner if names show it."""
    controller = next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None)
    if controller is None:
        return None, None
    kind, name = controller["kind"], controller["name"]
    suffix = f"-{(metadata.get('labels') or {}).get('pod-template-hash')}"
    if kind == "ReplicaSet" and name.endswith(suffix):
        return "Deployment", name.removesuffix(suffix)
    if kind == "Job" and (scheduled := _SCHEDULED.fullmatch(name)):
        created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
        if _EARLIEST_S <= created - 60 * int(scheduled["minute"]) <= _LATEST_S:
            return "CronJob", scheduled["cron_job"]
    return kind, name
