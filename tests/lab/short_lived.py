"""Forks processes that live for one connection each: a program.

    python -m tests.lab.short_lived HOST PORT REQUEST COUNT [PID]

Each has a name of its own, connects, sends the request (hexadecimal), reads the answer, and ends. A line on standard
output has its name, its pid and its address:port. With PID they live one after the other, and all get that pid (needs
CAP_CHECKPOINT_RESTORE). It imports little, because a small process forks fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

AT_ONCE = 20
_SYS_CLONE3 = 435  # on every architecture


def live(name: str, host: str, port: int, words: bytes) -> None:
    """Run as one of the processes: take its name, send `words`, and print the connection."""
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


class _CloneArgs(ctypes.Structure):
    """`struct clone_args` of linux/sched.h, each field in 64 bits."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal"),
            *("stack", "stack_size", "tls", "set_tid", "set_tid_size"),
        )
    ]


def fork_as(pid: int) -> int:
    """Fork a process with this pid (clone3 with set_tid, Linux 5.5), and return as `os.fork` does.

    Raises:
        OSError: the pid is taken.
    """
    set_tid = ctypes.c_int(pid)
    args = _CloneArgs(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(set_tid), set_tid_size=1)
    libc = ctypes.PyDLL(None, use_errno=True)
    child: int = libc.syscall(_SYS_CLONE3, ctypes.byref(args), ctypes.sizeof(args))
    if child < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"clone3 with pid {pid}: {os.strerror(error)}")
    return child


def live_as(pid: int, name: str, host: str, port: int, words: bytes) -> None:
    """Run as a process with this pid."""
    if not fork_as(pid):
        live(name, host, port, words)
        os._exit(0)
    os.waitpid(pid, 0)


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
