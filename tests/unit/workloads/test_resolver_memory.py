"""The memory that workloads take, and that the last object that refers to one gives it back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kafka_probe.connections.tracker import Tracker
from kafka_probe.memory import DEFAULT, MIB
from kafka_probe.workloads import Owner, Workload, WorkloadResolver
from kafka_probe.workloads.pods import NAMELESS, Pod, Pods
from tests.builders.bounded_tables import grown_by
from tests.builders.events import reported, workload
from tests.builders.samples import Samples, opened


class Named(WorkloadResolver):
    """Finds texts of a character for every process."""

    def __init__(self, char: str, characters: int, limit_bytes: int = DEFAULT.workloads_bytes) -> None:
        pods = Pods()
        pods.put(Pod("u1", frozenset(("in a pod",)), {**NAMELESS, "pod": "x" * 253, "labels": {"app": "x" * 63}}))
        super().__init__(pods=pods, limit_bytes=limit_bytes)
        self._text = char * characters

    def _resolve(self, owner: Owner) -> Any:
        texts = {name: f"{name} {owner.pid}{self._text}" for name in ("exe", "cmdline", "cgroup", "unit")}
        return workload(f"{owner.pid}", pid=owner.pid, start_time=1 << 50 | owner.pid, pod_uid="in a pod", **texts)


def of_processes(*pids: int) -> list[Samples]:
    """Return connections, each of another process."""
    return [opened(pid, peer=("10.0.0.1", pid), tgid=1000 + pid, cgroup_id=1 << 40 | pid) for pid in pids]


def opens(tracker: Tracker) -> list[Any]:
    return reported(tracker)


@pytest.mark.parametrize("characters", [0, 5000])
@pytest.mark.parametrize("char", ["x", "\u00e9", "\N{PILE OF POO}"])
def test_what_workloads_take_is_reckoned_and_given_back_by_the_last_who_holds_them(char: str, characters: int) -> None:
    resolver = Named(char, characters, 100 * MIB)
    owners = [Owner(pid, 1 << 50 | pid, b"%d" % pid, pid, 0, 1 << 40, 0, b"x" * 92) for pid in range(1001, 1301)]

    def resolve_all() -> list[Workload]:
        found = [resolver.resolve(owner) for owner in owners]
        orjson.dumps([one.named() for one in found])  # it leaves the UTF-8 with each text
        return found

    assert grown_by(resolve_all, 1) < resolver.budget.used_bytes < 300 * 16 * 1024
    held = resolve_all()
    taken = resolver.budget.used_bytes
    assert {one.named()["pod"] for one in held} == {"x" * 253}
    resolver._recent.clear()
    assert resolver.budget.used_bytes == taken
    held.clear()
    assert resolver.budget.used_bytes == 0


def test_connections_whose_process_exceeds_the_budget_have_no_workload_and_are_counted() -> None:
    resolver = Named("x", 1000, 100_000)
    tracker = Tracker(resolver)
    for sample in of_processes(*range(1, 51)):
        tracker.take(sample[0])
    workloads = [event["workload"] for event in opens(tracker)]
    nobody = [event for event in workloads if event["pid"] is None]
    assert 0 < len(nobody) == resolver.losses["workload_limit"] < 50
    assert resolver.budget.used_bytes <= 100_000
    workloads.clear()
    for pid in range(1, 51):
        tracker.gone(pid)
    tracker.take(of_processes(51)[0][0])
    (event,) = opens(tracker)
    assert event["workload"]["pid"] == 1051
    assert resolver.budget.used_bytes < 50_000


def test_a_process_that_renames_itself_leaves_budget_to_others() -> None:
    resolver = Named("x", 100, 100_000)
    tracker = Tracker(resolver)
    for conn in range(1, 101):
        tracker.take(opened(conn, tgid=7, comm=b"%d" % conn)[0])
    assert resolver.losses["workload_limit"] > 0
    for sample in of_processes(*range(101, 106)):
        tracker.take(sample[0])
    assert [event["workload"]["pid"] for event in opens(tracker)][-5:] == [1101, 1102, 1103, 1104, 1105]


def test_a_process_that_nobody_holds_is_remembered_while_half_of_the_budget_is_free() -> None:
    resolver = Named("x", 0, 100_000)
    first, *others = (Owner(pid, 0, b"", 0, 0, 0, 0, b"") for pid in range(1, 100))
    assert resolver.resolve(first) is resolver.resolve(first)
    for owner in others:
        resolver.resolve(owner)
    assert 40_000 < resolver.budget.used_bytes < 60_000
    assert first not in resolver._held
    assert others[-1] in resolver._held
    assert not any(resolver.losses.values())
