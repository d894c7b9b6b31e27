"""A separate program that lists the connections that are open when the agent starts.

Run as `python -m kafka_probe.connections.listing_program MOST PORT,... SIDE AGENT_TGID [NETNS]`. It covers the network
namespace of the file NETNS, or without it all namespaces in which a process lives. For each end on SIDE (both, client,
server) of a connection to one of the ports it prints one JSON object with the fields of `Listed`, except for the
agent's own, and an empty line for each end beyond the first MOST. It runs in a separate process because it has to enter
each namespace.
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
    """One end of a connection. pid: a process that holds the socket, None if there is none."""

    netns: int
    server_side: bool
    local: str
    peer: str
    cookie: int
    inode: int
    pid: int | None = None


def namespaces() -> dict[int, Path]:
    """Return one file for each network namespace in which a process lives, by inode."""
    found: dict[int, Path] = {}
    for process in PROC.glob("[0-9]*"):
        file = process / "ns" / "net"
        try:
            inode = file.stat().st_ino
        except OSError:  # the process has ended, or access is denied
            continue
        found.setdefault(inode, file)
    return found


def enter(file: Path) -> bool:
    """Move this thread into a network namespace; return False if that fails because the file's process has ended.

    Raises:
        PermissionError: it is another namespace than the current one, and entering it requires CAP_SYS_ADMIN.
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
    """Yield the ends of connections in the current namespace, without their processes."""
    for found in connected():
        (local, local_port), (peer, peer_port) = found.local, found.peer
        server_side = local_port in ports
        if (server_side or peer_port in ports) and side in ("both", "server" if server_side else "client"):
            names = endpoint(found.family, local, local_port), endpoint(found.family, peer, peer_port)
            yield Listed(netns, server_side, *names, found.cookie, found.inode)


def holders() -> Iterator[tuple[int, int]]:
    """Yield (inode, pid) of every socket that a process holds open."""
    for pid in map(int, filter(str.isdigit, os.listdir(PROC))):
        try:
            descriptors = os.scandir(f"{PROC}/{pid}/fd")
        except OSError:  # the process has ended, or access is denied
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
    """Print one end as a line of JSON."""
    sys.stdout.buffer.write(orjson.dumps(listed, option=orjson.OPT_APPEND_NEWLINE))


def main() -> None:
    """Print the open connections."""
    most, ports, side, agent_tgid, *only = sys.argv[1:]
    watched = frozenset(map(int, ports.split(",")))
    entered = {file.stat().st_ino: file for file in map(Path, only)} or namespaces()
    waiting: dict[int, Listed] = {}  # ends whose process is not known yet, by inode
    found = refused = 0
    for netns, file in entered.items():
        try:
            for each in ends(netns, watched, side) if enter(file) else ():
                found += 1
                if found > int(most):
                    sys.stdout.buffer.write(b"\n")
                elif each.inode and each.inode not in waiting:
                    waiting[each.inode] = each
                else:  # no process holds it: it has not been accepted
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
        print(f"{refused} network namespaces cannot be entered without CAP_SYS_ADMIN", file=sys.stderr)


if __name__ == "__main__":
    main()
