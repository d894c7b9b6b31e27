"""Walks say what Kafka's definitions say, in the words of the kernel's enum op."""

from __future__ import annotations

import re

import pytest

from kafka_probe.capture.compiler import sources
from kafka_probe.protocol.rules import copy_rules
from kafka_probe.protocol.schemas import Api, Era, SchemaField, api_name
from kafka_probe.protocol.walks import HIDDEN, OPERAND_BITS, WALK_DEPTH, Op, walk_of

MAPS = (sources() / "maps.h").read_text()


def words(walk: tuple[int, ...]) -> str:
    ops = (divmod(op, 1 << OPERAND_BITS) for op in walk)
    return " ".join(f"{Op(op).name}{operand or ''}" for op, operand in ops)


def spelled(name: str, version: int, *, response: bool) -> str:
    """A walk in words."""
    (rule,) = (r for r in copy_rules() if (api_name(r.api_key), r.api_version) == (name, version))
    return words(rule.response_walk if response else rule.request_walk)


def field(name: str, kind: str, *inside: SchemaField, nullable: bool = False) -> SchemaField:
    return SchemaField(name, kind, (0, 0), (0, 0) if nullable else None, None, None, inside)


def walk(*fields: SchemaField, flexible: bool = False) -> tuple[int, ...]:
    """That of a body of which each `Value` is hidden."""
    api = Api(0, "Some", (Era(0, 0, 0 if flexible else None, fields),), ())
    return walk_of(api, response=False, version=0, hidden=frozenset({"Value"}))


def test_ops_agree_with_the_kernels() -> None:
    body = re.search(r"enum op \{(.*?)\};", MAPS, re.DOTALL)
    assert body
    assert re.findall(r"^\s*OP_(\w+),", body[1], re.MULTILINE) == [op.name for op in Op]
    defined = dict(re.findall(r"#define (WALK_DEPTH|OPERAND_BITS|OP_HIDDEN)\s+(\d+)", MAPS))
    assert defined == {"WALK_DEPTH": str(WALK_DEPTH), "OPERAND_BITS": str(OPERAND_BITS), "OP_HIDDEN": str(HIDDEN)}


def test_arrays_nest_and_fixed_fields_are_one_op() -> None:
    assert spelled("Fetch", 11, response=True) == (
        "FIXED10 ARRAY11 STRING2 ARRAY8 FIXED30 ARRAY3 FIXED16 END1 FIXED4 RECORDS END6 END9 STOP"
    )


def test_flexible_versions_have_tags_behind_every_struct() -> None:
    assert spelled("Produce", 13, response=False) == (
        "TAGS STRING2 ACKS6 ARRAY9 FIXED16 ARRAY5 FIXED4 RECORDS TAGS END3 TAGS END7 TAGS STOP"
    )


def test_hidden_strings_and_opaque_bytes_are_marked() -> None:
    assert f"STRING2 STRING{2 + HIDDEN}" in spelled("CreateTopics", 7, response=False)
    assert f"STRING2 STRING{4 + HIDDEN}" in spelled("JoinGroup", 0, response=False)


def test_behind_the_last_field_that_is_hidden_the_rest_is_copied() -> None:
    assert spelled("CreateTopics", 7, response=False).endswith("TAGS END15 REST")


def test_a_null_struct_is_passed_over_with_all_that_it_would_hold() -> None:
    held = field("Held", "struct", field("Name", "string"), field("Value", "string"), nullable=True)
    assert (
        words(walk(held, field("Name", "string"), flexible=True))
        == f"TAGS NULLABLE4 STRING2 STRING{2 + HIDDEN} TAGS REST"
    )


def test_more_arrays_around_a_field_than_the_kernel_counts_are_refused() -> None:
    held = field("Value", "string")
    for _ in range(WALK_DEPTH):
        held = field("Around", "[]struct", held)
    assert walk(held)
    with pytest.raises(ValueError, match="Around"):
        walk(field("Around", "[]struct", held))
