"""Processes that live for one connection: a program that forks them.

    python -m tests.lab.short_lived HOST PORT REQUEST COUNT [PID]

Each has a name of its own, connects, asks once (hexadecimal), is answered, and ends; a line on standard output says its
name, its pid and its address:port. With PID they live one after the other, and all get that pid (needs
CAP_CHECKPOINT_RESTORE). It imports little: a small process forks fast.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

AT_ONCE = 20
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_ATTEMPTS = 1000


def live(name: str, host: str, port: int, words: bytes) -> None:
    """What a process does."""
    Path("/proc/self/comm").write_text(name)
    with socket.create_connection((host, port)) as sock:
        sock.sendall(words)
        sock.recv(int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big"), socket.MSG_WAITALL)
        address, own_port = sock.getsockname()
    os.write(1, f"{name} {os.getpid()} {address}:{own_port}\n".encode())


def fork(name: str, host: str, port: int, words: bytes) -> None:
    if not os.fork():
        live(name, host, port, words)
        os._exit(0)


def live_as(pid: int, name: str, host: str, port: int, words: bytes) -> None:
    """The life of a process of this pid. Others of the host may be faster to get it, but end some day."""
    for _ in range(_ATTEMPTS):
        _LAST_PID.write_text(str(pid - 1))
        child = os.fork()
        if not child:
            if os.getpid() == pid:
                live(name, host, port, words)
            os._exit(0)
        os.waitpid(child, 0)
        if child == pid:
            return
    raise OSError(f"pid {pid} is never free")


def main() -> None:
    host, port, asked, count, *pid = sys.argv[1:]
    words = bytes.fromhex(asked)
    for number in range(int(count)):
        if pid:
            live_as(int(pid[0]), f"life {number}", host, int(port), words)
        else:
            if number >= AT_ONCE:
                os.wait()
            fork(f"fork {number}", host, int(port), words)
    while not pid and int(count):
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
