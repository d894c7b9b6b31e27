"""Who owns a socket: the process as the kernel recorded it, completed from /proc while it lives.

/proc is read directly rather than through psutil for two reasons: the start time is compared in the kernel's clock
ticks (psutil derives a float from the wall clock, which moves), and all files of a process are opened below one
descriptor of /proc/<pid>, which stays bound to that process even if its pid is given to another.
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
"""What is kept of a command line: a Java class path can be megabytes, and a resolver keeps many processes."""

_MOST_OPEN_FILES = 100_000
_CGROUP_MAX_BYTES = 65536
_STAT_MAX_BYTES = 1024
_STAT_STARTTIME = 19
"""Index of starttime (field 22 of proc_pid_stat(5)) among the fields after the parenthesised command name."""
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a socket as the kernel recorded it; byte strings as they come, NUL padding allowed.

    `pid` is the thread group id in the root pid namespace, `start_boottime_ns` is `task->group_leader->start_boottime`,
    `netns` the inode of the network namespace, `cgroup_id` the kernfs id in the hierarchy of v2, `cgroup_v1_id` that in
    the hierarchy of the v1 controller that `Cgroups` names (0: there is none), and `cmdline` the start of the argument
    area, arguments ended by NUL; it may be empty or cut.
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
    """A process by pid and start (µs since epoch). `exe` and `cmdline` are None where nobody could read them."""

    pid: int
    start_time_us: int
    comm: str
    exe: str | None
    cmdline: str | None
    uid: int


class LiveProcess:
    """A /proc/<pid> that is held open. After the process ends every read is empty, never that of a successor."""

    __slots__ = ("_dir_fd",)

    def __init__(self, dir_fd: int) -> None:
        self._dir_fd = dir_fd

    def start_ticks(self) -> int | None:
        """Start since boot in clock ticks; None when the process has ended."""
        fields = self._stat()
        return int(fields[_STAT_STARTTIME]) if fields else None

    def is_zombie(self) -> bool:
        """The process has ended, and its parent has not asked how."""
        return self._stat()[:1] in ([b"Z"], [b"X"], [])

    def comm(self) -> bytes:
        """The command name of the main thread; empty when the process has ended."""
        return self._read("comm", _STAT_MAX_BYTES).rstrip(b"\n")

    def exe(self) -> str | None:
        """Path of the executable in the process's mount namespace; None for a zombie or a kernel thread."""
        try:
            return _text(os.readlink(b"exe", dir_fd=self._dir_fd))
        except OSError:
            return None

    def cmdline(self) -> bytes:
        """The arguments, each ended by NUL, at most CMDLINE_MAX_BYTES of them."""
        return self._read("cmdline", CMDLINE_MAX_BYTES)

    def cgroup(self) -> str:
        """/proc/<pid>/cgroup: one line per hierarchy."""
        return _text(self._read("cgroup", _CGROUP_MAX_BYTES))

    def open_files(self) -> Iterator[str]:
        """Paths of the files that it holds open, as it sees them; of a socket or the like a text that is no path.

        Only the first _MOST_OPEN_FILES: a process may have any number of them.

        Raises:
            PermissionError: this needs CAP_SYS_PTRACE, where the process is not our own.
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
        """A descriptor for reading of what the process sees at an absolute path, in a container or not; None: nothing.

        Raises:
            PermissionError: we may not.
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
        """The fields behind the command name; none when the process has ended."""
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
    """Hold /proc/<pid>; None when the process of that start has ended, also if another one has its pid now."""
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
    """Whether there is a process of which /proc tells nothing: mounted with `hidepid`, see proc(5)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not present(pid, 0, proc).pid


def present(pid: int | None, netns: int, proc: Path = PROC) -> Owner:
    """A process as /proc tells it now, its start to a clock tick; without a pid, or once it has ended, nobody."""
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
    """The wall clock's time of boot, µs since epoch. Read once per agent, so that a process keeps one start time."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1000


def describe(owner: Owner, live: LiveProcess | None, boot_us: int) -> Process:
    """The process of an owner: what only /proc knows from `live`, everything else from the kernel's record."""
    return Process(
        pid=owner.pid,
        start_time_us=boot_us + owner.start_boottime_ns // 1000,
        comm=_text(owner.comm.rstrip(b"\0")),
        exe=live.exe() if live else None,
        cmdline=_arguments(live.cmdline() if live else b"") or _arguments(owner.cmdline),
        uid=owner.uid,
    )


def _arguments(raw: bytes) -> str | None:
    """Return the arguments as one text without secrets; None where there are none."""
    return _text(redacted(raw)) or None


def _text(raw: bytes) -> str:
    # Linux promises no encoding, and a lone surrogate (os.fsdecode) could not be written as JSON.
    return raw.decode("utf-8", "replace")
