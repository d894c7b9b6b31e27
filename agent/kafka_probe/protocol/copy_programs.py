"""Builds copy programs: ops by which the kernel copies the allowed parts of a body, from Kafka's own definition.

Op is enum op of bpf/maps.h, which defines each op. Record sets, opaque bytes, HIDDEN and EMPTIED strings of
kernel_allow_list.py, and tagged fields that the version does not have are not copied. Neighboring fields of fixed size
are one op. In flexible versions, and in bodies with record sets, a program covers all fields, and bytes behind the last
field are not copied. In other bodies it ends with the last field that is not copied whole; the kernel then copies the
rest of the body.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.schemas import WIDTHS, Api, SchemaField, fields_of

MAX_DEPTH = 8  # of nested arrays and sections of tagged fields
OPERAND_BITS = 12
HIDDEN = 16  # flag in a string's operand: only its length is copied
EMPTIED = 32  # nor is its length
TAG_BITS = 8  # in a tagged field's operand, below the tag number: how many ops to skip
_FIXED_BYTES = 31  # maximum of one op
_LENGTH_WIDTHS = {"string": 2, "bytes": 4}


class Op(IntEnum):
    """The kind of an op, in the bits above OPERAND_BITS. The operand is a size, or how many ops to skip."""

    STOP = 0
    REST = 1
    FIXED = 2
    ACKS = 3
    STRING = 4
    RECORDS = 5
    TAGS = 6
    ARRAY = 7
    NULLABLE = 8
    END = 9
    ITEMS = 10
    ERROR = 11
    TAG = 12
    TAGS_END = 13


def copy_program_of(
    api: Api, *, response: bool, version: int, hidden: frozenset[str], emptied: frozenset[str] = frozenset()
) -> tuple[int, ...]:
    """Return the ops for one version's body, which starts behind the client id or the correlation id.

    hidden: names of strings of which only the length is copied, as of all opaque bytes; emptied: of strings whose
    length is not copied either. The result is empty if the whole body may be copied.
    """
    program = _Builder(version, api.flexible(version), hidden, emptied)
    fields = fields_of(api, response=response, version=version)
    last = max((index for index, each in enumerate(fields, 1) if program.holds_back(each)), default=0)
    if api.flexible_response_header(version) if response else program.flexible:
        program.add_tags(())
    if response and api.key == ApiKey.API_VERSIONS:
        program.append(Op.ERROR, WIDTHS[fields[0].type])
        fields = fields[1:]
    if program.flexible or any(map(_has_records, fields)):
        program.add_struct(fields)
        program.append(Op.STOP)
    elif last or program.ops:
        program.add(fields[:last])
        program.append(Op.REST)
    return tuple(program.ops)


def _has_records(each: SchemaField) -> bool:
    return each.type == "records" or any(map(_has_records, each.fields))


@dataclass(slots=True)
class _Builder:
    version: int
    flexible: bool
    hidden: frozenset[str]
    emptied: frozenset[str]
    ops: list[int] = field(default_factory=list)
    depth: int = 0
    in_tag: bool = False

    def holds_back(self, each: SchemaField) -> bool:
        """Return True if the field is not copied whole."""
        kept = each.type.removeprefix("[]") == "records" or self._kept_back(each)
        return self._stands(each) and (bool(kept) or any(map(self.holds_back, each.fields)))

    def add(self, fields: tuple[SchemaField, ...]) -> None:
        for each in filter(self._stands, fields):
            self._add_field(each)

    def add_struct(self, fields: tuple[SchemaField, ...]) -> None:
        self.add(fields)
        if self.flexible:
            self.add_tags(fields)

    def add_tags(self, fields: tuple[SchemaField, ...]) -> None:
        """Append ops for a struct's tagged fields: those of the version, and any others."""
        with self._deeper("TaggedFields"), self._passed_over(Op.TAGS):
            start = len(self.ops)
            for each in (each for each in fields if self._in(each.versions) and self._in(each.tagged)):
                self._add_tag(each)
            self.append(Op.TAGS_END, len(self.ops) - start)

    def _add_tag(self, each: SchemaField) -> None:
        if self.in_tag:
            raise ValueError(f"{each.name} is a tagged field inside of another")
        self.in_tag = True
        with self._passed_over(Op.TAG, (each.tag or 0) << TAG_BITS):
            self._add_field(each)
        self.in_tag = False

    def append(self, op: Op, operand: int = 0) -> None:
        self.ops.append(op << OPERAND_BITS | operand)

    def _add_field(self, each: SchemaField) -> None:
        if each.type.startswith("[]"):
            self._add_array(each)
        elif each.type == "struct" and self._in(each.nullable):
            with self._passed_over(Op.NULLABLE):
                self._add_value(each, each.type)
        else:
            self._add_value(each, each.type)

    def _add_array(self, each: SchemaField) -> None:
        kind = each.type[2:]
        if kind in WIDTHS:
            self.append(Op.ITEMS, WIDTHS[kind])
            return
        with self._deeper(each.name), self._passed_over(Op.ARRAY):
            start = len(self.ops)
            self._add_value(each, kind)
            self.append(Op.END, len(self.ops) - start)

    @contextmanager
    def _deeper(self, name: str) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"{name} is inside of more arrays than the kernel counts")
        yield
        self.depth -= 1

    @contextmanager
    def _passed_over(self, op: Op, operand: int = 0) -> Iterator[None]:
        """Append an op and the ops inside it. Their number is added to its operand, for skipping them."""
        start = len(self.ops)
        self.append(op, operand)
        yield
        self.ops[start] += len(self.ops) - start

    def _add_value(self, each: SchemaField, kind: str) -> None:
        if kind == "struct":
            self.add_struct(each.fields)
        elif kind == "records":
            self.append(Op.RECORDS)
        elif kind in _LENGTH_WIDTHS:
            self.append(Op.STRING, _LENGTH_WIDTHS[kind] | self._kept_back(each))
        elif each.name == "Acks":
            self.append(Op.ACKS, WIDTHS[kind])
        else:
            self._append_fixed(WIDTHS[kind])

    def _append_fixed(self, size: int) -> None:
        op, so_far = divmod(self.ops[-1] if self.ops else 0, 1 << OPERAND_BITS)
        if op in (Op.FIXED, Op.ACKS) and so_far + size <= _FIXED_BYTES:
            self.ops[-1] += size
        else:
            self.append(Op.FIXED, size)

    def _kept_back(self, each: SchemaField) -> int:
        """Return the flag of a string or of bytes that are not copied, else 0."""
        kind = each.type.removeprefix("[]")
        if kind == "string" and each.name in self.emptied:
            return EMPTIED
        return HIDDEN if kind == "bytes" or (kind == "string" and each.name in self.hidden) else 0

    def _stands(self, each: SchemaField) -> bool:
        return self._in(each.versions) and not self._in(each.tagged)

    def _in(self, versions: tuple[int, int] | None) -> bool:
        return versions is not None and versions[0] <= self.version <= versions[1]
