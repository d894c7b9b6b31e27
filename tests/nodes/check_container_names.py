"""A container of a real Podman has the name that Podman gave it. Its store is in the checkout instead of /var/lib."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_probe.workloads.container_names import ContainerNames
from tests.nodes.images import BASE, make_base
from tests.nodes.podman import STORE, podman

pytestmark = pytest.mark.root

NAME = "kafka-probe-names"


def test_podman_names_its_container(tmp_path: Path) -> None:
    make_base()
    usual = tmp_path / "1/root/var/lib/containers/storage"
    usual.parent.mkdir(parents=True)
    usual.symlink_to(STORE / "root")
    container = podman("run", "--detach", "--network=none", "--name", NAME, BASE, "sleep", "300").strip()
    try:
        assert ContainerNames(tmp_path).name("podman", container) == NAME
        assert ContainerNames(tmp_path).name("podman", "0" * 64) is None
    finally:
        podman("rm", "--force", "--time", "1", container)
