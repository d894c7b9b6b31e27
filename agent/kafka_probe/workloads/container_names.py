"""Names of containers, from the state files of their engines.

The files are read as the first process of the host sees them, so that an agent in a container of its own finds them.
They belong to root and may contain secrets, such as environment variables, of which nothing is kept. This module never
queries an engine. Sources: moby daemon/container/container.go (config.v2.json), containers/storage containers.go
(containers.json), the annotations of containerd's CRI plugin, nerdctl and CRI-O in an OCI bundle's config.json.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import orjson

from kafka_probe.workloads.process import PROC

_MOST_BYTES = 1 << 20  # of a state file; one of podman has all containers
_MOST_NAMES, _MOST_CHARACTERS = 1024, 256
_STORES = ("/var/lib/containers/storage", "/run/containers/storage")
_NAMESPACES = ("k8s.io", "default", "moby")
_ANNOTATIONS = ("io.kubernetes.cri.container-name", "nerdctl/name", "io.kubernetes.container.name")

log = logging.getLogger(__name__)


class ContainerNames:
    """The names of containers by runtime and id. It remembers those that were found last."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._names: dict[tuple[str, str], str] = {}
        self._warned: set[str] = set()

    def name(self, runtime: str | None, container_id: str) -> str | None:
        """Return the name that the engine gave a container; None if it cannot be read.

        runtime: docker, podman, containerd or cri-o, as in the event schema. container_id: 64 hexadecimal digits.
        """
        if runtime is None or runtime not in _SOURCES:
            return None
        if known := self._names.get((runtime, container_id)):
            return known
        for path, name_of in _SOURCES[runtime](container_id):
            state = _state(path, self._proc)
            name = name_of(state) if state is not None else None
            if isinstance(name, str) and name:
                if len(self._names) == _MOST_NAMES:
                    del self._names[next(iter(self._names))]
                return self._names.setdefault((runtime, container_id), name[:_MOST_CHARACTERS])
        if runtime not in self._warned:
            self._warned.add(runtime)
            log.warning("No state file of a %s container could be read: it is shown by its id.", runtime)
        return None


_Source = tuple[str, Callable[[Any], object]]


def _of_docker(container_id: str) -> Iterator[_Source]:
    yield f"/var/lib/docker/containers/{container_id}/config.v2.json", lambda state: _text(state, "Name").lstrip("/")


def _of_podman(container_id: str) -> Iterator[_Source]:
    def listed(state: Any) -> object:
        entries = state if isinstance(state, list) else []
        found = (each.get("names") for each in entries if isinstance(each, dict) and each.get("id") == container_id)
        names = next(found, None)
        return names[0] if isinstance(names, list) and names else None

    for store, file in product(_STORES, ("containers.json", "volatile-containers.json")):
        yield f"{store}/overlay-containers/{file}", listed
        yield f"{store}/vfs-containers/{file}", listed


def _of_containerd(container_id: str) -> Iterator[_Source]:
    for namespace in _NAMESPACES:
        yield f"/run/containerd/io.containerd.runtime.v2.task/{namespace}/{container_id}/config.json", _annotated


def _of_crio(container_id: str) -> Iterator[_Source]:
    for store in _STORES:
        yield f"{store}/overlay-containers/{container_id}/userdata/config.json", _annotated


_SOURCES: Mapping[str, Callable[[str], Iterator[_Source]]] = {
    "docker": _of_docker,
    "podman": _of_podman,
    "containerd": _of_containerd,
    "cri-o": _of_crio,
}


def _annotated(state: Any) -> object:
    annotations = state.get("annotations") if isinstance(state, dict) else None
    if not isinstance(annotations, dict):
        return None
    return next(filter(None, map(annotations.get, _ANNOTATIONS)), None)


def _text(state: Any, key: str) -> str:
    value = state.get(key) if isinstance(state, dict) else None
    return value if isinstance(value, str) else ""


def _state(path: str, proc: Path) -> Any:
    """Return the contents of a JSON file of the host; None if it is missing, too large or damaged."""
    try:
        descriptor = os.open(f"{proc}/1/root{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            text = file.read(_MOST_BYTES + 1)
        return orjson.loads(text) if len(text) <= _MOST_BYTES else None
    except (OSError, orjson.JSONDecodeError):
        return None
