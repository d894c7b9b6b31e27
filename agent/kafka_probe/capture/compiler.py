"""The C sources to machine code of BPF, for the kernel whose BTF is given. The only module that imports bcc.

What comes out knows nothing of this host: maps are descriptions, and the code names them. So programs for one kernel
can be compiled on another, and what was compiled once can be kept in a folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

import kafka_probe
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.link import CALLS, EVENTS
from kafka_probe.capture.options import PROGRAM_OPS, RULES, Options
from kafka_probe.errors import StartError

# How far one call is followed: so many runs of so many steps of the cursor. The verifier walks the steps of a run once.
RUNS = 1200
STEPS = 24
# What the steps do not come to is hopped over by its lengths: so many runs of so many hops, of a frame each.
HOP_RUNS = 640
HOPS = 128
_RINGBUF_QUERY = 134  # BPF_FUNC_ringbuf_query

# With a memory allocator for BPF (struct bpf_mem_alloc, 6.1) connections take memory as they come. Older kernels want
# all of it beforehand: then there is room for fewer.
MOST_CONNECTIONS_BEFOREHAND = 32768
# Of so many connections one may be inside a frame between two calls.
CONNECTIONS_PER_UNFINISHED = 8
# Of so many one may hold its first request until it has proven to speak Kafka; at least both ends of one.
CONNECTIONS_PER_HELD, LEAST_HELD = 32, 2

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
        "skc_state",
        "skc_cookie",
    ),
    "sock": ("sk_protocol", "sk_err", "sk_shutdown"),
    "inet_sock": ("inet_sport",),
    "inet_connection_sock": ("icsk_retransmits", "icsk_user_timeout"),
    "tcp_sock": (
        "rcv_nxt",
        "bytes_received",
        "snd_una",
        "snd_nxt",
        "snd_up",
        "urg_data",
        "urg_seq",
        "bytes_acked",
        "write_seq",
        "copied_seq",
        "bytes_sent",
        "bytes_retrans",
        "total_retrans",
        "srtt_us",
    ),
    "sk_buff": ("head", "network_header", "transport_header", "dev"),
    "net_device": ("nd_net",),
    "net": ("ns",),
    "ns_common": ("inum",),
    "task_struct": ("flags", "group_leader", "mm", "start_boottime", "comm", "cgroups"),
    "mm_struct": ("arg_start", "arg_end"),
    "css_set": ("subsys",),
    "cgroup_subsys_state": ("cgroup",),
    "cgroup": ("kn",),
    "kernfs_node": ("id",),
    "pt_regs": ("orig_ax", "di", "si", "dx", "cx", "r8", "r10", "ax", "cs"),
    "msghdr": ("msg_iter", "msg_flags"),
    "iov_iter": ("iov_offset", "count"),
}


@dataclass(frozen=True, slots=True)
class Map:
    """What a map is created from. type: enum bpf_map_type."""

    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """Functions by name, and maps by the number that stands for their descriptor in the code."""

    functions: dict[str, bytes]
    maps: dict[int, tuple[str, Map]]

    def to_json(self) -> str:
        functions = {name: code.hex() for name, code in self.functions.items()}
        return json.dumps(
            {"functions": functions, "maps": {n: (name, astuple(m)) for n, (name, m) in self.maps.items()}}
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        read = json.loads(text)
        return cls(
            {name: bytes.fromhex(code) for name, code in read["functions"].items()},
            {int(number): (name, Map(*facts)) for number, (name, facts) in read["maps"].items()},
        )


def compile_programs(backend: str, options: Options, btf: Btf, kept: Path | None = None) -> Compiled:
    """Compile bpf/BACKEND.c; `kept` is a folder of root's that keeps results, and gives them without a compiler.

    Raises:
        StartError: BCC is missing, or refuses the sources; its reason goes to standard error.
    """
    source = sources()
    text = flatten(source / f"{backend}.c")
    flags = [f"-D{name}={value}" for name, value in _defines(backend, options, btf).items()]
    key = hashlib.sha256("\0".join([text, *flags]).encode()).hexdigest()
    if kept and (file := kept / key).exists():
        return Compiled.from_json(file.read_text())
    bcc = _import_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = str(source)
    try:
        bpf = bcc.BPF(text=text.encode(), cflags=flags)
    except Exception as error:  # bcc raises bare Exception
        raise StartError(f"{backend}.c could not be compiled: {error}") from error
    # Not all of the library's functions say that they take a pointer: a number would be cut to 32 bits.
    compiled = _compiled(bcc.libbcc.lib, ctypes.c_void_p(bpf.module))
    if kept:
        (kept / key).write_text(compiled.to_json())
    return compiled


def _compiled(lib: Any, module: Any) -> Compiled:
    lib.bpf_table_name.restype = lib.bpf_function_name.restype = ctypes.c_char_p
    functions = {}
    for number in range(lib.bpf_num_functions(module)):
        name = lib.bpf_function_name(module, number)
        code = ctypes.string_at(lib.bpf_function_start(module, name), lib.bpf_function_size(module, name))
        functions[name.decode()] = code
    facts = (
        *(lib.bpf_table_type_id, lib.bpf_table_key_size_id, lib.bpf_table_leaf_size_id),
        *(lib.bpf_table_max_entries_id, lib.bpf_table_flags_id),
    )
    maps = {
        int(lib.bpf_table_fd_id(module, number)): (
            lib.bpf_table_name(module, number).decode(),
            Map(*(int(fact(module, number)) for fact in facts)),
        )
        for number in range(lib.bpf_num_tables(module))
    }
    return Compiled(functions, maps)


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


def _defines(backend: str, options: Options, btf: Btf) -> dict[str, int | str]:
    offsets = {
        f"OFFSET_{struct}_{member}".upper(): btf.offset(struct, member)
        for struct, members in _MEMBERS.items()
        for member in members
    }
    controller = options.cgroup_subsystem
    beforehand = not btf.has_member("bpf_mem_alloc", "cache")
    most = min(options.max_connections, MOST_CONNECTIONS_BEFOREHAND) if beforehand else options.max_connections
    return {
        **offsets,
        **_iterator(btf),
        **(_arguments(btf) if backend != "tracepoint" else {}),
        "CGROUP_SUBSYSTEM": -1 if controller is None else btf.enumerator(f"{controller}_cgrp_id"),
        "SOCK_DEAD": btf.enumerator("SOCK_DEAD"),
        "SOCK_DONE": btf.enumerator("SOCK_DONE"),
        "SOCK_KEEPOPEN": btf.enumerator("SOCK_KEEPOPEN"),
        "ANY_PORT": int(not options.ports),
        "PORT_MATCH(port)": "||".join(f"(port)=={port}" for port in options.ports) or "1",
        "WATCHED_ROLES": options.watch_client << 1 | options.watch_server << 2,
        "AGENT_TGID": options.agent_tgid,
        "NETNS": options.netns,
        "PERF_BUFFER": int(bool(options.perf_buffers)),
        "RING_PAGES": options.ring_bytes // 4096,
        "MAX_CONNECTIONS": most,
        "MAX_UNFINISHED": most // CONNECTIONS_PER_UNFINISHED,
        "MAX_HELD": max(most // CONNECTIONS_PER_HELD, LEAST_HELD),
        "CONNECTIONS_FLAGS": 0 if beforehand else "BPF_F_NO_PREALLOC",
        "RULES": RULES,
        "PROGRAM_OPS": PROGRAM_OPS,
        "RUNS": RUNS,
        "STEPS": STEPS,
        "HOP_RUNS": HOP_RUNS,
        "HOPS": HOPS,
        "RING": f"((void *)bpf_pseudo_fd(1, {EVENTS}))",
        "RING_QUERY": _RINGBUF_QUERY,
        **{f"CALL_{name.upper()}": number for name, number in CALLS.items()},
    }


def _iterator(btf: Btf) -> dict[str, int]:
    """Names and numbers of struct iov_iter, which was laid out anew in 5.14, 6.0, 6.4 and 6.7, and ported back."""
    renamed = btf.has_member("iov_iter", "iter_type")
    found = {
        "OFFSET_IOV_ITER_TYPE": btf.offset("iov_iter", "iter_type" if renamed else "type"),
        "ITER_TYPE_MASK": 0xFF if renamed else 0xFE,  # the direction was its lowest bit
        "OFFSET_IOV_ITER_IOV": btf.offset("iov_iter", "__iov" if btf.has_member("iov_iter", "__iov") else "iov"),
        "ITER_IOVEC": btf.enumerator("ITER_IOVEC"),
    }
    if btf.has_member("iov_iter", "ubuf"):
        found |= {"OFFSET_IOV_ITER_UBUF": btf.offset("iov_iter", "ubuf"), "ITER_UBUF": btf.enumerator("ITER_UBUF")}
    return found


def _arguments(btf: Btf) -> dict[str, int | str]:
    """Where the hooked functions have their flags, and behind how many arguments fexit programs find the result."""
    receive = btf.parameters("tcp_recvmsg")
    flags = receive.index("flags")
    return {
        "ARGUMENTS_TCP_SENDMSG": len(btf.parameters("tcp_sendmsg")),
        "ARGUMENTS_TCP_RECVMSG": len(receive),
        "ARGUMENT_TCP_RECVMSG_FLAGS": flags,
        "RECEIVE_FLAGS": f"ARGUMENT_{flags + 1}",
    }


def _import_bcc() -> Any:
    try:
        import bcc
        import bcc.libbcc
    except ImportError:
        raise StartError(
            "python3-bpfcc is missing: install it with apt-get install python3-bpfcc (Fedora: dnf install python3-bcc) "
            f"and run with a Python that sees it (this is {platform.python_version()})"
        ) from None
    return bcc
