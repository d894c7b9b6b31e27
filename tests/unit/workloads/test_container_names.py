"""Names of containers from the state files of engines, in the form in which these write them.

podman is also run for real, see tests/nodes. containerd and CRI-O are not: their files are written here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kafka_probe.workloads import container_names
from kafka_probe.workloads.container_names import ContainerNames

ID, OTHER = "c0ffee42" * 8, "0" * 64
DOCKER = "/var/lib/docker/containers"
BUNDLE = "/run/containerd/io.containerd.runtime.v2.task"
STORE = "/var/lib/containers/storage/overlay-containers"
PODMAN = [{"id": OTHER, "names": ["other"]}, {"id": ID, "names": ["kafka-1"], "metadata": "{}"}]


def host(directory: Path, path: str, state: object) -> Path:
    """Write a state file of the host; return the directory that stands for /proc."""
    file = directory / "1" / "root" / path.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(state if isinstance(state, str) else json.dumps(state))
    return directory


@pytest.mark.parametrize(
    ("runtime", "path", "state"),
    [
        ("docker", f"{DOCKER}/{ID}/config.v2.json", {"ID": ID, "Name": "/kafka-1"}),
        ("podman", f"{STORE}/containers.json", PODMAN),
        ("podman", f"{STORE}/volatile-containers.json", PODMAN),
        (
            "containerd",
            f"{BUNDLE}/k8s.io/{ID}/config.json",
            {"annotations": {"io.kubernetes.cri.container-name": "kafka-1"}},
        ),
        ("containerd", f"{BUNDLE}/default/{ID}/config.json", {"annotations": {"nerdctl/name": "kafka-1"}}),
        (
            "cri-o",
            f"{STORE}/{ID}/userdata/config.json",
            {"annotations": {"io.kubernetes.container.name": "kafka-1"}},
        ),
    ],
)
def test_the_name_is_that_of_the_engine(runtime: str, path: str, state: object, tmp_path: Path) -> None:
    proc = host(tmp_path, path, state)
    assert ContainerNames(proc).name(runtime, ID) == "kafka-1"
    assert ContainerNames(proc).name(runtime, OTHER) == ("other" if runtime == "podman" else None)
    assert ContainerNames(proc).name("systemd", ID) is None
    assert ContainerNames(proc).name(None, ID) is None


@pytest.mark.parametrize(
    "state", ["", "{", "[]", "7", "null", '{"Name": 7}', '{"Name": null}', '{"Name": ""}', "[" * 10_000]
)
def test_a_damaged_file_has_no_name(state: str, tmp_path: Path) -> None:
    assert ContainerNames(host(tmp_path, f"{DOCKER}/{ID}/config.v2.json", state)).name("docker", ID) is None


@pytest.mark.parametrize("state", ["{}", "7", '[7, null, {}, {"id": 1}]', json.dumps([{"id": ID, "names": "x"}])])
def test_a_damaged_list_has_no_name(state: str, tmp_path: Path) -> None:
    assert ContainerNames(host(tmp_path, f"{STORE}/containers.json", state)).name("podman", ID) is None


def test_a_file_that_is_too_large_or_a_link_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{DOCKER}/{ID}/config.v2.json"
    proc = host(tmp_path / "large", path, {"Name": "/kafka-1"})
    monkeypatch.setattr(container_names, "_MOST_BYTES", 10)
    assert ContainerNames(proc).name("docker", ID) is None
    monkeypatch.undo()
    linked = host(tmp_path / "linked", f"{path}.other", {"Name": "/kafka-1"})
    file = linked / "1" / "root" / path.lstrip("/")
    file.symlink_to(f"{file}.other")
    assert ContainerNames(linked).name("docker", ID) is None


def test_a_name_is_remembered_and_cut_and_its_absence_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(container_names, "_MOST_NAMES", 1)
    names = ContainerNames(tmp_path)
    for _ in range(2):
        assert names.name("docker", ID) is None
    assert caplog.messages == ["No state file of a docker container could be read: it is shown by its id."]
    host(tmp_path, f"{DOCKER}/{ID}/config.v2.json", {"Name": f"/{'k' * 300}"})
    host(tmp_path, f"{DOCKER}/{OTHER}/config.v2.json", {"Name": "/other"})
    assert names.name("docker", ID) == "k" * 256
    assert names.name("docker", OTHER) == "other"
    assert [*names._names] == [("docker", OTHER)]


def test_a_pipe_has_no_name(tmp_path: Path) -> None:
    file = host(tmp_path, f"{DOCKER}/{ID}/other", "") / "1" / "root" / DOCKER.lstrip("/") / ID / "config.v2.json"
    os.mkfifo(file)
    assert ContainerNames(tmp_path).name("docker", ID) is None
