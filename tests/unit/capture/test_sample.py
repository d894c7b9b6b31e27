"""bpf/sample.h and its NumPy dtype agree, by the layout that the compiler gives the C structs."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

from kafka_probe.capture import sample
from kafka_probe.capture.compiler import sources
from kafka_probe.protocol.facts import SetStatus
from kafka_probe.protocol.wire import STUB_BYTES, STUB_FIELDS
from tests.lab.bpf_programs import Compile

STRUCTS = {"sample": sample.SAMPLE, "open_data": sample.OPEN_DATA, "close_data": sample.CLOSE_DATA}
HEADER = (sources() / "sample.h").read_text()
# Enumerators of enum counter whose counter has another name than their own in lower case.
RENAMED = {
    "unreadable": "buffer_unreadable",
    "limit": "limit_reached",
    "unmatched": "response_unmatched",
    "unanswered": "request_unanswered",
    "overflow": "in_flight_forgotten",
}

Layout = dict[str, tuple[int, int]]


def enumerators(name: str) -> dict[str, int]:
    """Return names and values of an enum of sample.h."""
    body = re.search(rf"enum {name} {{(.*?)}}", HEADER, re.DOTALL)
    assert body
    values: dict[str, int] = {}
    for found in re.finditer(
        r"^\s*(\w+)(?: = (\d+))?,|(\w+)(?: = (\d+))?,?", re.sub(r"//.*", "", body[1]), re.MULTILINE
    ):
        enumerator, value = found[1] or found[3], found[2] or found[4]
        values[enumerator] = int(value) if value else max(values.values(), default=-1) + 1
    return values


def without_prefix(values: dict[str, int]) -> dict[str, int]:
    return {name.split("_", 1)[1]: value for name, value in values.items()}


def c_layout(leaf: Any) -> Layout:
    """Return offset and size of each member of a struct."""
    return {name: (getattr(leaf, name).offset, getattr(leaf, name).size) for name, *_ in leaf._fields_}


def numpy_layout(dtype: np.dtype[Any]) -> Layout:
    assert dtype.fields
    return {name: (field[1], field[0].itemsize) for name, field in dtype.fields.items()}


@pytest.mark.root
def test_structs_agree_in_every_field(compile_bpf: Compile) -> None:
    tables = "\n".join(f"BPF_ARRAY({name}s, struct {name}, 1);" for name in [*STRUCTS, "set_summary"])
    bpf = compile_bpf(tables)
    for name, dtype in STRUCTS.items():
        leaf = bpf[f"{name}s".encode()].Leaf
        assert numpy_layout(dtype) == c_layout(leaf)
        assert dtype.itemsize == ctypes.sizeof(leaf)
    summary = bpf[b"set_summarys"].Leaf
    assert ctypes.sizeof(summary) == STUB_BYTES
    layout = c_layout(summary)
    assert {name: layout[name] for name in STUB_FIELDS} == STUB_FIELDS


def test_a_slot_fills_the_ring_evenly() -> None:
    assert sample.SLOT.itemsize == 256
    assert sample.OPEN_DATA.itemsize <= sample.DATA_BYTES
    assert sample.CLOSE_DATA.itemsize <= sample.DATA_BYTES
    assert sample.SAMPLE.fields
    assert sample.SAMPLE.fields["data"][1] == sample.DATA_AT


def test_constants_agree() -> None:
    defines = dict(re.findall(r"#define (\w+) (\d+)", HEADER))
    names = ("DATA_BYTES", "COMMAND_LINE_BYTES", "NO_API", "BURST_NS", "ALERTS_BYTES")
    assert {name: int(defines[name]) for name in names} == {name: getattr(sample, name) for name in names}


@pytest.mark.parametrize(
    ("c_name", "python"),
    [
        ("sample_kind", sample.SampleKind),
        ("sample_flag", sample.Flag),
        ("protocol", sample.Protocol),
        ("set_status", SetStatus),
    ],
)
def test_enums_agree(c_name: str, python: Any) -> None:
    assert without_prefix(enumerators(c_name)) == {member.name: member.value for member in python}


def test_counters_stand_in_the_order_of_their_names() -> None:
    in_kernel = enumerators("counter")
    assert in_kernel.pop("COUNTERS") == len(in_kernel)
    done = [name[6:].lower() for name in in_kernel if name.startswith("COUNT_")]
    lost = [name[5:].lower() for name in in_kernel if name.startswith("LOST_")]
    assert [*done, *lost] == [name.split("_", 1)[1].lower() for name in in_kernel]
    assert tuple(done) == sample.COUNTERS
    assert [RENAMED.get(name, name) for name in lost] == list(sample.LOSSES)
