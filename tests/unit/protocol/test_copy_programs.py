"""Copy programs follow Kafka's definitions, in terms of the kernel's enum op."""

from __future__ import annotations

import re

import pytest

from kafka_probe.capture.compiler import sources
from kafka_probe.protocol.copy_programs import EMPTIED, HIDDEN, MAX_DEPTH, OPERAND_BITS, TAG_BITS, Op, copy_program_of
from kafka_probe.protocol.kernel_allow_list import copy_rules
from kafka_probe.protocol.schemas import Api, Era, SchemaField
from tests.builders.api_names import api_name

MAPS = (sources() / "maps.h").read_text()


def words(program: tuple[int, ...]) -> str:
    ops = (divmod(op, 1 << OPERAND_BITS) for op in program)
    return " ".join(f"{Op(op).name}{operand or ''}" for op, operand in ops)


def spelled(name: str, version: int, *, response: bool) -> str:
    """Return a copy program in words."""
    (rule,) = (r for r in copy_rules() if (api_name(r.api_key), r.api_version) == (name, version))
    return words(rule.response_program if response else rule.request_program)


def field(name: str, kind: str, *inside: SchemaField, nullable: bool = False) -> SchemaField:
    return SchemaField(name, kind, (0, 0), (0, 0) if nullable else None, None, None, inside)


def program(*fields: SchemaField, flexible: bool = False) -> tuple[int, ...]:
    """Return the copy program of a body with these fields, in which each `Value` is hidden."""
    api = Api(0, "Some", (Era(0, 0, 0 if flexible else None, fields),), ())
    return copy_program_of(api, response=False, version=0, hidden=frozenset({"Value"}))


def test_ops_agree_with_the_kernels() -> None:
    body = re.search(r"enum op \{(.*?)\};", MAPS, re.DOTALL)
    assert body
    assert re.findall(r"^\s*OP_(\w+),", body[1], re.MULTILINE) == [op.name for op in Op]
    defined = dict(re.findall(r"#define (MAX_DEPTH|OPERAND_BITS|OP_HIDDEN|OP_EMPTIED|TAG_BITS)\s+(\d+)", MAPS))
    sizes = {"MAX_DEPTH": MAX_DEPTH, "OPERAND_BITS": OPERAND_BITS, "TAG_BITS": TAG_BITS}
    sizes |= {"OP_HIDDEN": HIDDEN, "OP_EMPTIED": EMPTIED}
    assert defined == {name: str(size) for name, size in sizes.items()}


def test_arrays_nest_and_fixed_fields_are_one_op() -> None:
    assert spelled("Fetch", 11, response=True) == (
        "FIXED10 ARRAY11 STRING2 ARRAY8 FIXED30 ARRAY3 FIXED16 END1 FIXED4 RECORDS END6 END9 STOP"
    )


def test_flexible_versions_have_tags_behind_every_struct() -> None:
    assert spelled("Produce", 13, response=False) == (
        "TAGS2 TAGS_END STRING2 ACKS6 ARRAY11 FIXED16 ARRAY6 FIXED4 RECORDS TAGS2 TAGS_END END4 TAGS2 TAGS_END END9 "
        "TAGS2 TAGS_END STOP"
    )


def test_the_tagged_fields_of_a_version_are_walked() -> None:
    cluster_id, replica_state = "TAG2 STRING2", f"TAG{(1 << TAG_BITS) + 4} FIXED12 TAGS2 TAGS_END"
    assert spelled("Fetch", 15, response=False).endswith(f"TAGS8 {cluster_id} {replica_state} TAGS_END6 STOP")


def test_tagged_fields_inside_of_one_another_are_refused() -> None:
    inner = SchemaField("Inner", "int8", (0, 0), None, 0, (0, 0), ())
    with pytest.raises(ValueError, match="Inner"):
        program(SchemaField("Outer", "struct", (0, 0), None, 0, (0, 0), (inner,)), flexible=True)


def test_elements_of_fixed_size_are_one_op() -> None:
    assert words(program(field("Ids", "[]int32"), field("Value", "string"))) == f"ITEMS4 STRING{2 + HIDDEN} REST"


def test_the_error_of_an_api_versions_response_comes_before_its_version_is_known() -> None:
    assert spelled("ApiVersions", 0, response=True) == "ERROR2 REST"
    assert spelled("ApiVersions", 3, response=True).startswith("ERROR2 ARRAY5 FIXED6")


def test_hidden_strings_and_opaque_bytes_are_marked() -> None:
    assert f"STRING2 STRING{2 + EMPTIED}" in spelled("CreateTopics", 7, response=False)
    assert f"STRING{2 + HIDDEN}" in spelled("OffsetCommit", 7, response=False)
    assert f"STRING2 STRING{4 + HIDDEN}" in spelled("JoinGroup", 0, response=False)


def test_behind_the_last_field_that_is_hidden_the_rest_is_copied() -> None:
    assert spelled("CreateTopics", 4, response=False).endswith("END10 REST")


def test_a_null_struct_is_passed_over_with_all_that_it_would_hold() -> None:
    held = field("Held", "struct", field("Name", "string"), field("Value", "string"), nullable=True)
    assert (
        words(program(held, field("Name", "string"), flexible=True))
        == f"TAGS2 TAGS_END NULLABLE5 STRING2 STRING{2 + HIDDEN} TAGS2 TAGS_END STRING2 TAGS2 TAGS_END STOP"
    )


def test_more_arrays_around_a_field_than_the_kernel_counts_are_refused() -> None:
    held = field("Value", "string")
    for _ in range(MAX_DEPTH):
        held = field("Around", "[]struct", held)
    assert program(held)
    with pytest.raises(ValueError, match="Around"):
        program(field("Around", "[]struct", held))
