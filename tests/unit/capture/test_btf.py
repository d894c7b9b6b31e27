"""Offsets equal bpftool's reading of the same BTF, and a message reports a kernel without BTF."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from kafka_probe.capture.btf import VMLINUX, Btf
from kafka_probe.capture.compiler import members
from kafka_probe.errors import StartError

WANTED = [(struct, member) for struct, _, member in members()]


class Dump:
    """`bpftool btf dump`, as text: members with their types and offsets in bits, by type id."""

    def __init__(self) -> None:
        text = subprocess.run(
            ["bpftool", "btf", "dump", "file", VMLINUX, "format", "raw"],
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        ).stdout
        self.structs: dict[str, str] = {}
        self.members: dict[str, list[tuple[str, str, int]]] = {}
        self.enumerators = {
            name: int(value) for name, value in re.findall(r"^\t'(\w+)' val=(\d+)$", text, re.MULTILINE)
        }
        self.functions = {
            name: int(number) for number, name in re.findall(r"^\[(\d+)\] FUNC '(\w+)'", text, re.MULTILINE)
        }
        self.sizes = {number: int(size) for number, size in re.findall(r"^\[(\d+)\] .* size=(\d+)", text, re.MULTILINE)}
        self.sizes |= dict.fromkeys(re.findall(r"^\[(\d+)\] PTR ", text, re.MULTILINE), 8)
        self.aliases = dict(
            re.findall(r"^\[(\d+)\] (?:TYPEDEF|CONST|VOLATILE) '.+?' type_id=(\d+)$", text, re.MULTILINE)
        )
        members: list[tuple[str, str, int]] = []
        for line in text.splitlines():
            if head := re.match(r"\[(\d+)\] (STRUCT|UNION) '(.+?)' size", line):
                members = self.members[head[1]] = []
                if head[2] == "STRUCT":
                    self.structs.setdefault(head[3], head[1])
            elif member := re.match(r"\t'(.+?)' type_id=(\d+) bits_offset=(\d+)", line):
                members.append((member[1], member[2], int(member[3])))

    def find(self, type_id: str, wanted: str) -> tuple[int, str] | None:
        """Return the offset of a member in bits, and its type id."""
        for name, member_type, offset in self.members.get(type_id, []):
            if name == wanted:
                return offset, member_type
            if name == "(anon)" and (inner := self.find(member_type, wanted)) is not None:
                return offset + inner[0], inner[1]
        return None

    def size(self, type_id: str) -> int | None:
        return self.size(self.aliases[type_id]) if type_id in self.aliases else self.sizes.get(type_id)


@cache
def dump() -> Dump:
    return Dump()


@cache
def kernel() -> Btf:
    return Btf()


@pytest.mark.parametrize(("struct", "member"), WANTED)
def test_offsets_are_those_that_bpftool_reads(struct: str, member: str) -> None:
    found = dump().find(dump().structs[struct], member)
    assert found is not None
    assert kernel().offset(struct, member) == found[0] // 8


@pytest.mark.parametrize(
    ("struct", "type_", "member"),
    [found for found in members() if re.fullmatch(r"u\d+", found[1])],
)
def test_a_number_is_declared_with_the_size_that_the_kernel_gives_it(struct: str, type_: str, member: str) -> None:
    found = dump().find(dump().structs[struct], member)
    assert found is not None
    assert f"u{8 * (dump().size(found[1]) or 0)}" == type_


def test_enumerators_are_those_that_bpftool_reads() -> None:
    names = [name for name in dump().enumerators if name.endswith("_cgrp_id")]
    assert "cpu_cgrp_id" in names
    assert [kernel().enumerator(name) for name in names] == [dump().enumerators[name] for name in names]


@pytest.mark.parametrize(("struct", "member"), [("sock", "no_such_member"), ("no_such_struct", "x")])
def test_what_this_kernel_does_not_have_is_named(struct: str, member: str) -> None:
    with pytest.raises(StartError, match=rf"no {struct}\.{member}: the kernel is not supported$"):
        kernel().offset(struct, member)


def test_an_enumerator_that_this_kernel_does_not_have_is_named() -> None:
    with pytest.raises(StartError, match=r"no enumerator no_such_cgrp_id: the kernel is not supported$"):
        kernel().enumerator("no_such_cgrp_id")


def test_without_btf_the_error_names_what_the_kernel_needs(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot read .*vmlinux .*No such file.*CONFIG_DEBUG_INFO_BTF=y"):
        Btf(tmp_path / "vmlinux")


@pytest.mark.parametrize(
    "garbage", [b"", b"\x9f", b"\x7fELF" + bytes(100), b"\xeb\x9f" + bytes(40), VMLINUX.read_bytes()[:5000]]
)
def test_what_is_no_btf_is_refused(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "vmlinux").write_bytes(garbage)
    with pytest.raises(StartError, match="vmlinux is not BTF of this machine's byte order"):
        Btf(tmp_path / "vmlinux")


def test_parameters_are_those_of_the_prototype() -> None:
    assert kernel().parameters("tcp_sendmsg") == ["sk", "msg", "size"]
    assert "flags" in kernel().parameters("tcp_recvmsg")


def test_the_id_of_a_function_is_that_which_bpftool_shows() -> None:
    shown = dump().functions["tcp_recvmsg"]
    assert kernel().function("tcp_recvmsg") == shown


def test_a_function_that_this_kernel_does_not_have_is_named() -> None:
    assert not kernel().has_function("no_such_function")
    with pytest.raises(StartError, match=r"no function no_such_function: the kernel is not supported$"):
        kernel().function("no_such_function")
