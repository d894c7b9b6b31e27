"""Walks say what Kafka's definitions say, in the words of the kernel's enum op."""

from __future__ import annotations

import re

from kafka_probe.capture.compiler import sources
from kafka_probe.protocol.rules import copy_rules
from kafka_probe.protocol.schemas import api_name
from kafka_probe.protocol.walks import HIDDEN, WALK_OPS, Op

MAPS = (sources() / "maps.h").read_text()


def spelled(name: str, version: int, *, response: bool) -> str:
    """A walk in words, without the padding at its end."""
    (rule,) = (r for r in copy_rules() if (api_name(r.api_key), r.api_version) == (name, version))
    walk = (rule.response_walk if response else rule.request_walk).rstrip(b"\0")
    return " ".join(f"{Op(op >> 5).name}{op & 31 or ''}" for op in walk)


def test_ops_agree_with_the_kernels() -> None:
    body = re.search(r"enum op \{(.*?)\};", MAPS, re.DOTALL)
    assert body
    assert re.findall(r"^\s*OP_(\w+),", body[1], re.MULTILINE) == [op.name for op in Op]
    defined = dict(re.findall(r"#define (WALK_OPS|OP_HIDDEN)\s+(\d+)", MAPS))
    assert defined == {"WALK_OPS": str(WALK_OPS), "OP_HIDDEN": str(HIDDEN)}


def test_every_walk_has_the_kernels_size() -> None:
    walks = [walk for rule in copy_rules() for walk in (rule.request_walk, rule.response_walk)]
    assert {len(walk) for walk in walks} == {0, WALK_OPS}


def test_arrays_nest_and_fixed_fields_are_one_op() -> None:
    assert spelled("Fetch", 11, response=True) == (
        "FIXED10 ARRAY12 STRING2 ARRAY11 FIXED30 ARRAY8 FIXED16 END6 FIXED4 RECORDS END4 END2 REST1"
    )


def test_flexible_versions_have_tags_behind_every_struct() -> None:
    assert spelled("Produce", 13, response=False) == (
        "TAGS STRING2 ACKS6 ARRAY12 FIXED16 ARRAY10 FIXED4 RECORDS TAGS END6 TAGS END4 TAGS REST1"
    )


def test_hidden_strings_and_opaque_bytes_are_marked() -> None:
    assert f"STRING2 STRING{2 + HIDDEN}" in spelled("CreateTopics", 7, response=False)
    assert f"STRING2 STRING{4 + HIDDEN}" in spelled("JoinGroup", 0, response=False)


def test_a_walk_may_end_before_a_field() -> None:
    assert spelled("StreamsGroupHeartbeat", 0, response=False).endswith("FIXED4 REST1")
