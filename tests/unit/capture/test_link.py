"""Programs of several functions load, and a refused program's message contains the kernel's reason."""

from __future__ import annotations

import os
import struct

import pytest

from kafka_probe.capture import bpf, link

pytestmark = pytest.mark.root

RAW_TRACEPOINT = 17
_INSTRUCTION = struct.Struct("<BBhi")
RETURN_0 = _INSTRUCTION.pack(0xB7, 0, 0, 0) + _INSTRUCTION.pack(0x95, 0, 0, 0)
ARGUMENT_7 = _INSTRUCTION.pack(0xB7, 1, 0, 7)


def call(number: int) -> bytes:
    return _INSTRUCTION.pack(0x85, 0, 0, number)


def load(linked: link.Linked) -> bpf.Program:
    """Load a program into the kernel, and close its descriptor."""
    types = bpf.load_btf(link.btf())
    try:
        program = bpf.load_program("test", RAW_TRACEPOINT, linked.code, btf=types, functions=linked.functions)
    finally:
        os.close(types)
    os.close(program.fd)
    return program


def test_a_function_that_is_called_often_is_verified_once() -> None:
    function = _INSTRUCTION.pack(0xB7, 0, 0, 1) * 100 + RETURN_0
    (name, number), *_ = link.CALLS.items()
    once, often = (
        load(link.link((ARGUMENT_7 + call(number)) * calls + RETURN_0, {name: function}, {})).instructions
        for calls in (1, 50)
    )
    assert once > 100
    assert often - once == 49 * 2


def test_each_function_stands_once_behind_the_program_that_calls_it() -> None:
    others = dict.fromkeys(link.CALLS, RETURN_0)
    code = b"".join(ARGUMENT_7 + call(number) for number in link.CALLS.values()) * 2 + RETURN_0
    linked = link.link(code, others, {})
    assert len(linked.code) == len(code) + len(others) * len(RETURN_0)
    load(linked)


def test_a_program_without_calls_stays_as_it_is() -> None:
    assert link.link(RETURN_0, {"run_send": RETURN_0}, {}) == link.Linked(RETURN_0)


@pytest.mark.parametrize("kind", [1, 2], ids=["map", "value"])
def test_maps_and_their_values_are_named_by_their_descriptors(kind: int) -> None:
    load_map = _INSTRUCTION.pack(0x18, kind << 4 | 1, 0, 33) + bytes(8)
    linked = link.link(load_map + RETURN_0, {}, {33: 7})
    assert _INSTRUCTION.unpack_from(linked.code) == (0x18, kind << 4 | 1, 0, 7)


def test_a_refusal_ends_with_the_last_lines_of_the_verifiers_log() -> None:
    with pytest.raises(OSError, match=r"R0 !read_ok") as error:
        bpf.load_program("test", RAW_TRACEPOINT, RETURN_0[8:])
    assert "\n" not in str(error.value)
