"""Container, runtime, Kubernetes pod and systemd unit of processes, derived from their cgroup path.

Engines name a container's cgroup after its id. The deepest such name on the path counts: containers nest (kind, Docker
in Docker), and crun, systemd and others create cgroups of their own below it. This module never queries an engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

RUNTIMES = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
    "libpod-payload": "podman",
}
"""Runtime by prefix of the cgroup's name. Other prefixes mark no container: `crio-conmon` is a container's monitor."""

# `<id>` and `libpod-<id>` with the cgroupfs driver, `docker-<id>.scope` with systemd's; `<slice>:cri-containerd:<id>`
# if the engine uses the cgroupfs driver but its configuration names a slice.
_CONTAINER = re.compile(r"(?:[^:]*:)?(?:(?P<engine>[a-z-]+)[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?")
# A static pod's uid is a hash without dashes. In a slice's name dashes mean nesting, so there they are underscores.
_POD = re.compile(r"(?:^|-)pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice|$)")
_UNIT = re.compile(r".+\.(?:service|scope)")
# In a container the path may begin with the way up from the container's own cgroup.
_OF_USERS = re.compile(r"(?:/\.\.)*/user\.slice/")


@dataclass(frozen=True, slots=True)
class Placement:
    """Container, runtime, pod and unit of a cgroup, each None if not in its path. `runtime` as in the event schema."""

    container_id: str | None = None
    runtime: str | None = None
    pod_uid: str | None = None
    unit: str | None = None


def placement(path: str) -> Placement:
    """Parse a cgroup path, in which `/` is the root of the hierarchy."""
    container_id = runtime = pod_uid = unit = None
    for parent, name in pairwise(path.split("/")):
        if pod := _POD.search(name.partition(":")[0]):
            pod_uid = pod["uid"].replace("_", "-")
        if container := _CONTAINER.fullmatch(name):
            if container["engine"] is None:
                container_id, runtime = container["id"], _runtime_below(parent)
            elif container["engine"] in RUNTIMES:
                container_id, runtime = container["id"], RUNTIMES[container["engine"]]
        elif _UNIT.fullmatch(name):
            unit = name
    if runtime is None and container_id is None and unit is not None and unit.endswith(".service"):
        runtime = "systemd"
    return Placement(container_id, runtime, pod_uid, unit)


def is_of_users(path: str | None) -> bool:
    """Return True for a cgroup that a user may have created, with the name of any container or pod.

    Kubernetes and engines that run as root create none there.
    """
    return _OF_USERS.match(path or "") is not None


def _runtime_below(parent: str) -> str | None:
    """Return the runtime of a cgroup named by the bare id.

    Below a pod's cgroup it is taken for containerd; rarely it is cri-dockerd.
    """
    return "containerd" if _POD.search(parent) else RUNTIMES.get(parent)
