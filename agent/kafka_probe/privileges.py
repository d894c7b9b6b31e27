"""Capabilities of this thread, which its new threads and programs inherit: names them and drops them.

See capabilities(7). Capabilities are per thread: drop those of a process before it starts other threads. This module
never adds capabilities.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

_VERSION_3 = 0x20080522  # linux/capability.h
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38  # linux/prctl.h
_LAST_CAP = Path("/proc/sys/kernel/cap_last_cap")

_libc = ctypes.CDLL(None, use_errno=True)


class Capability(IntEnum):
    """Capabilities that the agent uses, with their numbers in linux/capability.h."""

    DAC_READ_SEARCH = 2
    NET_ADMIN = 12
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    PERFMON = 38
    BPF = 39


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def give_up_all_but(kept: Iterable[Capability]) -> None:
    """Drop all capabilities except those in `kept`, also for programs that this thread executes.

    Raises:
        OSError: capget(2) or capset(2) is refused.
    """
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    _check(_libc.capget(ctypes.byref(header), sets))
    mask = (sets[0].permitted | sets[1].permitted << 32) & sum(1 << capability for capability in kept)
    for capability in range(int(_LAST_CAP.read_text()) + 1):
        if not mask >> capability & 1:
            # The kernel refuses this without CAP_SETPCAP; no_new_privs alone keeps executed programs from gaining any.
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for half, bits in zip(sets, (mask & 0xFFFFFFFF, mask >> 32), strict=True):
        half.effective, half.permitted, half.inheritable = bits, bits, 0
    _check(_libc.capset(ctypes.byref(header), sets))


def _check(failed: int) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
