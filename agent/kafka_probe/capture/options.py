"""What the programs are compiled and filled with: values that both the agent and the loader's process know."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kafka_probe.memory import DEFAULT

# Places in the kernel's map of rules, api_key << 5 | api_version, and in that of copy programs.
RULES = 128 << 5
PROGRAM_OPS = 8192

_RULE = struct.Struct("<IIIHH")  # struct rule of bpf/maps.h


@dataclass(frozen=True, slots=True)
class Rule:
    """What may leave of one API version: bytes of the request and of the response, and bpf/maps.h's rule flags.

    Programs: ops of enum op by which a body is copied; empty if it is copied as it stands.
    """

    api_key: int
    api_version: int
    request_limit: int
    response_limit: int
    flags: int
    request_program: tuple[int, ...]
    response_program: tuple[int, ...]


def map_contents(rules: Iterable[Rule]) -> Iterator[tuple[str, int, bytes]]:
    """What the maps `rules` and `copy_programs` are filled with: map, index, value. Equal programs are written once."""
    starts: dict[tuple[int, ...], int] = {(): 0}
    free = 1
    for rule in rules:
        programs = tuple(rule.request_program), tuple(rule.response_program)
        for program in programs:
            if program not in starts:
                starts[program] = free
                for op in program:
                    yield "copy_programs", free, struct.pack("<H", op)
                    free += 1
        limits = rule.request_limit, rule.response_limit
        value = _RULE.pack(*limits, rule.flags, *(starts[program] for program in programs))
        yield "rules", rule.api_key << 5 | rule.api_version, value


@dataclass(frozen=True, slots=True)
class Options:
    """What is compiled in. `ports` empty: every port. `cgroup_subsystem`: the v1 controller in use, if there is one.

    netns: the inode of the one network namespace that is watched, 0 for all.
    perf_buffers: the descriptors of the perf buffers by CPU, if samples leave through these and not through a ring.
    """

    ports: tuple[int, ...]
    watch_client: bool
    watch_server: bool
    agent_tgid: int
    ring_bytes: int
    perf_buffers: dict[int, int] = field(default_factory=dict)
    cgroup_subsystem: str | None = None
    max_connections: int = DEFAULT.connections
    netns: int = 0
