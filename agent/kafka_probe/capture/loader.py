"""The loader's process: compiles the BPF programs, fills their maps, attaches them and hands over the descriptors.

Run as `python -m kafka_probe.capture.loader SOCKET` with the request of programs.py on standard input. The only room
that imports bcc. Status 0: the descriptors are in the socket; 3: the reason is.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_probe
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.options import Options, Rule
from kafka_probe.errors import StartError

if TYPE_CHECKING:
    from bcc import BPF

RULES = 128 << 5
# Steps of the cursor per run of a program, 33 runs per call at most. The verifier walks every step: 96 take it through
# three quarters of its million instructions; with every port a candidate a step is longer.
STEPS = 96
STEPS_ANY_PORT = 48

# In the order of attaching: what ends a connection is watched before any is followed.
TRACEPOINTS = (b"tcp_destroy_sock", b"inet_sock_set_state", b"sock_recv_length", b"sock_send_length")

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
        "skc_flags",
    ),
    "sock": ("sk_protocol", "sk_err"),
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
    controller = options.cgroup_subsystem
    return {
        **offsets,
        "CGROUP_SUBSYSTEM": -1 if controller is None else btf.enumerator(f"{controller}_cgrp_id"),
        "SOCK_DONE": btf.enumerator("SOCK_DONE"),
        "ANY_PORT": int(not options.ports),
        "PORT_MATCH(port)": "||".join(f"(port)=={port}" for port in options.ports) or "1",
        "WATCHED_ROLES": options.watch_connecting << 1 | options.watch_accepting << 2,
        "AGENT_TGID": options.agent_tgid,
        "RING_PAGES": options.ring_bytes // 4096,
        "MAX_CONNECTIONS": options.max_connections,
        "RULES": RULES,
        "STEPS": STEPS if options.ports else STEPS_ANY_PORT,
    }


def load(backend: str, options: Options, rules: Iterable[Rule]) -> BPF:
    """Programs compiled, loaded and attached; StartError if one of the three fails."""
    bpf_class = _import_bcc()
    source = sources()
    os.environ["BCC_KERNEL_SOURCE"] = str(source)
    flags = [f"-D{name}={value}" for name, value in _defines(options, Btf()).items()]
    try:
        bpf: BPF = bpf_class(text=flatten(source / f"{backend}.c").encode(), cflags=flags)
        for index, name in enumerate((b"follow_send", b"follow_receive")):
            bpf["continuations"][index] = bpf.load_func(name, bpf_class.RAW_TRACEPOINT)
        table = bpf["rules"]
        for rule in rules:
            limits = table.Leaf(rule.request_limit, rule.response_limit, rule.flags)
            table[rule.api_key << 5 | rule.api_version] = limits
        for tracepoint in TRACEPOINTS:
            bpf.attach_raw_tracepoint(tp=tracepoint, fn_name=b"on_" + tracepoint)
    except Exception as error:  # bcc raises bare Exception; its reason goes to standard error
        raise StartError(f"the {backend} programs could not be loaded: {error}") from error
    return bpf


def _import_bcc() -> Any:
    try:
        from bcc import BPF
    except ImportError:
        raise StartError(
            "python3-bpfcc is missing: install it with apt-get install python3-bpfcc (Fedora: dnf install python3-bcc) "
            f"and run with a Python that sees it (this is {platform.python_version()})"
        ) from None
    return BPF


def main() -> None:
    request = json.load(sys.stdin)
    options = Options(**{**request["options"], "ports": tuple(request["options"]["ports"])})
    with socket.socket(fileno=int(sys.argv[1])) as agent:
        try:
            bpf = load(request["backend"], options, [Rule(**rule) for rule in request["rules"]])
        except StartError as error:
            agent.sendall(str(error).encode())
            sys.exit(error.exit_code)
        maps = [bpf[name].map_fd for name in ("events", "counters", "continuations")]
        socket.send_fds(agent, [b"attached"], [*maps, *bpf.raw_tracepoint_fds.values()])


if __name__ == "__main__":
    main()
