"""Owners become workloads as events contain them, with real processes in real cgroups."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_probe.agent import Agent
from kafka_probe.config import load
from kafka_probe.events import WorkloadFacts
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.workloads import Cgroups, Owner, WorkloadResolver
from kafka_probe.workloads.pods import NAMELESS, Pod, Pods
from kafka_probe.workloads.workload import _NO_FACTS, _NO_OWNER, Workload
from tests.builders.events import StillSink

Start = Callable[..., "Popen[bytes]"]
End = Callable[["Popen[bytes]"], None]
OwnerOf = Callable[..., Owner]
MakeCgroup = Callable[[Path], Path]

CONTAINER_ID = secrets.token_hex(32)
POD_UID = str(uuid.uuid4())
RESOLVER = WorkloadResolver()


def moved(process: Popen[bytes], cgroup: Path) -> int:
    """Move a process into a cgroup that is made for it; return the cgroup's id."""
    cgroup.mkdir(parents=True, exist_ok=True)
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    return cgroup.stat().st_ino


def test_a_workload_has_every_field_of_the_schema(start: Start, owner_of: OwnerOf) -> None:
    owner = owner_of(start("produce").pid, cgroup_id=1)
    workload = WorkloadResolver().resolve(owner).named()
    assert list(workload) == list(WorkloadFacts.__annotations__)
    assert (workload["pid"], workload["uid"], workload["cgroup_id"]) == (owner.pid, os.getuid(), 1)
    assert str(workload["cmdline"]).endswith(" produce")


def test_a_process_is_found_in_its_container(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path
) -> None:
    process = start()
    cgroup = make_cgroup(unified)
    cgroup_id = moved(process, cgroup / f"libpod-{CONTAINER_ID}.scope/container")
    workload = WorkloadResolver().resolve(owner_of(process.pid, cgroup_id=cgroup_id)).named()
    assert workload["cgroup"] == f"/{cgroup.name}/libpod-{CONTAINER_ID}.scope/container"
    assert (workload["container_id"], workload["runtime"]) == (CONTAINER_ID, "podman")


@pytest.mark.parametrize("asked", [False, True])
def test_a_container_has_its_name_only_if_asked(
    start: Start,
    owner_of: OwnerOf,
    make_cgroup: MakeCgroup,
    unified: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: bool,
) -> None:
    process = start()
    cgroup_id = moved(process, make_cgroup(unified) / f"libpod-{CONTAINER_ID}.scope")
    monkeypatch.setattr("kafka_probe.workloads.ContainerNames.name", lambda _, *of: f"{of[0]} {of[1][:3]}")
    workload = WorkloadResolver(container_names=asked).resolve(owner_of(process.pid, cgroup_id=cgroup_id)).named()
    assert workload["container_name"] == (f"podman {CONTAINER_ID[:3]}" if asked else None)


@pytest.mark.parametrize("character", ["\v", "\f", "\r", "\x1c", "\x85", "\u2028"])
def test_a_name_of_a_cgroup_may_have_any_line_break_but_a_line_feed(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path, character: str
) -> None:
    process, cgroup = start(), make_cgroup(unified)
    cgroup_id = moved(process, cgroup / f"a{character}b")
    workload = WorkloadResolver().resolve(owner_of(process.pid, cgroup_id=cgroup_id)).named()
    assert workload["cgroup"] == f"/{cgroup.name}/a{character}b"


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [("/user.slice/a", None), ("/../../user.slice/a", None), ("/kubepods/a", "orders-0"), (None, "orders-0")],
)
def test_below_the_cgroups_of_users_no_container_is_a_pods(cgroup: str | None, pod: str | None) -> None:
    pods = Pods()
    pods.put(Pod("u1", frozenset((CONTAINER_ID,)), {**NAMELESS, "pod": "orders-0"}))
    facts: Any = {**_NO_FACTS, "cgroup": cgroup, "container_id": CONTAINER_ID}
    named = Workload(_NO_OWNER, facts, pods, SharedBudget(0, Counter()), 0).named()
    assert (named["container_id"], named.get("pod")) == (CONTAINER_ID, pod)


def test_an_ended_process_is_found_in_the_cgroup_that_it_left(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path, end: End
) -> None:
    process = start()
    cgroup = make_cgroup(unified)
    owner = owner_of(process.pid, cgroup_id=moved(process, cgroup / "kafka.service"), cmdline=b"kcat\0-L\0")
    end(process)
    workload = WorkloadResolver().resolve(owner).named()
    assert (workload["unit"], workload["runtime"]) == ("kafka.service", "systemd")
    assert (workload["exe"], workload["cmdline"]) == (None, "kcat -L")


def test_when_process_and_cgroup_are_gone_the_rest_still_stands(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path, end: End
) -> None:
    process = start()
    cgroup = make_cgroup(unified) / "gone"
    owner = owner_of(process.pid, cgroup_id=moved(process, cgroup))
    end(process)
    cgroup.rmdir()
    workload = WorkloadResolver().resolve(owner).named()
    assert (workload["pid"], workload["cgroup"], workload["cgroup_id"]) == (owner.pid, None, owner.cgroup_id)


def test_on_a_hybrid_host_a_container_is_found_in_the_v1_hierarchies(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path
) -> None:
    if Cgroups().mode != "hybrid" or not os.path.ismount("/sys/fs/cgroup/pids"):
        pytest.skip("not a hybrid host with the v1 controller pids")
    process = start()
    cgroup = make_cgroup(Path("/sys/fs/cgroup/pids"))
    moved(process, cgroup / f"docker/{CONTAINER_ID}")
    # Docker's service has its v2 cgroup, and what the engine starts inherits it.
    service = make_cgroup(unified) / "docker.service"
    workload = WorkloadResolver().resolve(owner_of(process.pid, cgroup_id=moved(process, service))).named()
    assert workload["cgroup"] == f"/{cgroup.name}/docker/{CONTAINER_ID}"
    assert (workload["container_id"], workload["runtime"], workload["unit"]) == (CONTAINER_ID, "docker", None)


def test_on_a_hybrid_host_any_v1_cgroup_says_more_than_the_v2_root(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path
) -> None:
    if Cgroups().mode != "hybrid" or not os.path.ismount("/sys/fs/cgroup/pids"):
        pytest.skip("not a hybrid host with the v1 controller pids")
    process = start()
    moved(process, make_cgroup(Path("/sys/fs/cgroup/pids")))
    workload = WorkloadResolver().resolve(owner_of(process.pid, cgroup_id=moved(process, unified))).named()
    v1_paths = [line.split(":", 2)[2] for line in Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()[:-1]]
    assert workload["cgroup"] in set(v1_paths) - {"/"}


@pytest.mark.parametrize("ended", [False, True])
def test_without_command_lines_none_is_reported_of_a_process(
    start: Start, owner_of: OwnerOf, end: End, ended: bool
) -> None:
    process = start()
    owner = owner_of(process.pid, cmdline=b"kcat\0-L\0")
    if ended:
        end(process)
    agents = (Agent(load({"cmdline": setting}), StillSink()) for setting in ("on", "off"))
    with_it, without = (agent._processor._resolver.resolve(owner).named() for agent in agents)
    assert with_it["cmdline"] is not None
    assert (without["pid"], without["cmdline"]) == (process.pid, None)


@pytest.mark.parametrize(("char", "characters"), [("x", 1024), ("\u00e9", 1024), ("\N{PILE OF POO}", 256)])
def test_a_long_command_line_is_cut(start: Start, owner_of: OwnerOf, char: str, characters: int) -> None:
    cmdline = WorkloadResolver().resolve(owner_of(start(char * 2000).pid)).named()["cmdline"]
    assert isinstance(cmdline, str)
    assert len(cmdline) == characters


def test_an_owner_is_looked_up_once(start: Start, owner_of: OwnerOf, end: End) -> None:
    process = start()
    owner = owner_of(process.pid)
    resolver = WorkloadResolver()
    while_it_lives = resolver.resolve(owner)
    end(process)
    assert resolver.resolve(replace(owner)) is while_it_lives
    assert while_it_lives.named()["exe"] is not None


ASKED = """
import json, os, subprocess, sys
from kafka_probe.workloads import WorkloadResolver
resolver, process, hidepid = WorkloadResolver(), json.load(sys.stdin), sys.argv[1]
subprocess.run(["mount", "-t", "proc", "-o", f"hidepid={hidepid}", "proc", "/proc"], check=True)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(resolver.ended(process))
"""


@pytest.mark.root
@pytest.mark.parametrize("hidepid", ["1", "2"])
def test_a_process_that_proc_hides_is_not_taken_for_ended(
    hidepid: str, start: Start, owner_of: OwnerOf, end: End
) -> None:
    process = start()
    record = orjson.dumps(WorkloadResolver().resolve(owner_of(process.pid)).process)

    def ended() -> bytes:
        command = ["unshare", "--mount", sys.executable, "-c", ASKED, hidepid]
        return subprocess.run(command, input=record, capture_output=True, check=True).stdout

    assert ended() == b"None\n"
    end(process)
    assert ended() == b"True\n"


def test_after_an_exec_the_command_is_looked_up_again(start: Start, owner_of: OwnerOf) -> None:
    resolver = WorkloadResolver()
    shell = owner_of(start().pid)
    consumer = replace(shell, comm=b"consumer")
    assert resolver.resolve(shell).named()["comm"] == shell.comm.rstrip(b"\0").decode()
    assert resolver.resolve(consumer).named()["comm"] == "consumer"


def test_an_event_has_the_names_that_the_pod_has_then_and_earlier_ones_stay_as_they_are(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path
) -> None:
    pods = Pods()
    resolver = WorkloadResolver(pods=pods)
    process = start()
    in_pod = make_cgroup(unified) / f"kubepods/pod{POD_UID}/{CONTAINER_ID}"
    workload = resolver.resolve(owner_of(process.pid, cgroup_id=moved(process, in_pod)))
    first = workload.named()
    assert (first["container_id"], first["pod_uid"], first["pod"]) == (CONTAINER_ID, POD_UID, None)
    for each, labels in ((POD_UID, {"app": "orders"}), (CONTAINER_ID, {"app": "orders", "tier": "gold"})):
        pods.put(Pod("u1", frozenset((each,)), {**NAMELESS, "pod": "orders-0", "labels": labels}))
        named = workload.named()
        assert (named["pod"], named["labels"]) == ("orders-0", labels)
        assert list(named) == list(first)
    assert first["pod"] is None


def test_workloads_are_equal_if_their_owners_are() -> None:
    resolvers, owners = (WorkloadResolver(), WorkloadResolver()), [Owner(7, 1, b"java", 0, 0, 0, 0, b"")] * 2
    first, second = (resolver.resolve(owner) for resolver, owner in zip(resolvers, owners, strict=True))
    assert (first, hash(first)) == (second, hash(second))
    assert first != resolvers[0].resolve(replace(owners[0], comm=b"sh"))


def test_a_pod_that_is_known_is_named_at_once(
    start: Start, owner_of: OwnerOf, make_cgroup: MakeCgroup, unified: Path
) -> None:
    pods = Pods()
    pods.put(Pod("u1", frozenset((CONTAINER_ID,)), {**NAMELESS, "pod": "orders-0", "owner_kind": "StatefulSet"}))
    process = start()
    in_container = make_cgroup(unified) / f"cri-containerd-{CONTAINER_ID}.scope"
    workload = (
        WorkloadResolver(pods=pods).resolve(owner_of(process.pid, cgroup_id=moved(process, in_container))).named()
    )
    assert (workload["pod"], workload["owner_kind"]) == ("orders-0", "StatefulSet")
    assert list(workload) == list(WorkloadFacts.__annotations__)


@settings(deadline=None)  # a walk of the hierarchies takes as long as the host lets it
@given(
    st.builds(
        Owner,
        pid=st.integers(1, 2**32 - 1),
        start_boottime_ns=st.integers(0, 2**64 - 1),
        comm=st.binary(max_size=16),
        uid=st.integers(0, 2**32 - 1),
        netns=st.integers(0, 2**32 - 1),
        cgroup_id=st.integers(0, 2**64 - 1),
        cgroup_v1_id=st.integers(0, 2**64 - 1),
        cmdline=st.binary(max_size=100),
    )
)
def test_any_record_gives_a_workload_that_can_be_written(owner: Owner) -> None:
    workload = RESOLVER.resolve(owner).named()
    assert orjson.loads(orjson.dumps(workload))["pid"] == owner.pid


def test_an_unknown_owner_has_an_empty_workload() -> None:
    workload = RESOLVER.resolve(Owner(0, 0, b"", 0, 7, 0, 0, b"")).named()
    assert set(workload) == set(WorkloadFacts.__annotations__)
    assert not any(workload.values())
