"""Runs Podman with its own stores and settings, and starts containers as a kubelet would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.lab.processes import LabError
from tests.nodes.chart import Manifest

STORE = Path(__file__).parents[2] / "build" / "nodes"
_TIMEOUT_S = 900
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
# runc, because crun refuses a hybrid of cgroup hierarchies; and no systemd that would manage cgroups or keep logs.
_CONFIGURATION = f"""
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "netavark"
network_config_dir = "{STORE}/networks"
"""


def podman(*arguments: str | Path, both: bool = False) -> str:
    """Return Podman's standard output, or both outputs. Raises `LabError`, which ends with its output."""
    done = subprocess.run(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        output = (done.stdout + (done.stderr or ""))[-4000:]
        raise LabError(f"podman {arguments[0]} ended with status {done.returncode}:\n{output}")
    return done.stdout


def command(*arguments: str | Path) -> list[str | Path]:
    """Return the command line of Podman with these arguments."""
    STORE.mkdir(parents=True, exist_ok=True)
    configuration = STORE / "containers.conf"
    configuration.write_text(_CONFIGURATION)
    variables = f"CONTAINERS_CONF={configuration}", f"PATH={_PATH}"
    return ["env", *variables, "podman", "--root", STORE / "root", "--runroot", STORE / "run", *arguments]


@contextmanager
def running(image: str, flags: Sequence[str], *arguments: str) -> Iterator[str]:
    """Run a container until it is stopped in order; yield its id.

    Raises:
        LabError: it could not be started, or ended with another status than 0; the text ends with its log.
    """
    container = podman("run", "--detach", *flags, image, *arguments).strip()
    try:
        yield container
        podman("stop", "--time", "30", container)
        if status := int(podman("wait", container)):
            raise LabError(f"the container of {image} ended with status {status}:\n{logs(container)}")
    finally:
        podman("rm", "--force", "--time", "1", container)


@contextmanager
def pods_cgroup(uid: str) -> Iterator[str]:
    """Yield the path of a pod's cgroup, named as by a kubelet. Remove it at the end, since Podman does not."""
    path = f"/kubepods/burstable/pod{uid}"
    try:
        yield path
    finally:
        mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
        for mount_point in [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]:
            for folder in (path, "/kubepods/burstable", "/kubepods"):
                with suppress(OSError):  # not there, or somebody else's too
                    (mount_point / folder[1:]).rmdir()


def logs(container: str) -> str:
    """Return the output of a container."""
    return podman("logs", container, both=True)


def as_a_kubelet(pod: Manifest, documents: Sequence[Manifest], directory: Path, node: str) -> list[str]:
    """Return the flags with which Podman starts a pod's only container as its manifest requires.

    Whatever else stands in its security context or among its volumes is a LabError: nothing may be left out unseen.
    """
    if pod.get("hostNetwork"):
        raise LabError("this test's kubelet does not know hostNetwork")
    (agent,) = pod["containers"]
    configured = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
    volumes = {each["name"]: each for each in pod["volumes"]}
    return [
        *_security(dict(agent["securityContext"])),
        *(["--pid=host"] if pod["hostPID"] else []),
        # As in Kubernetes where the node has cgroup v2.
        "--cgroupns=private",
        f"--memory={agent['resources']['limits']['memory'].lower().removesuffix('i')}",
        *(f"--env={each['name']}={_value(each, node)}" for each in agent["env"]),
        *(f"--volume={_volume(volumes[m['name']], m, configured, directory)}" for m in agent["volumeMounts"]),
    ]


def _security(context: dict[str, Any]) -> Iterator[str]:
    capabilities = context.pop("capabilities")
    yield from (f"--cap-drop={name}" for name in capabilities["drop"])
    yield from (f"--cap-add={name}" for name in capabilities["add"])
    yield f"--user={context.pop('runAsUser')}:{context.pop('runAsGroup')}"
    if context.pop("readOnlyRootFilesystem"):
        yield from ("--read-only", "--read-only-tmpfs=false")
    if not context.pop("allowPrivilegeEscalation"):
        yield "--security-opt=no-new-privileges"
    if context.pop("seccompProfile") == {"type": "Unconfined"}:
        yield "--security-opt=seccomp=unconfined"
    if context.pop("appArmorProfile") == {"type": "Unconfined"}:
        yield "--security-opt=apparmor=unconfined"
    if context:
        raise LabError(f"this test's kubelet does not know {context} in a security context")


def _value(variable: Mapping[str, Any], node: str) -> str:
    return node if variable.get("valueFrom") == {"fieldRef": {"fieldPath": "spec.nodeName"}} else variable["value"]


def _volume(
    volume: Mapping[str, Any], mount: Mapping[str, Any], configured: Mapping[str, Mapping[str, str]], directory: Path
) -> str:
    match volume:
        case {"hostPath": {"path": str(path)}}:
            source = Path(path)
        case {"emptyDir": _}:
            source = directory / volume["name"]
            source.mkdir()
        case {"configMap": {"name": str(name)}}:
            source = directory / volume["name"]
            source.mkdir()
            for file, text in configured[name].items():
                (source / file).write_text(text)
        case other:
            raise LabError(f"this test's kubelet does not know the volume {yaml.safe_dump(dict(other))}")
    return f"{source}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"
