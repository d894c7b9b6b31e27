"""Pods: what events say of them, found by their uid or by the id of any of their containers.

Owners are told by what a pod itself says: nothing but pods may be read. What is known of a pod outlives it for a while,
since the last events of its connections come late. One thread keeps `Pods` up to date, any other may ask it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Any

LABELS_MAX = 16
LABELS_MAX_BYTES = 1024
GONE_S = 600.0
GONE_MAX = 1024

NAMELESS: Mapping[str, object] = MappingProxyType(
    dict.fromkeys(("pod", "namespace", "labels", "owner_kind", "owner_name"))
)
"""The names of a workload that is in no pod, or in one that is not known."""

_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
# A CronJob's controller names a Job by the minute, since epoch, that it was due; other digits are a date or the like.
_SCHEDULED = re.compile(r"(?P<cron_job>.+)-(?P<minute>\d{8})")
_EARLIEST_S, _LATEST_S = -60, 7 * 86400
"""When a pod of such a Job is made, seen from that minute: clocks differ, and a Job may try for days."""


@dataclass(frozen=True, slots=True)
class Pod:
    """`ids`: its uid and those of its containers. `names`: the keys of `NAMELESS`."""

    uid: str
    ids: frozenset[str]
    names: Mapping[str, object]


def described(pod: Mapping[str, Any]) -> Pod:
    """A pod from the API server's JSON object of it."""
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
    """The pods of a node, and those that are gone for at most GONE_S, at most GONE_MAX of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pods: dict[str, Pod] = {}
        self._by_id: dict[object, Pod] = {}
        self._gone: dict[str, float] = {}  # since when, the oldest first
        self._news = threading.Event()

    def names(self, *ids: object) -> Mapping[str, object] | None:
        """What events say of the pod that one of these ids belongs to; None if none is known."""
        for each in ids:
            if pod := self._by_id.get(each):
                return pod.names
        return None

    def news(self) -> bool:
        """Whether names came or changed since the last call."""
        if not self._news.is_set():
            return False
        self._news.clear()  # before the caller looks: what comes meanwhile is news again
        return True

    def put(self, pod: Pod) -> None:
        """A pod that is there."""
        known = self._pods.get(pod.uid)
        self._gone.pop(pod.uid, None)
        if pod != known:
            self._pods[pod.uid] = pod
            self._by_id.update(dict.fromkeys(pod.ids, pod))
            if known:
                self._drop(known.ids - pod.ids, known)
            self._news.set()

    def remove(self, uid: str) -> None:
        """A pod that is gone from now on."""
        if uid in self._pods:
            self._gone.setdefault(uid, self._clock())

    def replace(self, pods: Iterable[Pod]) -> None:
        """All pods that are there."""
        gone = set(self._pods)
        for pod in pods:
            self.put(pod)
            gone.discard(pod.uid)
        for uid in gone:
            self.remove(uid)

    def forget(self) -> None:
        """Let go of those that are gone for long, or are too many."""
        due = self._clock() - GONE_S
        while self._gone and (len(self._gone) > GONE_MAX or next(iter(self._gone.values())) <= due):
            uid = next(iter(self._gone))
            del self._gone[uid]
            pod = self._pods.pop(uid)
            self._drop(pod.ids, pod)

    def _drop(self, ids: Iterable[str], pod: Pod) -> None:
        # The mirror of a static pod may be made anew, with another uid, around the same containers.
        for each in ids:
            if self._by_id.get(each) is pod:
                del self._by_id[each]


def _container_ids(status: Mapping[str, Any]) -> Iterator[str]:
    """Those of its containers, and of each one's predecessor: `containerd://<id>` without the engine."""
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
    """Kind and name of what runs a pod, or of what runs that, where names tell it."""
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
