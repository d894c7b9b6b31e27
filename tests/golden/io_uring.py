"""Calls io_uring by its system calls: one send or receive at a time, submitted and waited for."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_SETUP, _ENTER = 425, 426  # x86-64
_GET_EVENTS = 1
_OP_SEND, _OP_RECV = 26, 27
_SQES_OFFSET = 0x10000000
_SQE_BYTES = 64
# struct io_uring_params (include/uapi/linux/io_uring.h), and where in it the offsets of the ring stand.
_PARAMS_BYTES, _SQ_AT, _CQ_AT = 120, 40, 80
_libc = ctypes.CDLL(None, use_errno=True)


class Ring:
    """A ring of one entry."""

    def __init__(self, fd: int, params: bytes) -> None:
        self._fd = fd
        self._sq_tail, _, _, _, _, array = struct.unpack_from("4x6I", params, _SQ_AT)
        self._cq_head, _, _, _, _, self._cqes = struct.unpack_from("6I", params, _CQ_AT)
        self._ring = mmap.mmap(fd, max(array + 4, self._cqes + 32))  # both queues are in one mapping since 5.4
        self._entries = mmap.mmap(fd, _SQE_BYTES, offset=_SQES_OFFSET)

    def send(self, sock: socket.socket, data: bytes) -> None:
        assert self._do(_OP_SEND, sock, ctypes.create_string_buffer(data, len(data))) == len(data)

    def receive(self, sock: socket.socket, size: int) -> None:
        assert self._do(_OP_RECV, sock, ctypes.create_string_buffer(size)) == size

    def close(self) -> None:
        self._ring.close()
        self._entries.close()
        os.close(self._fd)

    def _do(self, operation: int, sock: socket.socket, buffer: ctypes.Array[ctypes.c_char]) -> int:
        struct.pack_into("BBHiQQI", self._entries, 0, operation, 0, 0, sock.fileno(), 0, *_place(buffer))
        (tail,) = struct.unpack_from("I", self._ring, self._sq_tail)
        struct.pack_into("I", self._ring, self._sq_tail, tail + 1)
        if _libc.syscall(_ENTER, self._fd, 1, 1, _GET_EVENTS, None, 0) != 1:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        (head,) = struct.unpack_from("I", self._ring, self._cq_head)
        # The ring has two completions: those of one submission each, in turn.
        (result,) = struct.unpack_from("8xi", self._ring, self._cqes + head % 2 * 16)
        struct.pack_into("I", self._ring, self._cq_head, head + 1)
        return int(result)


def _place(buffer: ctypes.Array[ctypes.c_char]) -> tuple[int, int]:
    return ctypes.addressof(buffer), len(buffer)


@contextmanager
def io_uring() -> Iterator[Ring | None]:
    """Return a ring; None if this kernel has no io_uring, or forbids it."""
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    fd = _libc.syscall(_SETUP, 1, params)
    if fd < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
        yield None
        return
    if fd < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    ring = Ring(fd, params.raw)
    try:
        yield ring
    finally:
        ring.close()
