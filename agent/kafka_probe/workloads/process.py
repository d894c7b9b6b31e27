"""Processes that own sockets, as the kernel recorded them, completed from /proc while they live.

This module reads /proc directly instead of through psutil for two reasons: it compares start times in the kernel's
clock ticks (psutil derives a float from the wall clock, which moves), and it opens all files of a process below one
descriptor of /proc/<pid>, which stays bound to that process even if another process gets its pid.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kafka_probe.workloads.redaction import redacted

PROC = Path("/proc")
CMDLINE_MAX_BYTES = 4096
"""Most bytes kept of a command line: a Java class path can be megabytes, and a resolver keeps many processes."""

_MOST_OPEN_FILES = 100_000
_CGROUP_MAX_BYTES = 65536
_STAT_MAX_BYTES = 1024
_STAT_STARTTIME = 19
"""Index of starttime (field 22 of proc_pid_stat(5)) among the fields after the parenthesised command name."""
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a socket as the kernel recorded it. Byte strings are raw and may be padded with NUL.

    `pid` is the thread group id in the root pid namespace, `start_boottime_ns` is `task->group_leader->start_boottime`,
    `netns` the inode of the network namespace, `cgroup_id` the kernfs id in the hierarchy of v2, `cgroup_v1_id` that in
    the hierarchy of `Cgroups.v1_controller` (0: there is none), and `cmdline` the start of the argument area, in which
    NUL ends each argument; it may be empty or cut.
    """

    pid: int
    start_boottime_ns: int
    comm: bytes
    uid: int
    netns: int
    cgroup_id: int
    cgroup_v1_id: int
    cmdline: bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A process by pid and start (µs since epoch). `exe` and `cmdline` are None if they could not be read."""

    pid: int
    start_time_us: int
    comm: str
    exe: str | None
    cmdline: str | None
    uid: int


class LiveProcess:
    """An open /proc/<pid>. After the process has ended, reads return nothing, never data of a process with its pid."""

    __slots__ = ("_dir_fd",)

    def __init__(self, dir_fd: int) -> None:
        self._dir_fd = dir_fd

    def start_ticks(self) -> int | None:
        """Return the start since boot in clock ticks; None if the process has ended."""
        fields = self._stat()
        return int(fields[_STAT_STARTTIME]) if fields else None

    def is_zombie(self) -> bool:
        """Return True if the process has ended, also while its parent has not read its exit status."""
        return self._stat()[:1] in ([b"Z"], [b"X"], [])

    def comm(self) -> bytes:
        """Return the command name of the main thread; empty if the process has ended."""
        return self._read("comm", _STAT_MAX_BYTES).rstrip(b"\n")

    def exe(self) -> str | None:
        """Return the executable's path in the process's mount namespace; None for a zombie or a kernel thread."""
        try:
            return _text(os.readlink(b"exe", dir_fd=self._dir_fd))
        except OSError:
            return None

    def cmdline(self) -> bytes:
        """Return at most CMDLINE_MAX_BYTES of the arguments, each ended by NUL."""
        return self._read("cmdline", CMDLINE_MAX_BYTES)

    def cgroup(self) -> str:
        """Return the text of /proc/<pid>/cgroup: one line per hierarchy."""
        return _text(self._read("cgroup", _CGROUP_MAX_BYTES))

    def open_files(self) -> Iterator[str]:
        """Yield the paths of its open files, as it sees them. For a socket or the like, yields a text that is no path.

        Yields the first _MOST_OPEN_FILES only: a process may have any number of them.

        Raises:
            PermissionError: the process has another user, and the agent lacks CAP_SYS_PTRACE.
        """
        directory = self._open("fd", os.O_DIRECTORY)
        if directory is None:
            return
        try:
            with os.scandir(directory) as entries:
                for entry in islice(entries, _MOST_OPEN_FILES):
                    try:
                        yield _text(os.readlink(os.fsencode(entry.name), dir_fd=directory))
                    except FileNotFoundError:  # closed meanwhile
                        continue
        finally:
            os.close(directory)

    def open(self, path: str, flags: int) -> int | None:
        """Return a descriptor for reading an absolute path as the process sees it, in a container or not.

        Returns None if it cannot be opened, as when there is no such file.

        Raises:
            PermissionError: the agent may not read it.
        """
        return self._open(f"root{path}", flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    def _open(self, name: str, flags: int) -> int | None:
        try:
            return os.open(name, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=self._dir_fd)
        except PermissionError:
            raise
        except OSError:
            return None

    def _stat(self) -> list[bytes]:
        """Return the fields after the command name; none if the process has ended."""
        return self._read("stat", _STAT_MAX_BYTES).rpartition(b")")[2].split()

    def _read(self, name: str, limit_bytes: int) -> bytes:
        try:
            file_fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir_fd)
        except OSError:
            return b""
        try:
            return os.read(file_fd, limit_bytes)
        except OSError:
            return b""
        finally:
            os.close(file_fd)


@contextmanager
def living(pid: int, start_boottime_ns: int, proc: Path = PROC) -> Iterator[LiveProcess | None]:
    """Hold /proc/<pid> open; yield None if the process of that start has ended, also if another one has its pid."""
    try:
        dir_fd = os.open(proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        live = LiveProcess(dir_fd)
        yield live if live.start_ticks() == start_boottime_ns // _NS_PER_TICK else None
    finally:
        os.close(dir_fd)


def hidden(pid: int, proc: Path = PROC) -> bool:
    """Return True if /proc hides an existing process: mounted with `hidepid`, see proc(5)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not present(pid, 0, proc).pid


def present(pid: int | None, netns: int, proc: Path = PROC) -> Owner:
    """Return a process as /proc shows it now, its start to a clock tick. Without pid or after its end, pid is 0."""
    nobody = Owner(0, 0, b"", 0, netns, 0, 0, b"")
    if pid is None:
        return nobody
    try:
        dir_fd = os.open(proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return nobody
    try:
        live = LiveProcess(dir_fd)
        ticks = live.start_ticks()
        if ticks is None:
            return nobody
        return Owner(pid, ticks * _NS_PER_TICK, live.comm(), os.fstat(dir_fd).st_uid, netns, 0, 0, b"")
    finally:
        os.close(dir_fd)


def boot_time_us() -> int:
    """Return the wall clock's time of boot, µs since epoch. Call it once, so that a process keeps one start time."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1000


def describe(owner: Owner, live: LiveProcess | None, boot_us: int) -> Process:
    """Return an owner's process: facts that only /proc has from `live`, all others from the kernel."""
    return Process(
        pid=owner.pid,
        start_time_us=boot_us + owner.start_boottime_ns // 1000,
        comm=_text(owner.comm.rstrip(b"\0")),
        exe=live.exe() if live else None,
        cmdline=_arguments(live.cmdline() if live else b"") or _arguments(owner.cmdline),
        uid=owner.uid,
    )


def _arguments(raw: bytes) -> str | None:
    """Return the arguments as one text without secrets; None if there are none."""
    return _text(redacted(raw)) or None


def _text(raw: bytes) -> str:
    # Linux guarantees no encoding, and JSON cannot contain the lone surrogates that os.fsdecode creates.
    return raw.decode("utf-8", "replace")
