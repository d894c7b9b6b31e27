"""What needs privileges, done first: the hooks in the kernel and the list of older connections. Then they are given up.

What stays is what naming processes needs, and what single features need. It is given up before any thread is started.
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

from kafka_probe import check
from kafka_probe.capture.options import Options, Rule
from kafka_probe.capture.programs import Programs
from kafka_probe.config import Config
from kafka_probe.connections.listing import Listing
from kafka_probe.memory import Bounds
from kafka_probe.privileges import Capability, give_up_all_but
from kafka_probe.protocol.rules import copy_rules
from kafka_probe.workloads import Cgroups

# Since then who holds a map's descriptor may read the map: kernel/bpf/syscall.c.
_MAPS_FOR_HOLDERS = 5, 19

log = logging.getLogger("kafka_probe")


@contextmanager
def attached(config: Config, bounds: Bounds) -> Iterator[tuple[Programs, Listing | None]]:
    """The programs, attached until the end, and the list of older connections at work; None: every port is watched.

    Raises:
        StartError: the host cannot capture.
    """
    check.require_capture()
    options = Options(
        ports=() if config.ports == "auto" else config.ports,
        watch_client=config.side in ("both", "client"),
        watch_server=config.side in ("both", "server"),
        agent_tgid=os.getpid(),
        netns=config.netns.stat().st_ino if config.netns else 0,
        ring_bytes=config.ring_size_bytes,
        cgroup_subsystem=Cgroups().v1_controller,
        max_connections=bounds.connections,
    )
    with closing(Programs.load(config.backend, config.buffer, options, rules())) as programs:
        not_others = "".join(f"; not by {name}: {reason}" for name, reason in programs.refused.items())
        log.info("attached by %s to %s%s", programs.backend, platform.release(), not_others)
        if config.kernel_time and (refusal := programs.measure()):
            log.warning("The kernel does not measure how long the programs run: %s.", refusal)
        watched = options.ports, config.side, config.netns, options.agent_tgid, bounds.connections
        with closing(Listing(*watched)) if options.ports else nullcontext() as listing:
            try:
                give_up_all_but(_needed(config))
            except OSError as error:
                log.warning("Capabilities that are not needed any more stay: capset is refused (%s).", error.strerror)
            if config.ready_file:
                config.ready_file.touch()
            yield programs, listing
    log.info("detached")


def rules() -> Iterator[Rule]:
    """How far copies of each API, version and direction may go, in the form that the kernel's programs take."""
    for rule in copy_rules():
        flags = 1 | rule.flexible << 1
        limits = rule.request_limit_bytes, rule.response_limit_bytes
        yield Rule(rule.api_key, rule.api_version, *limits, flags, rule.request_program, rule.response_program)


def _needed(config: Config) -> Iterator[Capability]:
    yield Capability.SYS_PTRACE
    yield Capability.DAC_READ_SEARCH
    if config.conntrack:
        yield Capability.NET_ADMIN
    if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < _MAPS_FOR_HOLDERS:
        yield Capability.BPF
