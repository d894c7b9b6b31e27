"""A process of its own that lists the connections that are open when the agent starts, by inet_diag (sock_diag(7)).

Run as `python -m kafka_probe.connections.lister PORT,... [NETNS]`. Prints one JSON object, the fields of `Listed`, for
each connected TCP socket with one of the ports at either end, in the network namespace of that file or else in all that
a process lives in. A process of its own, because to look into a namespace is to enter it, and because what it imports
is needed once.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyroute2 import DiagSocket

from kafka_probe.workloads.process import PROC

_CLONE_NEWNET = 0x40000000
# include/net/tcp_states.h: ESTABLISHED, and CLOSE_WAIT, in which this end may still be in use.
_CONNECTED = 1 << 1 | 1 << 8


@dataclass(frozen=True, slots=True)
class Listed:
    """A connected socket. pid: of a process that holds it, None if none does."""

    netns: int
    family: int
    local: tuple[str, int]
    peer: tuple[str, int]
    cookie: int
    inode: int
    pid: int | None = None


def namespaces() -> dict[int, Path]:
    """A file that stands for each network namespace that a process lives in, by inode."""
    found: dict[int, Path] = {}
    for process in PROC.glob("[0-9]*"):
        file = process / "ns" / "net"
        try:
            inode = file.stat().st_ino
        except OSError:  # it has ended, or may not be looked at
            continue
        found.setdefault(inode, file)
    return found


def enter(file: Path) -> bool:
    """Whether this thread is in the namespace now; the process that it was found by may have ended.

    Raises:
        PermissionError: it is not the one that we are in already, and only CAP_SYS_ADMIN may enter it.
    """
    try:
        namespace = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
            return True
        failed = ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET)
    finally:
        os.close(namespace)
    if failed and ctypes.get_errno() == errno.EPERM:
        raise PermissionError
    return not failed


def sockets(netns: int, ports: Collection[int]) -> Iterator[Listed]:
    """The connected sockets of the namespace of now, without their processes."""
    with DiagSocket() as diag:
        diag.bind()
        for family in (socket.AF_INET, socket.AF_INET6):
            for found in diag.get_sock_stats(family=family, states=_CONNECTED):
                local = found["idiag_src"], found["idiag_sport"]
                peer = found["idiag_dst"], found["idiag_dport"]
                if local[1] in ports or peer[1] in ports:
                    yield Listed(netns, family, local, peer, found["idiag_cookie"], found["idiag_inode"])


def holders() -> Iterator[tuple[int, int]]:
    """(inode, pid) of every socket that a process holds."""
    for file in PROC.glob("[0-9]*/fd/*"):
        try:
            kind, _, inode = str(file.readlink()).partition(":")
        except OSError:  # closed just now
            continue
        if kind == "socket":
            yield int(inode.strip("[]")), int(file.parts[-3])


def main() -> None:
    """Print what is open."""
    ports, only = frozenset(map(int, sys.argv[1].split(","))), [Path(name) for name in sys.argv[2:]]
    entered = {file.stat().st_ino: file for file in only} or namespaces()
    found: list[Listed] = []
    refused = 0
    for inode, file in entered.items():
        try:
            found += sockets(inode, ports) if enter(file) else ()
        except PermissionError:
            refused += 1
    pids = dict(holders()) if found else {}
    for each in found:
        print(json.dumps({**asdict(each), "pid": pids.get(each.inode)}))
    if refused:
        print(f"without CAP_SYS_ADMIN {refused} network namespaces cannot be entered", file=sys.stderr)


if __name__ == "__main__":
    main()
