"""A process of its own that lists the connections that are open when the agent starts.

Run as `python -m kafka_probe.connections.lister MOST PORT,... SIDE AGENT_TGID [NETNS]`. Prints one JSON object, the
fields of `Listed`, for each end on that side (both, client, server) of a connection to one of the ports, in the
network namespace of that file or else in all that a process lives in; not for the agent's own. For each end beyond the
first MOST it prints an empty line. A process of its own, because to look into a namespace is to enter it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from kafka_probe.connections.identity import endpoint
from kafka_probe.connections.sock_diag import connected
from kafka_probe.workloads.process import PROC

_CLONE_NEWNET = 0x40000000


@dataclass(slots=True)
class Listed:
    """One end of a connection. pid: of a process that holds it, None if none does."""

    netns: int
    server_side: bool
    local: str
    peer: str
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


def ends(netns: int, ports: Collection[int], side: str) -> Iterator[Listed]:
    """The ends of connections in the namespace of now, without their processes."""
    for found in connected():
        (local, local_port), (peer, peer_port) = found.local, found.peer
        server_side = local_port in ports
        if (server_side or peer_port in ports) and side in ("both", "server" if server_side else "client"):
            names = endpoint(found.family, local, local_port), endpoint(found.family, peer, peer_port)
            yield Listed(netns, server_side, *names, found.cookie, found.inode)


def holders() -> Iterator[tuple[int, int]]:
    """(inode, pid) of every socket that a process holds."""
    for pid in map(int, filter(str.isdigit, os.listdir(PROC))):
        try:
            descriptors = os.scandir(f"{PROC}/{pid}/fd")
        except OSError:  # it has ended, or may not be looked at
            continue
        with descriptors:
            for descriptor in descriptors:
                try:
                    kind, _, inode = os.readlink(descriptor.path).partition(":[")
                except OSError:  # closed just now
                    continue
                if kind == "socket":
                    yield int(inode[:-1]), pid


def write(listed: Listed) -> None:
    """Print one end."""
    sys.stdout.buffer.write(orjson.dumps(listed, option=orjson.OPT_APPEND_NEWLINE))


def main() -> None:
    """Print what is open."""
    most, ports, side, agent_tgid, *only = sys.argv[1:]
    watched = frozenset(map(int, ports.split(",")))
    entered = {file.stat().st_ino: file for file in map(Path, only)} or namespaces()
    waiting: dict[int, Listed] = {}  # for the process that holds them, by inode
    found = refused = 0
    for netns, file in entered.items():
        try:
            for each in ends(netns, watched, side) if enter(file) else ():
                found += 1
                if found > int(most):
                    sys.stdout.buffer.write(b"\n")
                elif each.inode and each.inode not in waiting:
                    waiting[each.inode] = each
                else:  # nobody holds it: it waits to be accepted
                    write(each)
        except PermissionError:
            refused += 1
    for inode, pid in holders() if waiting else ():
        held = waiting.pop(inode, None)
        if held and pid != int(agent_tgid):
            held.pid = pid
            write(held)
    for each in waiting.values():
        write(each)
    if refused:
        print(f"without CAP_SYS_ADMIN {refused} network namespaces cannot be entered", file=sys.stderr)


if __name__ == "__main__":
    main()
