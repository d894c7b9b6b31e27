"""The backends: which programs of bpf/BACKEND.c are attached to which hooks, in order of preference.

`refusal` tests a backend by attaching a program that does nothing: the kernel's version and configuration do not show
reliably what it accepts. This module compiles nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kafka_probe.capture import bpf, link
from kafka_probe.capture.btf import Btf

_KPROBE_PMU = Path("/sys/bus/event_source/devices/kprobe/type")
_TRACING = 26  # enum bpf_prog_type
_TRACE_FEXIT = 25  # enum bpf_attach_type
# Kernel function: only a kernel that has it can safely free a trampoline while a CPU executes it.
SAFE_TRAMPOLINES = "__bpf_tramp_image_put_rcu"
_RETURN_0 = bytes([0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])


class RefusedError(Exception):
    """The kernel refuses to load a program or to attach it; the text names the hook and the reason."""


class HookType(Enum):
    """Types of hooks: the number of the program type (enum bpf_prog_type) and the name for messages."""

    KPROBE = 2, "kprobe"
    KRETPROBE = 2, "kretprobe"
    RAW_TRACEPOINT = 17, "raw tracepoint"
    FEXIT = _TRACING, "fexit"


@dataclass(frozen=True, slots=True)
class Hook:
    """A program, by its name in C, and the kernel function or tracepoint to which it is attached."""

    program: str
    type: HookType
    target: str

    def __str__(self) -> str:
        return f"{self.type.value[1]} {self.target}"


# Hooks are attached in this order: closes are watched before any connection is followed.
_LIFECYCLE = (
    Hook("on_tcp_destroy_sock", HookType.RAW_TRACEPOINT, "tcp_destroy_sock"),
    Hook("on_inet_sock_set_state", HookType.RAW_TRACEPOINT, "inet_sock_set_state"),
    Hook("on_tcp_send_reset", HookType.RAW_TRACEPOINT, "tcp_send_reset"),
)
BACKENDS = {
    "fentry": (
        *_LIFECYCLE,
        Hook("on_tcp_recvmsg", HookType.FEXIT, "tcp_recvmsg"),
        Hook("on_tcp_sendmsg", HookType.FEXIT, "tcp_sendmsg"),
    ),
    "kprobe": (
        *_LIFECYCLE,
        Hook("on_tcp_rcv_space_adjust", HookType.KPROBE, "tcp_rcv_space_adjust"),
        Hook("on_tcp_recvmsg", HookType.KPROBE, "tcp_recvmsg"),
        Hook("on_tcp_sendmsg_return", HookType.KRETPROBE, "tcp_sendmsg"),
        Hook("on_tcp_sendmsg", HookType.KPROBE, "tcp_sendmsg"),
    ),
    "tracepoint": (
        *_LIFECYCLE,
        Hook("on_sock_recv_length", HookType.RAW_TRACEPOINT, "sock_recv_length"),
        Hook("on_sock_send_length", HookType.RAW_TRACEPOINT, "sock_send_length"),
    ),
}
# Functions whose type ids `load` and `refusal` need.
_FUNCTIONS = {SAFE_TRAMPOLINES, *(hook.target for hook in BACKENDS["fentry"] if hook.type is HookType.FEXIT)}


def type_ids(btf: Btf) -> dict[str, int]:
    """Return the BTF type ids that `load` and `refusal` need, of those functions that this kernel has."""
    return {name: btf.function(name) for name in sorted(_FUNCTIONS) if btf.has_function(name)}


def load(hook: Hook, code: link.Linked, ids: Mapping[str, int]) -> bpf.Program:
    """Load the program of a hook without attaching it. ids: see `type_ids`.

    Raises:
        RefusedError: the kernel refuses it; the text contains the last lines of the verifier's log.
    """
    kind, _ = hook.type.value
    if kind == _TRACING and hook.target not in ids:
        raise RefusedError(f"{hook}: this kernel's BTF has no function {hook.target}")
    types = 0
    try:
        types = bpf.load_btf(link.btf()) if code.functions else 0
        target = {"attach_type": _TRACE_FEXIT, "attach_btf_id": ids[hook.target]} if kind == _TRACING else {}
        return bpf.load_program(hook.program, kind, code.code, btf=types, functions=code.functions, **target)
    except OSError as error:
        raise RefusedError(f"{hook}: {error.strerror}") from None
    finally:
        if types:
            os.close(types)


def attach(hook: Hook, program: bpf.Program) -> int:
    """Attach a program and return a descriptor; the program runs until the last copy of the descriptor is closed.

    Raises:
        RefusedError: the kernel refuses to attach it.
    """
    try:
        match hook.type:
            case HookType.RAW_TRACEPOINT:
                return bpf.attach(program.fd, hook.target)
            case HookType.FEXIT:
                return bpf.attach(program.fd, None)
            case _:
                if not _KPROBE_PMU.exists():
                    raise RefusedError(f"{hook}: this kernel has no kprobes")
                pmu = int(_KPROBE_PMU.read_text())
                return bpf.attach_kprobe(program.fd, pmu, hook.target, returns=hook.type is HookType.KRETPROBE)
    except OSError as error:
        raise RefusedError(f"{hook}: {error.strerror}") from None


def refusal(backend: str, ids: Mapping[str, int]) -> str:
    """Return why this kernel does not support the backend; empty if it does. ids: see `type_ids`."""
    if backend == "fentry" and SAFE_TRAMPOLINES not in ids:
        return "this kernel crashes if it frees a trampoline that still runs (fixed in 5.12 by e21d2b92354b)"
    for hook in BACKENDS[backend]:
        try:
            program = load(hook, link.Linked(_RETURN_0), ids)
            try:
                os.close(attach(hook, program))
            finally:
                os.close(program.fd)
        except RefusedError as refused:
            return str(refused)
    return ""
