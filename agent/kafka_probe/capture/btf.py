"""Struct offsets, enumerator values and function ids from the running kernel's BTF; no kernel headers are needed.

Parses the raw BTF blob once (layout: Documentation/bpf/btf.rst). Never depends on Kafka or on the BPF programs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from kafka_probe.errors import StartError

VMLINUX = Path("/sys/kernel/btf/vmlinux")

_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")
_ENUMERATOR = struct.Struct("<Ii")
_PARAMETER = struct.Struct("<II")
# Bytes that follow the 12-byte record of a type, by its kind: per element (vlen), or once.
_PER_ELEMENT = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
_ONCE = {1: 4, 3: 12, 14: 4, 17: 4}
_STRUCT, _ENUM, _FUNCTION = 4, 6, 12
_MODIFIERS = {8, 9, 10, 11, 18}  # typedef, volatile, const, restrict, type tag


@dataclass(frozen=True, slots=True)
class _Type:
    name: int
    kind: int
    length: int
    kind_flag: bool
    size_or_type: int
    at: int


def read_btf(path: Path = VMLINUX) -> bytes:
    """Return the raw BTF; StartError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(
            f"cannot read the kernel's BTF at {path} ({error.strerror}): "
            "a kernel built with CONFIG_DEBUG_INFO_BTF=y is needed"
        ) from None


class Btf:
    """The types of one kernel. Look-ups by name raise StartError if this kernel does not have the name."""

    def __init__(self, path: Path = VMLINUX) -> None:
        self._blob = read_btf(path)
        self._types = [_Type(0, 0, 0, False, 0, 0)]
        self._names: dict[tuple[int, int], int] = {}
        try:
            magic, _, _, header, types_at, types_size, strings_at, _ = _HEADER.unpack_from(self._blob)
            if magic == 0xEB9F:
                self._index(header + types_at, header + types_at + types_size)
        except struct.error:  # the file is too short
            magic = 0
        if magic != 0xEB9F:
            raise StartError(f"{path} is not BTF of this machine's byte order")
        self._strings = header + strings_at

    def _index(self, at: int, end: int) -> None:
        while at < end:
            name, info, size_or_type = _TYPE.unpack_from(self._blob, at)
            at += _TYPE.size
            kind, length = info >> 24 & 0x1F, info & 0xFFFF
            if kind in (_STRUCT, _ENUM, _FUNCTION):
                self._names.setdefault((kind, name), len(self._types))
            self._types.append(_Type(name, kind, length, bool(info >> 31), size_or_type, at))
            at += _PER_ELEMENT.get(kind, 0) * length + _ONCE.get(kind, 0)

    def _string(self, at: int) -> str:
        start = self._strings + at
        return self._blob[start : self._blob.index(b"\0", start)].decode()

    def _id(self, kind: int, name: str) -> int:
        # The string section contains each name once, so its offset identifies it.
        at = self._blob.index(b"\0" + name.encode() + b"\0", self._strings) + 1 - self._strings
        return self._names[kind, at]

    def offset(self, struct_name: str, member: str) -> int:
        """Return the byte offset of a member, also of members of anonymous structs and unions."""
        try:
            found = self._find(self._types[self._id(_STRUCT, struct_name)], member, 0)
        except (ValueError, KeyError):
            found = None
        if found is None:
            raise StartError(f"this kernel's BTF has no {struct_name}.{member}: the kernel is not supported")
        return found // 8

    def _find(self, type_: _Type, member: str, base_bits: int) -> int | None:
        for i in range(type_.length):
            name_at, member_type, offset = _MEMBER.unpack_from(self._blob, type_.at + _MEMBER.size * i)
            bits: int = base_bits + (offset & 0xFFFFFF if type_.kind_flag else offset)
            name = self._string(name_at)
            if name == member:
                return bits
            if not name:
                inner = self._types[member_type]
                while inner.kind in _MODIFIERS:
                    inner = self._types[inner.size_or_type]
                found = self._find(inner, member, bits)
                if found is not None:
                    return found
        return None

    def has_member(self, struct_name: str, member: str) -> bool:
        """Return True if `offset` finds the member."""
        try:
            self.offset(struct_name, member)
        except StartError:
            return False
        return True

    def has_function(self, name: str) -> bool:
        """Return True if `function` finds the name."""
        try:
            self.function(name)
        except StartError:
            return False
        return True

    def function(self, name: str) -> int:
        """Return the type id of a function."""
        try:
            return self._id(_FUNCTION, name)
        except (ValueError, KeyError):
            raise StartError(f"this kernel's BTF has no function {name}: the kernel is not supported") from None

    def parameters(self, function: str) -> list[str]:
        """Return the names of a function's parameters, in order."""
        prototype = self._types[self._types[self.function(function)].size_or_type]
        offsets = (prototype.at + _PARAMETER.size * i for i in range(prototype.length))
        return [self._string(_PARAMETER.unpack_from(self._blob, at)[0]) for at in offsets]

    def enumerator(self, name: str) -> int:
        """Return the value of an enumerator of any enum."""
        for type_ in self._types:
            if type_.kind == _ENUM:
                for i in range(type_.length):
                    name_at, value = _ENUMERATOR.unpack_from(self._blob, type_.at + _ENUMERATOR.size * i)
                    if self._string(name_at) == name:
                        return int(value)
        raise StartError(f"this kernel's BTF has no enumerator {name}: the kernel is not supported")
