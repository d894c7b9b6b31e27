"""Lists the BPF programs of the kernel, from any loader, and their maps."""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Compile = Callable[..., Any]
"""Compiles a text behind a header of bpf/ to BCC's object."""

_BPF, _PROG_GET_NEXT_ID = 321, 11  # x86-64; include/uapi/linux/bpf.h


def loaded() -> set[int]:
    """Return the ids of the loaded programs."""
    ids = [0]
    while (following := _next(ids[-1])) is not None:
        ids.append(following)
    return set(ids[1:])


def map_bytes(pid: int) -> int:
    """Return the memory of all maps of the programs that a process has attached, from the kernel."""
    links = (file.read_text() for file in Path(f"/proc/{pid}/fdinfo").iterdir())
    programs = {number for text in links for number in re.findall(r"^prog_id:\s*(\d+)$", text, re.MULTILINE)}
    maps = {number for program in programs for number in _bpftool("prog", program)["map_ids"]}
    return sum(int(_bpftool("map", str(number))["bytes_memlock"]) for number in maps)


def _bpftool(kind: str, number: str) -> dict[str, Any]:
    command = ["bpftool", "--json", kind, "show", "id", number]
    shown: dict[str, Any] = json.loads(subprocess.check_output(command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}))
    return shown


def _next(after: int) -> int | None:
    attributes = ctypes.create_string_buffer(struct.pack("<III", after, 0, 0), 12)
    failed = ctypes.CDLL(None).syscall(_BPF, _PROG_GET_NEXT_ID, attributes, len(attributes))
    return None if failed else int(struct.unpack_from("<I", attributes, 4)[0])
