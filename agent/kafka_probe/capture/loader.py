"""Compiles the BPF programs with BCC, fills their maps and attaches them.

The only room that imports bcc. It knows maps and programs, not what the records mean.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_probe
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.record import COUNTERS, LOSSES
from kafka_probe.errors import StartError

if TYPE_CHECKING:
    from bcc import BPF

RULES = 128 << 5
STEPS = 64

# Every struct member that the programs read, as OFFSET_<STRUCT>_<MEMBER>.
_MEMBERS = {
    "sock_common": (
        "skc_portpair",
        "skc_family",
        "skc_rcv_saddr",
        "skc_daddr",
        "skc_v6_rcv_saddr",
        "skc_v6_daddr",
        "skc_net",
    ),
    "sock": ("sk_protocol", "sk_shutdown", "sk_err"),
    "tcp_sock": (
        "rcv_nxt",
        "bytes_received",
        "snd_una",
        "bytes_acked",
        "write_seq",
        "copied_seq",
        "bytes_sent",
        "bytes_retrans",
        "total_retrans",
        "srtt_us",
    ),
    "net": ("ns",),
    "ns_common": ("inum",),
    "task_struct": ("group_leader", "mm", "start_boottime", "comm", "cgroups"),
    "mm_struct": ("arg_start", "arg_end"),
    "css_set": ("subsys",),
    "cgroup_subsys_state": ("cgroup",),
    "cgroup": ("kn",),
    "kernfs_node": ("id",),
    "pt_regs": ("orig_ax", "si", "dx", "cs"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What may leave of one API version: bytes of the request and of the response, and bpf/maps.h's rule flags."""

    api_key: int
    api_version: int
    request_limit: int
    response_limit: int
    flags: int


@dataclass(frozen=True, slots=True)
class Options:
    """What is compiled in. `ports` empty: every port. `roles` are bits 1 << enum role of bpf/sock.h."""

    ports: tuple[int, ...]
    watch_connecting: bool
    watch_accepting: bool
    agent_tgid: int
    ring_bytes: int
    cgroup_subsystem: str | None
    max_connections: int = 131072


def sources() -> Path:
    """The folder of the C sources: inside the wheel, or beside the package in a checkout."""
    package = Path(kafka_probe.__file__).parent
    inside = package / "bpf"
    return inside if inside.is_dir() else package.parents[1] / "bpf"


def flatten(path: Path, seen: set[Path] | None = None) -> str:
    """The text of a C source with its own headers in place: BCC rewrites map accesses in the main file only."""
    seen = set() if seen is None else seen
    if path in seen:
        return ""
    seen.add(path)
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith('#include "'):
            lines += [flatten(path.parent / line.split('"')[1], seen), f'#line {number + 1} "{path.name}"']
        elif not line.startswith("#pragma once"):
            lines.append(line)
        else:
            lines.append("")
    return "\n".join(lines)


def _defines(options: Options, btf: Btf) -> dict[str, int | str]:
    offsets = {
        f"OFFSET_{struct}_{member}".upper(): btf.offset(struct, member)
        for struct, members in _MEMBERS.items()
        for member in members
    }
    subsystem = -1
    if options.cgroup_subsystem is not None:
        value = btf.enumerator(f"{options.cgroup_subsystem}_cgrp_id")
        if value is None:
            raise StartError(f"this kernel has no cgroup v1 controller {options.cgroup_subsystem}")
        subsystem = value
    return {
        **offsets,
        "CGROUP_SUBSYSTEM": subsystem,
        "ANY_PORT": int(not options.ports),
        "PORT_MATCH(port)": "||".join(f"(port)=={port}" for port in options.ports) or "1",
        "WATCHED_ROLES": options.watch_connecting << 1 | options.watch_accepting << 2,
        "AGENT_TGID": options.agent_tgid,
        "RING_PAGES": options.ring_bytes // 4096,
        "MAX_CONNECTIONS": options.max_connections,
        "RULES": RULES,
        "STEPS": STEPS,
    }


class Programs:
    """The loaded and attached programs of one backend. Close it to detach them; the end of the process does so, too."""

    def __init__(self, backend: str, options: Options, rules: Iterable[Rule], btf: Btf) -> None:
        bpf = _import_bcc()
        source = sources()
        os.environ["BCC_KERNEL_SOURCE"] = str(source)
        defines = _defines(options, btf)
        flags = [f"-D{name}={value}" for name, value in defines.items()]
        try:
            self._bpf: BPF = bpf(text=flatten(source / f"{backend}.c").encode(), cflags=flags)
            self._fill(rules)
        except Exception as error:  # bcc raises bare Exception, its reason goes to standard error
            raise StartError(f"the {backend} programs could not be loaded: {error}") from error

    def _fill(self, rules: Iterable[Rule]) -> None:
        from bcc import BPF

        for index, name in enumerate((b"follow_send", b"follow_receive")):
            self._bpf["continuations"][index] = self._bpf.load_func(name, BPF.RAW_TRACEPOINT)
        table = self._bpf["rules"]
        for rule in rules:
            index = rule.api_key << 5 | rule.api_version
            table[index] = table.Leaf(rule.request_limit, rule.response_limit, rule.flags)

    @property
    def ring_fd(self) -> int:
        """File descriptor of the ring buffer's map."""
        return int(self._bpf["events"].map_fd)

    def counters(self) -> dict[str, int]:
        """All kernel counters by name, summed over the CPUs."""
        table = self._bpf["counters"]
        return {name: int(table.sum(i).value) for i, name in enumerate(COUNTERS + LOSSES)}

    def detach(self) -> None:
        """Stop capturing; the maps stay readable."""
        for name in list(self._bpf.raw_tracepoint_fds):
            self._bpf.detach_raw_tracepoint(name)

    def close(self) -> None:
        """Detach and free everything."""
        self._bpf.cleanup()


def _import_bcc() -> Any:
    try:
        from bcc import BPF
    except ImportError:
        raise StartError(
            "python3-bpfcc is missing: install it with apt-get install python3-bpfcc (Fedora: dnf install python3-bcc) "
            f"and run with a Python that sees it (this is {platform.python_version()})"
        ) from None
    return BPF
