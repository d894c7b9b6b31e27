"""Starts child processes that cannot be left behind, and waits for conditions instead of for times.

A child gets SIGTERM from the kernel when the thread that started it ends: even a killed test run leaves nothing. Ctrl-C
in a terminal is for the parent alone, which stops its children in order.
PATIENCE in the environment multiplies the longest time of every wait, for emulated and busy machines.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE = float(os.environ.get("PATIENCE", "1"))
_PR_SET_PDEATHSIG = 1
_FOR_SERVERS = range(10_000, 32_768)  # below what Linux gives to clients, ip_local_port_range
_TRIES = 100
_libc = ctypes.CDLL(None)


class LabError(Exception):
    """A part of the lab failed; the text ends with its log's tail."""


def start(
    argv: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    stdout: Path | None = None,
    cwd: Path | None = None,
    inside: Path | None = None,
    piped_input: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process with standard error appended to `log`, and standard output too or to `stdout`.

    `inside` is the directory of a cgroup: the process enters it before its program starts. `piped_input`: its standard
    input is a pipe to write to; else it has none.
    """
    log.parent.mkdir(parents=True, exist_ok=True)

    def enter() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if inside is not None:
            (inside / "cgroup.procs").write_text(str(os.getpid()))

    with log.open("ab") as errors, (stdout or log).open("ab") as output:
        return subprocess.Popen(
            [str(arg) for arg in argv],
            stdin=subprocess.PIPE if piped_input else subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            preexec_fn=enter,
            process_group=0,
        )


def stop(process: subprocess.Popen[bytes], *, by: signal.Signals = signal.SIGTERM, timeout_s: float = 20) -> int:
    """Ask the process to end, wait, and kill it if it does not; returns its exit status. A second call does nothing."""
    if process.poll() is None:
        process.send_signal(by)
    try:
        return process.wait(timeout_s * PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, such as Python and its JVM."""
    if process.poll() is None:
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        for member in family:
            with suppress(psutil.NoSuchProcess):  # it ends with its parent
                member.kill()
        psutil.wait_procs(family, timeout=20)
        process.wait()


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = 30, every_s: float = 0.05) -> None:
    """Return as soon as `condition()` holds.

    Raises:
        LabError: it did not hold within `timeout_s`.
    """
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(every_s)


def tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log, for the text of an error."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port without a listener, which the kernel does not assign to clients."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        for port in random.sample(_FOR_SERVERS, _TRIES):
            with suppress(OSError):
                probe.bind((host, port))
                return port
    raise LabError(f"{_TRIES} ports of {host} are all taken")


def listens(host: str, port: int) -> bool:
    """Return True if a process accepts TCP connections there now."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
