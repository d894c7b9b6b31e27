"""Dropping capabilities, in a separate process: the tests need theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kafka_probe.privileges import Capability

pytestmark = pytest.mark.root

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
PROGRAM = """
import subprocess, sys, threading
from kafka_probe.privileges import Capability, give_up_all_but
give_up_all_but(Capability[name] for name in sys.argv[1:])
def show():
    print(open("/proc/thread-self/status").read())
show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
sys.stdout.flush()
subprocess.run(["cat", "/proc/self/status"])
"""


def after_giving_up_all_but(*kept: Capability) -> list[dict[str, int]]:
    """Return the capability sets of the thread that dropped them, of a later thread, and of an executed program."""
    command = [sys.executable, "-c", PROGRAM, *(capability.name for capability in kept)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split(":\t") for line in output.splitlines() if line.startswith(("Cap", "NoNewPrivs"))]
    size = len(SETS) + 1
    return [{name: int(value, 16) for name, value in lines[at : at + size]} for at in range(0, len(lines), size)]


def test_what_is_not_kept_is_gone_for_threads_and_programs_and_cannot_be_gained() -> None:
    mask = 1 << Capability.SYS_PTRACE | 1 << Capability.BPF
    thread, started, executed = after_giving_up_all_but(Capability.SYS_PTRACE, Capability.BPF)
    assert thread == dict(zip(SETS, (0, mask, mask, mask, 0), strict=True)) | {"NoNewPrivs": 1}
    assert started == thread
    assert executed == thread


def test_all_can_be_given_up() -> None:
    assert after_giving_up_all_but() == [dict.fromkeys(SETS, 0) | {"NoNewPrivs": 1}] * 3
