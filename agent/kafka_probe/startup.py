"""Startup with privileges: attaches the programs, starts the list of older connections, then drops capabilities.

The agent keeps only the capabilities for naming processes and those for enabled features. It drops the others before
it starts any thread, because capabilities are per thread. This module never reads samples.
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

from kafka_probe import check
from kafka_probe.capture.cache import ROOT, Cache
from kafka_probe.capture.options import KernelRule, Options
from kafka_probe.capture.programs import Programs, compile_into_cache
from kafka_probe.config import Config
from kafka_probe.connections.listing import Listing
from kafka_probe.errors import StartError
from kafka_probe.memory import Bounds
from kafka_probe.privileges import Capability, give_up_all_but
from kafka_probe.protocol.kernel_allow_list import copy_rules
from kafka_probe.workloads import Cgroups

# Since this kernel version, a process without CAP_BPF may read a map whose descriptor it holds: kernel/bpf/syscall.c.
_MAPS_FOR_HOLDERS = 5, 19

log = logging.getLogger("kafka_probe")


@contextmanager
def attached(config: Config, bounds: Bounds) -> Iterator[tuple[Programs, Listing | None]]:
    """Yield the attached programs and the list of older connections, or None if every port is watched.

    The list may not be complete yet. The programs are detached at the end of the context.

    Raises:
        StartError: the host cannot capture.
    """
    check.require_capture()
    options = _options(config, bounds)
    cache_dir = None if config.cache_dir == "off" else config.cache_dir
    with closing(Programs.load(config.backend, config.buffer, options, rules(), cache_dir)) as programs:
        refused = "".join(f"; {name} refused: {reason}" for name, reason in programs.refused.items())
        attached_to = _ports(options), programs.backend, platform.release(), refused
        log.info("BPF programs attached, ports %s (backend %s, kernel %s%s).", *attached_to)
        for problem in programs.cache_problems:
            log.warning("%s", problem)
        if config.kernel_time and (refusal := programs.measure()):
            log.warning(
                "The kernel does not measure the run time of the programs: %s. Grant CAP_SYS_ADMIN, or set "
                "--kernel-time false.",
                refusal,
            )
        watched = options.ports, config.side, config.netns, options.agent_tgid, bounds.connections
        with closing(Listing(*watched)) if options.ports else nullcontext() as listing:
            try:
                give_up_all_but(_needed(config))
            except OSError as error:
                log.warning("The agent keeps capabilities that it no longer needs: capset failed (%s).", error.strerror)
            if config.ready_file:
                config.ready_file.touch()
            yield programs, listing
    log.info("BPF programs detached.")


def compile_programs(config: Config, bounds: Bounds) -> None:
    """Compile the programs into the cache, unless it has them.

    Raises:
        StartError: the host cannot capture, or the cache cannot be used or written.
    """
    if config.cache_dir == "off":
        log.info("Nothing is compiled before the start, because --cache-dir is off.")
        return
    check.require_capture()
    if os.geteuid() != ROOT:
        raise StartError("Only root can write the cache: run `kafka-probe compile` as root.")
    os.umask(0o022)  # other users pass directories that are made
    if problems := Cache(config.cache_dir).problems:
        raise StartError(" ".join(problems))
    options = _options(config, bounds)
    for problem in compile_into_cache(config.backend, config.buffer, options, config.cache_dir):
        log.warning("%s", problem)
    log.info("The cache %s has the programs for ports %s.", config.cache_dir, _ports(options))


def _options(config: Config, bounds: Bounds) -> Options:
    return Options(
        ports=() if config.ports == "auto" else config.ports,
        watch_client=config.side in ("both", "client"),
        watch_server=config.side in ("both", "server"),
        agent_tgid=os.getpid(),
        netns=config.netns.stat().st_ino if config.netns else 0,
        ring_bytes=config.ring_size_bytes,
        cgroup_subsystem=Cgroups().v1_controller,
        max_connections=bounds.connections,
    )


def _ports(options: Options) -> str:
    return ", ".join(map(str, options.ports)) or "all"


def rules() -> Iterator[KernelRule]:
    """Yield the limits for copying frames of each API version, in the form that the BPF programs read."""
    for rule in copy_rules():
        flags = 1 | rule.flexible << 1
        limits = rule.request_limit_bytes, rule.response_limit_bytes
        yield KernelRule(rule.api_key, rule.api_version, *limits, flags, rule.request_program, rule.response_program)


def _needed(config: Config) -> Iterator[Capability]:
    yield Capability.SYS_PTRACE
    yield Capability.DAC_READ_SEARCH
    if config.conntrack:
        yield Capability.NET_ADMIN
    if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < _MAPS_FOR_HOLDERS:
        yield Capability.BPF
