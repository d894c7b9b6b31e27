"""Walks: how the kernel steps over what must stay behind in a body, one byte per op, from Kafka's own definition.

Op is enum op of bpf/maps.h, which says what each does. Record sets stay, opaque bytes, and the strings that rules.py
hides. Neighbours of fixed size are one op. Behind the last field of which something stays the copy goes on to the end,
but where there are record sets it ends with the last field: what a wrong count leaves over may be records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kafka_probe.protocol.schemas import WIDTHS, Api, SchemaField, fields_of

WALK_OPS = 32
HIDDEN = 16  # of a string's operand
_OPERAND_BITS = 5
_MOST = (1 << _OPERAND_BITS) - 1
_LENGTH_WIDTHS = {"string": 2, "bytes": 4}


class Op(IntEnum):
    """The upper three bits of an op; the others are its operand: a size, or the op to go on with."""

    REST = 0
    FIXED = 1
    ACKS = 2
    STRING = 3
    RECORDS = 4
    TAGS = 5
    ARRAY = 6
    END = 7


def walk_of(api: Api, *, response: bool, version: int, hidden: frozenset[str], stop: str | None) -> bytes:
    """The walk through one version's body, (WALK_OPS,), from behind the client id or the correlation id.

    hidden: names of strings that stay; stop: name of the field that ends the copy. Empty if nothing has to stay.
    """
    walk = _Walk(version, api.flexible(version), hidden, stop)
    if api.flexible_response_header(version) if response else walk.flexible:
        walk.append(Op.TAGS)
    fields = fields_of(api, response=response, version=version)
    last = max((place for place, each in enumerate(fields, 1) if walk.holds_back(each)), default=0)
    if any(map(_has_records, fields)):
        walk.add(fields)
        if walk.flexible:
            walk.append(Op.TAGS)
        walk.append(Op.REST, 1)
    else:
        walk.add(fields[:last])
    if len(walk.ops) >= WALK_OPS:
        raise ValueError(f"{api.name} {version} has a longer walk than the kernel knows")
    return bytes(walk.ops).ljust(WALK_OPS, bytes([Op.REST << _OPERAND_BITS])) if last else b""


def _has_records(each: SchemaField) -> bool:
    return each.type == "records" or any(map(_has_records, each.fields))


@dataclass(slots=True)
class _Walk:
    version: int
    flexible: bool
    hidden: frozenset[str]
    stop: str | None
    ops: bytearray = field(default_factory=bytearray)

    def holds_back(self, each: SchemaField) -> bool:
        """Whether something of the field stays in the kernel."""
        if not self._stands(each):
            return False
        return each.name == self.stop or self._hides(each) or any(map(self.holds_back, each.fields))

    def add(self, fields: tuple[SchemaField, ...]) -> None:
        for each in filter(self._stands, fields):
            if each.name == self.stop:
                self.append(Op.REST, 1)
                return
            if not each.type.startswith("[]"):
                self._add_value(each, each.type)
                continue
            start = len(self.ops)
            self.append(Op.ARRAY)
            self._add_value(each, each.type[2:])
            self.append(Op.END, start + 1)
            self.ops[start] |= len(self.ops) & _MOST

    def append(self, op: Op, operand: int = 0) -> None:
        self.ops.append(op << _OPERAND_BITS | operand & _MOST)

    def _add_value(self, each: SchemaField, kind: str) -> None:
        if kind == "struct":
            if each.type == kind and self._in(each.nullable):
                raise ValueError(f"a walk cannot pass over {each.name}, which may be null")
            self.add(each.fields)
            if self.flexible:
                self.append(Op.TAGS)
        elif kind == "records":
            self.append(Op.RECORDS)
        elif kind in _LENGTH_WIDTHS:
            self.append(Op.STRING, _LENGTH_WIDTHS[kind] | (HIDDEN if self._hides(each) else 0))
        elif each.name == "Acks":
            self.append(Op.ACKS, WIDTHS[kind])
        else:
            self._append_fixed(WIDTHS[kind])

    def _append_fixed(self, size: int) -> None:
        last = self.ops[-1] if self.ops else 0
        if last >> _OPERAND_BITS in (Op.FIXED, Op.ACKS) and (last & _MOST) + size <= _MOST:
            self.ops[-1] += size
        else:
            self.append(Op.FIXED, size)

    def _hides(self, each: SchemaField) -> bool:
        kind = each.type.removeprefix("[]")
        return kind in ("records", "bytes") or (kind == "string" and each.name in self.hidden)

    def _stands(self, each: SchemaField) -> bool:
        return self._in(each.versions) and not self._in(each.tagged)

    def _in(self, versions: tuple[int, int] | None) -> bool:
        return versions is not None and versions[0] <= self.version <= versions[1]
