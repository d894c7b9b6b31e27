"""Processes of this host, and the facts that remain of ended ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from subprocess import DEVNULL, Popen

import psutil
import pytest

from kafka_probe.workloads import Owner
from kafka_probe.workloads.process import CMDLINE_MAX_BYTES, Process, boot_time_us, describe, living

Start = Callable[..., "Popen[bytes]"]
End = Callable[["Popen[bytes]"], None]
OwnerOf = Callable[..., Owner]


def described(owner: Owner) -> Process:
    with living(owner.pid, owner.start_boottime_ns) as live:
        return describe(owner, live, boot_time_us())


def test_a_living_process_has_its_executable_and_whole_command_line(start: Start, owner_of: OwnerOf) -> None:
    process = start("--topic", "x" * 300)
    truth = psutil.Process(process.pid)
    found = described(owner_of(process.pid, cmdline=b"python\0--topic\0xxx"))
    assert found == Process(
        pid=process.pid,
        start_time_us=found.start_time_us,
        comm=truth.name(),
        exe=truth.exe(),
        cmdline=" ".join(truth.cmdline()),
        uid=truth.uids().real,
    )


def test_a_command_line_has_no_secrets_of_a_living_or_an_ended_process(
    start: Start, owner_of: OwnerOf, end: End
) -> None:
    process = start("--sasl-password", "hunter2")
    owner = owner_of(process.pid, cmdline=b"kcat\0-X\0sasl.password=hunter2\0")
    assert str(described(owner).cmdline).endswith(" --sasl-password ***")
    end(process)
    assert described(owner).cmdline == "kcat -X sasl.password=***"


def test_its_start_is_the_wall_clock_time_at_which_it_started(start: Start, owner_of: OwnerOf) -> None:
    process = start()
    truth_us = psutil.Process(process.pid).create_time() * 1e6
    # psutil counts from the boot time in /proc/stat, which is in whole seconds.
    assert described(owner_of(process.pid)).start_time_us == pytest.approx(truth_us, abs=1.1e6)


def test_of_an_ended_process_the_kernels_record_is_kept(start: Start, owner_of: OwnerOf, end: End) -> None:
    process = start()
    owner = owner_of(process.pid, cmdline=b"kcat\0-L\0-b\0broker")
    end(process)
    assert described(owner).exe is None
    assert described(owner).cmdline == "kcat -L -b broker"
    assert described(owner).comm == owner.comm.rstrip(b"\0").decode()


def test_a_process_that_exits_at_once_is_not_an_error() -> None:
    process = Popen(["/bin/true"])
    process.wait()
    found = described(Owner(process.pid, 1, b"true", 0, 0, 0, 0, b""))
    assert (found.comm, found.exe, found.cmdline) == ("true", None, None)


def test_a_zombie_has_no_executable(owner_of: OwnerOf) -> None:
    process = Popen(["/bin/true"], stdout=DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        found = described(owner_of(process.pid, cmdline=b"/bin/true\0"))
    finally:
        process.wait()
    assert (found.exe, found.cmdline) == (None, "/bin/true")


@pytest.mark.parametrize("ticks", [-1, 1, 1000])
def test_the_next_owner_of_a_pid_is_not_taken_for_the_first(start: Start, owner_of: OwnerOf, ticks: int) -> None:
    now = owner_of(start().pid)
    first = replace(now, start_boottime_ns=now.start_boottime_ns + ticks * 10_000_000, cmdline=b"first\0")
    assert (described(first).exe, described(first).cmdline) == (None, "first")


def test_what_is_held_open_stays_bound_to_its_process(start: Start, owner_of: OwnerOf, end: End) -> None:
    process = start()
    owner = owner_of(process.pid)
    with living(owner.pid, owner.start_boottime_ns) as live:
        assert live is not None
        assert live.exe()
        end(process)
        assert (live.start_ticks(), live.exe(), live.cmdline(), live.cgroup()) == (None, None, b"", "")


def test_a_command_name_may_look_like_fields_of_stat(start: Start, owner_of: OwnerOf) -> None:
    process = start(code="open('/proc/self/comm', 'w').write('x) S 1 (y 2) 3')")
    found = described(owner_of(process.pid))
    assert found.comm == "x) S 1 (y 2) 3"
    assert found.exe == os.path.realpath(sys.executable)


def test_bytes_that_are_not_text_are_replaced(start: Start, owner_of: OwnerOf) -> None:
    found = described(owner_of(start(b"caf\xe9").pid))
    assert found.cmdline is not None
    assert found.cmdline.endswith("caf\N{REPLACEMENT CHARACTER}")


def test_a_long_command_line_is_cut(start: Start, owner_of: OwnerOf) -> None:
    found = described(owner_of(start("x" * 3 * CMDLINE_MAX_BYTES).pid))
    assert found.cmdline is not None
    assert len(found.cmdline) == CMDLINE_MAX_BYTES


def test_no_file_stays_open(start: Start, owner_of: OwnerOf) -> None:
    living_now = owner_of(start().pid)
    before = os.listdir("/proc/self/fd")
    for owner in (living_now, replace(living_now, start_boottime_ns=0), replace(living_now, pid=0)):
        described(owner)
    assert os.listdir("/proc/self/fd") == before
