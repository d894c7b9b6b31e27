"""The options of the BPF programs and the contents of their maps, for both the agent and the loader process."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kafka_probe.memory import DEFAULT

MAPS = ("events", "counters", "conns")
"""Maps whose descriptors the loader process sends to the agent, in this order, before those of programs and links."""

# Sizes of the kernel's maps: `rules`, with index api_key << 5 | api_version, and `copy_programs`.
RULES = 128 << 5
PROGRAM_OPS = 8192

_RULE = struct.Struct("<IIIHH")  # struct rule of bpf/maps.h


@dataclass(frozen=True, slots=True)
class KernelRule:
    """A rule of protocol/kernel_allow_list.py in the form of the kernel's map. Limits are in bytes.

    flags: enum rule_flag of bpf/maps.h. request_program, response_program: copy programs of ops of enum op; empty if
    the body is copied unchanged.
    """

    api_key: int
    api_version: int
    request_limit: int
    response_limit: int
    flags: int
    request_program: tuple[int, ...]
    response_program: tuple[int, ...]


def map_contents(rules: Iterable[KernelRule]) -> Iterator[tuple[str, int, bytes]]:
    """Yield the contents of the maps `rules` and `copy_programs` as (map, index, value).

    Equal copy programs are written once.
    """
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
    """Options of the programs. `ports` empty: every port. `cgroup_subsystem`: the v1 controller in use, or None.

    netns: the inode of the only network namespace to watch, 0 for all.
    perf_buffers: the descriptors of the perf buffers by CPU; empty if samples go through a ring buffer. These, the
    agent's process id and `netns` differ between starts and are not compiled in.
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

    def compiled_in(self) -> dict[str, Any]:
        """Return what the compiled programs depend on."""
        return {**asdict(replace(self, agent_tgid=0, netns=0)), "perf_buffers": bool(self.perf_buffers)}
