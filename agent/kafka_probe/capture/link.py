"""Links a program with its maps and global functions, and builds the BTF that the kernel requires.

The kernel (5.6) verifies a global function once, for any argument, and not again at each call: so a program can call
the cursor's steps a thousand times. BCC compiles functions one by one and does not support calls between them. In C
such a call is the call of a helper with a reserved number; `link` turns it into a call of the function, which it
appends to the program. Maps are numbers in the code, too, which `link` replaces: so code that was compiled once fits
every start. What else differs between starts is in the map `start`, which programs read at its address, without a
lookup. It is frozen, so that the verifier (5.5) treats its contents as constants; with a lookup, programs with a perf
buffer would exceed its limit of a million instructions. This module makes no system calls.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

_CALLED = (
    *("run_send", "run_receive", "hop_send", "hop_receive"),
    *("take_request", "take_response", "is_urgent"),
    *("share_frame", "share_notice"),
)
# Helper numbers that the kernel does not have, by the name of the global function.
CALLS = {name: 0x4B500001 + number for number, name in enumerate(_CALLED)}
# Numbers in the code of maps that C does not refer to by a method of BCC: `events` itself, and the contents of `start`.
EVENTS, START = 0x4B510000, 0x4B520000

_INSTRUCTION = struct.Struct("<BBhi")
_CALL, _LOAD_64 = 0x85, 0x18
# Values of the source register, the upper four bits of the byte of registers.
_FUNCTION = 1 << 4  # BPF_PSEUDO_CALL
_MAPS = 1 << 4, 2 << 4  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE

_STRINGS = b"\0int\0u64\0argument\0main\0run\0"
_INT, _U64, _POINTER, _TAKES_POINTER, _TAKES_U64, _MAIN, _GLOBAL = range(1, 8)


@dataclass(frozen=True, slots=True)
class Linked:
    """A program ready to load. functions: (n,) struct bpf_func_info; empty for a program of one function."""

    code: bytes
    functions: bytes = b""


def link(code: bytes, others: Mapping[str, bytes], maps: Mapping[int, int]) -> Linked:
    """Return the program with the functions that it calls, directly or not. maps: descriptors by number in the code."""
    wanted = {number: others[name] for name, number in CALLS.items() if name in others}
    linked, starts = bytearray(code), dict[int, int]()
    at = 0
    while at < len(linked):
        operation, registers, offset, number = _INSTRUCTION.unpack_from(linked, at)
        if operation == _LOAD_64 and registers & 0xF0 in _MAPS:
            _INSTRUCTION.pack_into(linked, at, operation, registers, offset, maps[number])
        elif operation == _CALL and not registers and number in wanted:
            if number not in starts:
                starts[number] = len(linked) // _INSTRUCTION.size
                linked += wanted[number]
            distance = starts[number] - at // _INSTRUCTION.size - 1
            _INSTRUCTION.pack_into(linked, at, operation, _FUNCTION, offset, distance)
        at += _INSTRUCTION.size
    infos = [(0, _MAIN), *((start, _GLOBAL) for start in starts.values())]
    return Linked(bytes(linked), b"".join(struct.pack("<II", *info) for info in infos) if starts else b"")


def btf() -> bytes:
    """Return the BTF of linked programs: main takes a pointer, global functions take a u64.

    Layout: Documentation/bpf/btf.rst. Kinds: integer 1, pointer 2, function 12, prototype 13.
    """
    argument = _STRINGS.index(b"argument")
    types = b"".join(
        (
            *(_type("int", 1, 0, 4), struct.pack("<I", 1 << 24 | 32)),
            *(_type("u64", 1, 0, 8), struct.pack("<I", 64)),
            _type("", 2, 0, 0),
            *(_type("", 13, 1, _INT), struct.pack("<II", argument, _POINTER)),
            *(_type("", 13, 1, _INT), struct.pack("<II", argument, _U64)),
            _type("main", 12, 0, _TAKES_POINTER),
            _type("run", 12, 1, _TAKES_U64),
        )
    )
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(_STRINGS))
    return header + types + _STRINGS


def _type(name: str, kind: int, length: int, size_or_type: int) -> bytes:
    at = _STRINGS.index(f"\0{name}\0".encode()) + 1 if name else 0
    return struct.pack("<III", at, kind << 24 | length, size_or_type)
