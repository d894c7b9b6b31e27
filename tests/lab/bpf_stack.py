"""Computes how much stack compiled programs take, as kernels before 6.13 bound it.

Newer kernels give the called functions of tracing programs a stack of their own, so that the verifier of the host that
runs the tests may not notice what others refuse. Source: check_max_stack_depth in the kernel's kernel/bpf/verifier.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from kafka_probe.capture.link import CALLS

LIMIT = 512  # MAX_BPF_STACK
_INSTRUCTION = struct.Struct("<BBhi")
_CALL, _LOAD_64, _MOVE, _ADD = 0x85, 0x18, 0xBF, 0x07
_LOAD, _STORES = 1, (2, 3)  # classes
_FRAME = 10  # register
_ROUNDED_TO = 16


def deepest(functions: Mapping[str, bytes], name: str) -> int:
    """Return the bytes of stack of a function with those that it calls, directly or not."""
    own = -(-max(_depth(functions[name]), 1) // _ROUNDED_TO) * _ROUNDED_TO
    called = {other for other, number in CALLS.items() if number in _calls(functions[name])}
    return own + max((deepest(functions, other) for other in called), default=0)


def _calls(code: bytes) -> set[int]:
    return {number for operation, _, _, _, number in _instructions(code) if operation == _CALL}


def _depth(code: bytes) -> int:
    """Return how many bytes below the frame pointer a function accesses or takes addresses of."""
    used, addresses = 0, set[int]()
    for operation, target, source, offset, number in _instructions(code):
        kind = operation & 7
        if (kind == _LOAD and source == _FRAME) or (kind in _STORES and target == _FRAME):
            used = max(used, -offset)
        if operation == _ADD and target in addresses:
            used = max(used, -number)
        addresses.discard(target)
        if operation == _MOVE and source == _FRAME:
            addresses.add(target)
    return used


def _instructions(code: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield operation, target, source, offset and number of each instruction; a load of 64 bits takes two."""
    at = 0
    while at < len(code):
        operation, registers, offset, number = _INSTRUCTION.unpack_from(code, at)
        yield operation, registers & 15, registers >> 4, offset, number
        at += _INSTRUCTION.size * (2 if operation == _LOAD_64 else 1)
