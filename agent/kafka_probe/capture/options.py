"""What the programs are compiled and filled with: values that both the agent and the loader's process know."""

from __future__ import annotations

from dataclasses import dataclass, field

# Places in the kernel's map of rules: api_key << 5 | api_version.
RULES = 128 << 5


@dataclass(frozen=True, slots=True)
class Rule:
    """What may leave of one API version: bytes of the request and of the response, and bpf/maps.h's rule flags.

    Walks: the ops of enum op by which a body is walked, hexadecimal; empty if it is copied as it stands.
    """

    api_key: int
    api_version: int
    request_limit: int
    response_limit: int
    flags: int
    request_walk: str
    response_walk: str


@dataclass(frozen=True, slots=True)
class Options:
    """What is compiled in. `ports` empty: every port. `cgroup_subsystem`: the v1 controller in use, if there is one.

    netns: the inode of the one network namespace that is watched, 0 for all.
    perf_buffers: the descriptors of the perf buffers by CPU, if records leave through these and not through a ring.
    """

    ports: tuple[int, ...]
    watch_connecting: bool
    watch_accepting: bool
    agent_tgid: int
    ring_bytes: int
    perf_buffers: dict[int, int] = field(default_factory=dict)
    cgroup_subsystem: str | None = None
    max_connections: int = 131072
    netns: int = 0
