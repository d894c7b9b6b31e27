"""Cgroup paths as engines, kubelets and systemd make them, and the containers in them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.workloads.container import Placement, placement

ID = "3f4e" * 16
OUTER = "0a1b" * 16
UID = "1f2e3d4c-5b6a-4789-8abc-def012345678"
UID_ = UID.replace("-", "_")
STATIC_UID = "7d3c" * 8

KUBEPODS = "/kubepods.slice/kubepods-burstable.slice"
NODE = f"/system.slice/docker-{OUTER}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice"

PATHS = {
    # Docker
    f"/docker/{ID}": Placement(ID, "docker"),
    f"/system.slice/docker-{ID}.scope": Placement(ID, "docker"),
    f"/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{ID}.scope": Placement(
        ID, "docker", unit="user@1000.service"
    ),
    f"/system.slice:docker:{ID}": Placement(ID, "docker"),
    f"/docker/{OUTER}/docker/{ID}": Placement(ID, "docker"),
    f"/docker/{OUTER}/docker/buildkit/x7k2m9qzr1v0w4t8n5b3c6d2f": Placement(OUTER, "docker"),
    f"/docker/{ID}/system.slice/kafka.service": Placement(ID, "docker", unit="kafka.service"),
    f"/kubepods/besteffort/pod{UID}/{OUTER}/docker/{ID}": Placement(ID, "docker", UID),
    f"/own-parent/{ID}": Placement(ID),
    f"/system.slice/own.service/{ID}": Placement(ID, unit="own.service"),
    # containerd
    f"{KUBEPODS}/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope": Placement(ID, "containerd", UID),
    f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope": Placement(ID, "containerd", UID),
    f"/kubepods/burstable/pod{UID}/{ID}": Placement(ID, "containerd", UID),
    f"/kubepods/pod{UID}/{ID}": Placement(ID, "containerd", UID),
    f"/kubepods/burstable/pod{UID}/{ID}/init.scope": Placement(ID, "containerd", UID, "init.scope"),
    f"/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}": Placement(ID, "containerd", UID),
    f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}": Placement(
        ID, "containerd", UID, "containerd.service"
    ),
    f"/kubepods/burstable/pod{STATIC_UID}/{ID}": Placement(ID, "containerd", STATIC_UID),
    f"{KUBEPODS}/kubepods-burstable-pod{STATIC_UID}.slice/cri-containerd-{ID}.scope": Placement(
        ID, "containerd", STATIC_UID
    ),
    f"{NODE}/cri-containerd-{ID}.scope": Placement(ID, "containerd", UID),
    f"/system.slice/nerdctl-{ID}.scope": Placement(ID, "containerd"),
    # CRI-O
    f"{KUBEPODS}/kubepods-burstable-pod{UID_}.slice/crio-{ID}.scope": Placement(ID, "cri-o", UID),
    f"{KUBEPODS}/kubepods-burstable-pod{UID_}.slice/crio-{ID}.scope/container": Placement(ID, "cri-o", UID),
    f"/kubepods/burstable/pod{UID}/crio-{ID}": Placement(ID, "cri-o", UID),
    f"{KUBEPODS}/kubepods-burstable-pod{UID_}.slice/crio-conmon-{ID}.scope": Placement(pod_uid=UID),
    # podman
    f"/machine.slice/libpod-{ID}.scope": Placement(ID, "podman"),
    f"/machine.slice/libpod-{ID}.scope/container": Placement(ID, "podman"),
    f"/machine.slice/machine-libpod_pod_{OUTER}.slice/libpod-{ID}.scope": Placement(ID, "podman"),
    f"/machine.slice/libpod-conmon-{ID}.scope": Placement(),
    f"/libpod_parent/libpod-{ID}": Placement(ID, "podman"),
    f"/libpod_parent/{OUTER}/libpod-{ID}": Placement(ID, "podman"),
    f"/kubepods/burstable/pod{UID}/libpod-{ID}": Placement(ID, "podman", UID),
    f"/system.slice/kafka.service/libpod-payload-{ID}": Placement(ID, "podman", unit="kafka.service"),
    # A pod's own cgroup
    f"/kubepods/besteffort/pod{UID}": Placement(pod_uid=UID),
    # systemd
    "/system.slice/kafka.service": Placement(runtime="systemd", unit="kafka.service"),
    "/system.slice/kafka.service/worker": Placement(runtime="systemd", unit="kafka.service"),
    "/system.slice/system-kafka.slice/kafka@2.service": Placement(runtime="systemd", unit="kafka@2.service"),
    "/user.slice/user-1000.slice/user@1000.service/app.slice/sync.service": Placement(
        runtime="systemd", unit="sync.service"
    ),
    "/user.slice/user-1000.slice/session-3.scope": Placement(unit="session-3.scope"),
    "/init.scope": Placement(unit="init.scope"),
    # Nothing of the kind
    "/": Placement(),
    "/user.slice": Placement(),
    f"/jobs/{ID[:32]}": Placement(),
    f"/jobs/{ID.upper()}": Placement(),
    f"/jobs/{ID}0": Placement(),
    f"/jobs/unknown-{ID}.scope": Placement(),
    "/jobs/podcast": Placement(),
    "/jobs/.service": Placement(),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.items(), ids=PATHS)
def test_a_path_tells_its_container(path: str, expected: Placement) -> None:
    assert placement(path) == expected


PIECES = ["/", ":", "-", "docker", "crio", "pod", ID, UID, UID_, ".scope", ".service", "x"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_path_gives_a_whole_id_or_none(path: str) -> None:
    place = placement(path)
    assert place.container_id is None or re.fullmatch("[0-9a-f]{64}", place.container_id)
    assert place.pod_uid is None or re.fullmatch("[0-9a-f-]{32,36}", place.pod_uid)
    assert place.container_id is not None or place.runtime in (None, "systemd")
