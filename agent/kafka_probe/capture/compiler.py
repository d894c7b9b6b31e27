"""Compiles the C sources to BPF machine code for the kernel whose BTF is given. The only module that imports bcc.

The result does not depend on this host: it describes maps, and the code refers to them by number. So programs for one
kernel can be compiled on another, and compiled programs can be kept for the next start. This module loads nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

import kafka_probe
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.cache import key_of
from kafka_probe.capture.link import CALLS, EVENTS, START
from kafka_probe.capture.options import PROGRAM_OPS, RULES, Options
from kafka_probe.errors import StartError

# Most work for one send or receive call: RUNS runs of STEPS steps of the cursor. The verifier checks the steps of a run
# once.
RUNS = 1200
STEPS = 24
# Frames beyond the last step are skipped by their length, in HOP_RUNS runs of HOPS hops. A hop skips one frame or one
# segment of the buffer.
HOP_RUNS = 640
HOPS = 128
_RINGBUF_QUERY = 134  # BPF_FUNC_ringbuf_query

# Most connections on kernels before 6.1, which allocate the whole map in advance. Newer kernels have a memory allocator
# for BPF (struct bpf_mem_alloc) and allocate memory per connection.
MOST_CONNECTIONS_BEFOREHAND = 32768
# One of this many connections may be inside a frame between two calls.
CONNECTIONS_PER_UNFINISHED = 8
# One of this many connections may hold back its first request until it is proven to speak Kafka; at least two may, the
# two ends of one connection.
CONNECTIONS_PER_HELD, LEAST_HELD = 32, 2

# What older kernels call a member of bpf/kernel_structs.h; None: they do not have it.
_IN_OLDER_KERNELS = {("iov_iter", "iter_type"): "type", ("iov_iter", "__iov"): "iov", ("iov_iter", "ubuf"): None}


@dataclass(frozen=True, slots=True)
class Map:
    """The arguments for creating a map. type: enum bpf_map_type."""

    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiled functions by name, and maps by the number that the code contains instead of their descriptor."""

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
            {int(number): (name, Map(*fields)) for number, (name, fields) in read["maps"].items()},
        )


def origin(btf: bytes) -> str:
    """Return a hash of the sources and of a kernel's raw BTF. With options they determine the compiled programs.

    BCC's version is left out: the verifier checks the code at each start, whichever compiler it is from.
    """
    files = sorted((*sources().rglob("*.[ch]"), *Path(__file__).parent.glob("*.py")))
    return key_of(*(hashlib.sha256(content).hexdigest() for content in (*(file.read_bytes() for file in files), btf)))


def compile_programs(backend: str, options: Options, btf: Btf) -> Compiled:
    """Compile bpf/BACKEND.c.

    Raises:
        StartError: BCC is missing, or refuses the sources; BCC writes the reason to standard error.
    """
    bcc = _import_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = str(sources())
    flags = [f"-D{name}={value}" for name, value in defines(backend, options, btf).items()]
    try:
        bpf = bcc.BPF(text=flatten(sources() / f"{backend}.c").encode(), cflags=flags)
    except Exception as error:  # bcc raises bare Exception
        raise StartError(f"{backend}.c could not be compiled: {error}") from error
    # Some of the library's functions have no argtypes: ctypes would cut a plain number to 32 bits.
    return _compiled(bcc.libbcc.lib, ctypes.c_void_p(bpf.module))


def _compiled(lib: Any, module: Any) -> Compiled:
    lib.bpf_table_name.restype = lib.bpf_function_name.restype = ctypes.c_char_p
    functions = {}
    for number in range(lib.bpf_num_functions(module)):
        name = lib.bpf_function_name(module, number)
        code = ctypes.string_at(lib.bpf_function_start(module, name), lib.bpf_function_size(module, name))
        functions[name.decode()] = code
    fields = (
        *(lib.bpf_table_type_id, lib.bpf_table_key_size_id, lib.bpf_table_leaf_size_id),
        *(lib.bpf_table_max_entries_id, lib.bpf_table_flags_id),
    )
    maps = {
        int(lib.bpf_table_fd_id(module, number)): (
            lib.bpf_table_name(module, number).decode(),
            Map(*(int(field(module, number)) for field in fields)),
        )
        for number in range(lib.bpf_num_tables(module))
    }
    return Compiled(functions, maps)


def sources() -> Path:
    """Return the folder of the C sources: inside the package in a wheel, at the top level in a checkout."""
    package = Path(kafka_probe.__file__).parent
    inside = package / "bpf"
    return inside if inside.is_dir() else package.parents[1] / "bpf"


def flatten(path: Path, seen: set[Path] | None = None) -> str:
    """Return a C source with the project's headers inlined: BCC rewrites map accesses in the main file only."""
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


def defines(backend: str, options: Options, btf: Btf) -> dict[str, int | str]:
    controller = options.cgroup_subsystem
    beforehand = not btf.has_member("bpf_mem_alloc", "cache")
    most = min(options.max_connections, MOST_CONNECTIONS_BEFOREHAND) if beforehand else options.max_connections
    return {
        **_offsets(btf),
        **_iterator(btf),
        **(_arguments(btf) if backend != "tracepoint" else {}),
        # Message iterators refer to a copy of the vector in the kernel, arguments of system calls to the caller's own.
        "READ_IOVEC": "bpf_probe_read_user" if backend == "tracepoint" else "bpf_probe_read_kernel",
        "CGROUP_SUBSYSTEM": -1 if controller is None else btf.enumerator(f"{controller}_cgrp_id"),
        "SOCK_DEAD": btf.enumerator("SOCK_DEAD"),
        "SOCK_DONE": btf.enumerator("SOCK_DONE"),
        "SOCK_KEEPOPEN": btf.enumerator("SOCK_KEEPOPEN"),
        "ANY_PORT": int(not options.ports),
        "PORT_MATCH(port)": "||".join(f"(port)=={port}" for port in options.ports) or "1",
        "WATCHED_SIDES": options.watch_client << 1 | options.watch_server << 2,
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
        "START": f"((struct start *)bpf_pseudo_fd(2, {START}))",
        "RING_QUERY": _RINGBUF_QUERY,
        **{f"CALL_{name.upper()}": number for name, number in CALLS.items()},
    }


def members() -> Iterator[tuple[str, str, str]]:
    """Yield the struct, the C type and the name of each member that bpf/kernel_structs.h declares."""
    text = (sources() / "kernel_structs.h").read_text()
    for struct, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        for type_, member, length in re.findall(r"^\t(.+) (\w+)(\[\d+\])?;$", body, re.MULTILINE):
            yield struct, type_ + length, member


def _offsets(btf: Btf) -> dict[str, int]:
    """Return OFFSET_<struct>_<member> of every declared member that this kernel has.

    Raises:
        StartError: it lacks a member that every supported kernel has.
    """
    offsets = {}
    for struct, _, member in members():
        has_it = btf.has_member(struct, member)
        name = member if has_it else _IN_OLDER_KERNELS.get((struct, member), member)
        if name:
            offsets[f"OFFSET_{struct}_{member}"] = btf.offset(struct, name)
    return offsets


def _iterator(btf: Btf) -> dict[str, int]:
    """Return the defines for the values of `iter_type`."""
    # `type` also contained the direction, as its lowest bit.
    mask = 0xFF if btf.has_member("iov_iter", "iter_type") else 0xFE
    user_buffer = {"ITER_UBUF": btf.enumerator("ITER_UBUF")} if btf.has_member("iov_iter", "ubuf") else {}
    return {"ITER_TYPE_MASK": mask, "ITER_IOVEC": btf.enumerator("ITER_IOVEC"), **user_buffer}


def _arguments(btf: Btf) -> dict[str, int | str]:
    """Return the defines for arguments of hooked functions.

    These are the index of tcp_recvmsg's flags, and the number of arguments, after which fexit programs find the result.
    """
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
