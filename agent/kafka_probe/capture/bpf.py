"""The system calls bpf(2) and perf_event_open(2) on x86-64, with numbers and layouts of include/uapi.

Every function raises OSError if the kernel refuses; `load_program` adds the last lines of the verifier's log. This
module does not know which programs and maps the agent has.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_SYS_BPF, _SYS_PERF_EVENT_OPEN = 321, 298
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _RAW_TRACEPOINT_OPEN, _BTF_LOAD = 0, 1, 2, 5, 17, 18
_MAP_FREEZE, _MAP_LOOKUP_BATCH, _ENABLE_STATS = 22, 24, 32
_CLOSE_ON_EXEC = 8
_ENABLE, _SET_BPF = 0x2400, 0x40042408  # PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF

_AT_ONCE = 4096  # elements per batch look-up; more than any bucket of the hash table contains

_LOG_BYTES = 1 << 20
_LOG_LINES = 5
_LOG_STATISTICS = 4  # BPF_LOG_STATS: the number of processed instructions, and the reason of a refusal

# The part of union bpf_attr that each command reads.
_MAP = struct.Struct("<IIIIIII16s")
_ELEMENT = struct.Struct("<I4xQQQ")
_BATCH = struct.Struct("<QQQQIIQQ")
_PROGRAM = struct.Struct("<IIQQIIQII16sIIIIQIIQIII4x")
_BTF = struct.Struct("<QQIIII")
_FREEZE = struct.Struct("<I")
_STATS = struct.Struct("<I")
_TRACEPOINT = struct.Struct("<QI4x")
# struct perf_event_attr up to clockid, with these fields: type, size, config, sample period, sample type, read format,
# flags, wake-up events, config1, config2, clockid.
_EVENT = struct.Struct("<IIQQQQQI4xQQ20xi16x")

_RUN_TIME = 0  # enum bpf_stats_type

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program. instructions: how many instructions the verifier processed."""

    fd: int
    instructions: int


def create_map(name: str, type_: int, key_bytes: int, value_bytes: int, entries: int, flags: int) -> int:
    """Create a map and return its descriptor. type_: enum bpf_map_type; the name is cut at 15 characters."""
    return _bpf(_MAP_CREATE, _MAP.pack(type_, key_bytes, value_bytes, entries, flags, 0, 0, name[:15].encode()))


def read_map(fd: int, key: bytes, value: ctypes.Array[ctypes.c_char]) -> None:
    """Read one element into `value`, a buffer for one value; for a per-CPU map, for one value per possible CPU."""
    held = ctypes.create_string_buffer(key, len(key))
    _bpf(_MAP_LOOKUP, _ELEMENT.pack(fd, ctypes.addressof(held), ctypes.addressof(value), 0))


def write_map(fd: int, key: bytes, value: bytes) -> None:
    keys, values = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, len(value))
    _bpf(_MAP_UPDATE, _ELEMENT.pack(fd, ctypes.addressof(keys), ctypes.addressof(values), 0))


def freeze_map(fd: int) -> None:
    """Forbid further writes by system calls."""
    _bpf(_MAP_FREEZE, _FREEZE.pack(fd))


def value_heads(table: int, head: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the beginnings of the values of a hash map, (n,) head, in batches.

    Elements that are inserted or deleted meanwhile may be missing.
    """
    key_bytes, value_bytes = statistic(table, "key_size"), statistic(table, "value_size")
    sizes = 4, key_bytes * _AT_ONCE, value_bytes * _AT_ONCE
    buffers = [ctypes.create_string_buffer(size) for size in sizes]
    place, keys, values = map(ctypes.addressof, buffers)
    start, ended = 0, False
    while not ended:
        attributes = _BATCH.pack(start, place, keys, values, _AT_ONCE, table, 0, 0)
        answered = ctypes.create_string_buffer(attributes, len(attributes))
        try:
            _ask(_MAP_LOOKUP_BATCH, answered)
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the batch reached the end of the map
                raise
            ended = True
        found = _BATCH.unpack(answered)[4]
        read = np.frombuffer(memoryview(buffers[2]), np.uint8, found * value_bytes).reshape(found, value_bytes)
        yield read[:, : head.itemsize].copy().view(head)[:, 0]
        start = place


def load_btf(blob: bytes) -> int:
    held = ctypes.create_string_buffer(blob, len(blob))
    return _bpf(_BTF_LOAD, _BTF.pack(ctypes.addressof(held), 0, len(blob), 0, 0, 0))


def load_program(
    name: str,
    kind: int,
    code: bytes,
    *,
    btf: int = 0,
    functions: bytes = b"",
    attach_type: int = 0,
    attach_btf_id: int = 0,
) -> Program:
    """Load a program. kind: enum bpf_prog_type; functions: (n,) struct bpf_func_info with type ids of `btf`."""
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    infos, log = ctypes.create_string_buffer(functions, len(functions) or 1), ctypes.create_string_buffer(_LOG_BYTES)
    attributes = _PROGRAM.pack(
        *(kind, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence)),
        *(_LOG_STATISTICS, _LOG_BYTES, ctypes.addressof(log), 0, 0, name[:15].encode(), 0, attach_type),
        *(btf, 8 if functions else 0, ctypes.addressof(infos) if functions else 0, len(functions) // 8),
        *(0, 0, 0, attach_btf_id, 0),
    )
    try:
        fd = _bpf(_PROG_LOAD, attributes)
    except OSError as error:
        log_lines = " / ".join(log.value.decode(errors="replace").strip().splitlines()[-_LOG_LINES:])
        raise OSError(error.errno, f"{error.strerror} ({log_lines})" if log_lines else error.strerror) from None
    processed = re.search(rb"processed (\d+) insns", log.value)
    return Program(fd, int(processed[1]) if processed else 0)


def attach(program: int, raw_tracepoint: str | None) -> int:
    """Attach a program to a raw tracepoint, or if None to the function for which it was loaded.

    The program stays attached while the returned descriptor is open.
    """
    name = ctypes.create_string_buffer((raw_tracepoint or "").encode())
    return _bpf(_RAW_TRACEPOINT_OPEN, _TRACEPOINT.pack(ctypes.addressof(name) if raw_tracepoint else 0, program))


def attach_kprobe(program: int, pmu: int, function: str, *, returns: bool) -> int:
    """Attach a program to the entry or the return of a kernel function by the kprobe PMU.

    The probe ends when the returned descriptor is closed, also by the end of the process.
    """
    name = ctypes.create_string_buffer(function.encode())
    fd = perf_event_open(pmu, int(returns), config1=ctypes.addressof(name))
    for request, argument in ((_SET_BPF, program), (_ENABLE, 0)):
        if _libc.ioctl(fd, request, argument):
            number = ctypes.get_errno()
            os.close(fd)
            raise OSError(number, os.strerror(number))
    return fd


def enable_run_time() -> int:
    """Return a descriptor; while it is open, the kernel measures the run time of all programs. Needs CAP_SYS_ADMIN."""
    return _bpf(_ENABLE_STATS, _STATS.pack(_RUN_TIME))


def run_time_is_measured() -> bool:
    """Return True if the host measures run times anyway, by the sysctl kernel.bpf_stats_enabled."""
    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    return switch.exists() and switch.read_text() != "0\n"


def statistic(descriptor: int, name: str) -> int:
    """Return a number of a program or map by its name in bpf_{prog,map}_show_fdinfo(); 0 if the kernel omits it.

    run_time_ns: how long the program ran while run times were measured. recursion_misses (5.12): how often the kernel
    skipped the program.
    """
    found = re.search(rf"^{name}:\s*(\d+)", Path("/proc/self/fdinfo", str(descriptor)).read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def perf_event_open(
    type_: int,
    config: int,
    *,
    cpu: int = 0,
    sample_type: int = 0,
    flags: int = 0,
    wake_up_events: int = 0,
    config1: int = 0,
    clock: int = 0,
) -> int:
    """Open a disabled perf event for all processes on one CPU and return its descriptor."""
    attributes = _EVENT.pack(*(type_, _EVENT.size, config, 1, sample_type, 0, flags, wake_up_events, config1, 0, clock))
    held = ctypes.create_string_buffer(attributes, len(attributes))
    fd = _libc.syscall(_SYS_PERF_EVENT_OPEN, held, -1, cpu, -1, ctypes.c_ulong(_CLOSE_ON_EXEC))
    return _checked(fd)


def enable(event: int) -> None:
    _checked(_libc.ioctl(event, _ENABLE, 0))


def _bpf(command: int, attributes: bytes) -> int:
    return _ask(command, ctypes.create_string_buffer(attributes, len(attributes)))


def _ask(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2); some commands return results in `attributes`."""
    return _checked(_libc.syscall(_SYS_BPF, command, attributes, len(attributes)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
