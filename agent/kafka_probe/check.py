"""Checks the requirements of the agent on the host; each result is a finding: ok, or a remedy.

`kafka-probe check` prints `findings`; `run` starts only if `require_capture` passes. This module never imports BCC.
The checks read files, which tests replace by a tree of their own, except `backends`, `packages` and `brokers`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_probe.errors import StartError
from kafka_probe.privileges import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka_probe.config import Config


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy`: what to do if it is not ok."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """The host that is checked: file system, kernel and Python path."""

    root: Path = Path("/")
    system: str = field(default_factory=lambda: os.uname().sysname)
    machine: str = field(default_factory=lambda: os.uname().machine)
    release: str = field(default_factory=lambda: os.uname().release)
    python_path: tuple[str, ...] | None = None

    def read(self, path: str) -> str | None:
        """Return the text of a file below the root; None if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def has_capability(self, *wanted: Capability) -> bool:
        """Return True if this process has all these capabilities in effect."""
        found = re.search(r"^CapEff:\s*([0-9a-f]+)$", self.read("proc/self/status") or "", re.MULTILINE)
        return found is not None and all(int(found[1], 16) >> capability & 1 for capability in wanted)


def system(host: Host) -> Finding:
    """Check for Linux on x86_64: the backends read arguments from the registers of this architecture."""
    ok = (host.system, host.machine) == ("Linux", "x86_64")
    return Finding("system", ok, f"{host.system} {host.machine}", "kafka-probe captures on Linux x86_64 only")


def btf(host: Host) -> Finding:
    """Check for the running kernel's BTF, which contains the offsets of struct members."""
    path = host.root / "sys/kernel/btf/vmlinux"
    remedy = "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, such as those of Debian, Ubuntu, Fedora and RHEL"
    if not path.exists():
        return Finding("btf", False, f"{path} is absent", remedy)
    return Finding("btf", True, f"{path}, {path.stat().st_size >> 10} KiB")


def privileges(host: Host) -> Finding:
    """Check for the capabilities to load BPF programs and to attach them to tracepoints."""
    if host.has_capability(Capability.SYS_ADMIN):
        return Finding("privileges", True, "CAP_SYS_ADMIN")
    if host.has_capability(Capability.BPF, Capability.PERFMON):
        return Finding("privileges", True, "CAP_BPF and CAP_PERFMON")
    return Finding("privileges", False, "not permitted to load BPF programs", "run it as root: sudo kafka-probe ...")


def lockdown(host: Host) -> Finding:
    """Check the lockdown mode: confidentiality forbids BPF to read kernel memory, integrity does not."""
    found = re.search(r"\[(\w+)\]", host.read("sys/kernel/security/lockdown") or "")
    mode = found[1] if found else "unknown, securityfs is not mounted"
    remedy = "boot with lockdown=integrity or none: confidentiality forbids BPF to read kernel memory"
    return Finding("lockdown", mode != "confidentiality", mode, remedy)


def bpfcc(host: Host) -> Finding:
    """Check for BCC's Python package, which distributions ship; the project `bcc` on PyPI is a different one."""
    remedy = (
        "apt-get install python3-bpfcc (Debian, Ubuntu) or dnf install python3-bcc (Fedora), "
        "and use /usr/bin/python3 or a virtual environment made by it with --system-site-packages"
    )
    spec = PathFinder.find_spec("bcc", None if host.python_path is None else list(host.python_path))
    if spec is None or spec.origin is None or not (folder := Path(spec.origin).parent).joinpath("libbcc.py").exists():
        return Finding("bpfcc", False, "BCC's Python package is not installed", remedy)
    version = re.search(r"__version__ = '(.+)'", (folder / "version.py").read_text())
    return Finding("bpfcc", True, version[1] if version else "version unknown")


def cgroups(host: Host) -> Finding:
    """Check which cgroup hierarchies are mounted: container names come from them."""
    kinds = {line.split()[2] for line in (host.read("proc/mounts") or "").splitlines() if len(line.split()) > 2}
    versions = {frozenset({"cgroup2"}): "v2", frozenset({"cgroup"}): "v1", frozenset({"cgroup", "cgroup2"}): "hybrid"}
    mode = versions.get(frozenset(kinds & {"cgroup", "cgroup2"}))
    remedy = "mount -t cgroup2 none /sys/fs/cgroup"
    return Finding("cgroups", mode is not None, mode or "no hierarchy is mounted: containers have no names", remedy)


def backends() -> Finding:
    """Check which backends the kernel supports, by attaching a program that does nothing."""
    from kafka_probe.capture.backends import BACKENDS, refusal, type_ids
    from kafka_probe.capture.btf import Btf

    try:
        ids = type_ids(Btf())
    except StartError as error:
        return Finding("backends", False, str(error), "see the finding btf")
    refused = {backend: refusal(backend, ids) for backend in BACKENDS}
    details = [
        *(f"{backend} works" for backend, why in refused.items() if not why),
        *(f"{backend} refused: {why}" for backend, why in refused.items() if why),
    ]
    remedy = "boot a kernel 5.10 or newer with CONFIG_KPROBES=y, or 6.3 or newer"
    return Finding("backends", not all(refused.values()), "; ".join(details), remedy)


def packages() -> Finding:
    """Check for the Python packages that the agent imports."""
    agent = ("click", "kafka-python", "numpy", "orjson", "psutil", "pydantic", "pydantic-settings", "rich", "zstandard")
    names = (*agent, "prometheus-client", "starlette", "uvicorn")
    present: list[str] = []
    absent: list[str] = []
    for name in names:
        try:
            present.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            absent.append(name)
    remedy = f"pip install {' '.join(absent)}"
    return Finding("packages", not absent, f"absent: {', '.join(absent)}" if absent else ", ".join(present), remedy)


def brokers(config: Config) -> Finding:
    """Check that the brokers for the events are reachable with these settings."""
    servers = ",".join(config.bootstrap_servers)
    if not servers:
        return Finding("brokers", True, "not checked: bootstrap_servers is not set")
    from kafka_probe.sinks.kafka import reach

    try:
        return Finding("brokers", True, f"{servers}: {reach(config)}")
    except ConnectionError as error:
        remedy = "check address, firewall and security settings; the agent starts without brokers and keeps trying"
        return Finding("brokers", False, f"{servers}: {error}", remedy)


CAPTURE = (system, btf, privileges, lockdown, bpfcc)


def findings(config: Config, host: Host | None = None) -> Iterator[Finding]:
    """Yield all findings, in the order in which to repair them."""
    host = host or Host()
    for check in (*CAPTURE, cgroups):
        yield check(host)
    yield backends()
    yield packages()
    yield brokers(config)


def require_capture(host: Host | None = None) -> None:
    """Raise `StartError`, a sentence with the remedy, if this host cannot capture."""
    host = host or Host()
    for check in CAPTURE:
        finding = check(host)
        if not finding.ok:
            raise StartError(f"Cannot capture, {finding.name}: {finding.detail}; {finding.remedy}.")
