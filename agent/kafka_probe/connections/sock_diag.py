"""The connected TCP sockets of a network namespace as the kernel lists them, by sock_diag(7).

Written by hand: a broker may have a hundred thousand sockets, for which a general netlink library takes a minute.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x1 | 0x300
_ERROR, _DONE = 2, 3
# include/net/tcp_states.h: ESTABLISHED, and CLOSE_WAIT, in which this end may still be in use.
_CONNECTED = 1 << 1 | 1 << 8
# include/uapi/linux: struct nlmsghdr, inet_diag_req_v2, and of inet_diag_msg the fields that are read.
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_FOUND = struct.Struct("=4x2s2s16s16s4xQ16xI")
_BUFFER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Socket:
    """A connected socket: both ends as address and port, the kernel's number of the socket, and its file's inode."""

    family: int
    local: tuple[bytes, int]
    peer: tuple[bytes, int]
    cookie: int
    inode: int


def connected() -> Iterator[Socket]:
    """Yield the connected sockets of this thread's network namespace.

    Raises:
        OSError: the kernel does not list them.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
            wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _CONNECTED)
            header = _HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
            netlink.send(header + wanted)
            for body in _messages(netlink):
                local_port, peer_port, local, peer, cookie, inode = _FOUND.unpack_from(body)
                ends = (local, int.from_bytes(local_port, "big")), (peer, int.from_bytes(peer_port, "big"))
                yield Socket(family, *ends, cookie, inode)


def _messages(netlink: socket.socket) -> Iterator[memoryview]:
    """Yield the bodies of a dump's messages."""
    while True:
        received, at = memoryview(netlink.recv(_BUFFER_BYTES)), 0
        while at < len(received):
            size, kind, *_ = _HEADER.unpack_from(received, at)
            body = received[at + _HEADER.size : at + size]
            if kind in (_DONE, _ERROR):  # both contain an error number, 0 for success
                number = -int.from_bytes(body[:4], "little", signed=True)
                if number:
                    missing = "the kernel lists no TCP sockets without its module tcp_diag"
                    raise OSError(number, missing if number == errno.ENOENT else os.strerror(number))
                return
            yield body
            at += size + -size % 4
