"""The BPF programs that the kernel holds, whoever loaded them."""

from __future__ import annotations

import ctypes
import struct

_BPF, _PROG_GET_NEXT_ID = 321, 11  # x86-64; include/uapi/linux/bpf.h


def loaded() -> set[int]:
    """Their ids."""
    ids = [0]
    while (following := _next(ids[-1])) is not None:
        ids.append(following)
    return set(ids[1:])


def _next(after: int) -> int | None:
    attributes = ctypes.create_string_buffer(struct.pack("<III", after, 0, 0), 12)
    failed = ctypes.CDLL(None).syscall(_BPF, _PROG_GET_NEXT_ID, attributes, len(attributes))
    return None if failed else int(struct.unpack_from("<I", attributes, 4)[0])
