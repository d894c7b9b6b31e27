"""Walks: how the kernel steps over the record sets of a body, one byte per op, from Kafka's own definition.

Op is enum op of bpf/maps.h, which says what each does. Neighbours of fixed size are one op. A walk ends behind the field
that holds the record sets: what follows it is copied as it is.
"""

from __future__ import annotations

from enum import IntEnum

from kafka_probe.protocol.schemas import WIDTHS, Api, SchemaField, fields_of

WALK_OPS = 32
_OPERAND_BITS = 5
_MOST = (1 << _OPERAND_BITS) - 1


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


def walk_of(api: Api, *, response: bool, version: int) -> bytes:
    """The walk through the body of one version, (WALK_OPS,), from behind the client id or the correlation id."""
    flexible = api.flexible(version)
    tagged_header = api.flexible_response_header(version) if response else flexible
    walk = bytearray([Op.TAGS << _OPERAND_BITS] if tagged_header else [])
    fields = fields_of(api, response=response, version=version)
    last = max(place for place, field in enumerate(fields) if holds_records((field,)))
    _add(walk, fields[: last + 1], version, flexible)
    if len(walk) >= WALK_OPS:
        raise ValueError(f"{api.name} {version} has a longer walk than the kernel knows")
    return bytes(walk).ljust(WALK_OPS, bytes([Op.REST << _OPERAND_BITS]))


def holds_records(fields: tuple[SchemaField, ...]) -> bool:
    return any(field.type == "records" or holds_records(field.fields) for field in fields)


def _add(walk: bytearray, fields: tuple[SchemaField, ...], version: int, flexible: bool) -> None:
    for field in fields:
        if not _stands(field.versions, version) or _stands(field.tagged, version):
            continue
        if not field.type.startswith("[]"):
            _add_element(walk, field, field.type, version, flexible)
            continue
        start = len(walk)
        _append(walk, Op.ARRAY)
        _add_element(walk, field, field.type[2:], version, flexible)
        _append(walk, Op.END, start + 1)
        walk[start] |= len(walk)


def _add_element(walk: bytearray, field: SchemaField, kind: str, version: int, flexible: bool) -> None:
    if kind == "struct":
        _add(walk, field.fields, version, flexible)
        if flexible:
            _append(walk, Op.TAGS)
    elif kind in WIDTHS:
        _append_fixed(walk, Op.ACKS if field.name == "Acks" else Op.FIXED, WIDTHS[kind])
    else:
        _append(walk, {"string": Op.STRING, "records": Op.RECORDS}[kind])


def _append_fixed(walk: bytearray, op: Op, size: int) -> None:
    last, operand = (walk[-1] >> _OPERAND_BITS, walk[-1] & _MOST) if walk else (Op.REST, 0)
    if op is Op.FIXED and last in (Op.FIXED, Op.ACKS) and operand + size <= _MOST:
        walk[-1] += size
    else:
        _append(walk, op, size)


def _append(walk: bytearray, op: Op, operand: int = 0) -> None:
    walk.append(op << _OPERAND_BITS | operand)


def _stands(versions: tuple[int, int] | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]
