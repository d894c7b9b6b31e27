"""Tagged fields that a version does not have (KIP-482) stay in the kernel, and the frame is still complete."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kafka_probe.capture.sample import Flag, SampleKind
from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import SetStatus, Status
from kafka_probe.protocol.kernel_allow_list import LIMITS
from kafka_probe.protocol.schemas import Api, SchemaField, apis
from tests.builders.trees import CLIENT_ID, FOREIGN, Full, Message, Records, generated, present
from tests.builders.wire import API_VERSIONS, PRODUCE, request, response
from tests.lab.classifier import Classifier, Direction, classifier

WHOLE = 1 << 20
HEADER = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
NUMBERS = (70, 5, 128, 1 << 14, 1 << 21, (1 << 31) - 1)
FLEXIBLE = [api for api in apis().values() if api.flexible(api.versions[-1])]
PRODUCE_9 = bytes.fromhex("0000002900000009000000030003636c69014603616263000001000003e80205676f6f64020000000000000000")


@pytest.fixture(scope="module")
def cursor() -> Iterator[Classifier]:
    with classifier(any_port=False) as found:
        yield found


@pytest.mark.parametrize("api", FLEXIBLE, ids=lambda api: api.name)
@pytest.mark.parametrize("is_response", [False, True], ids=["request", "response"])
@pytest.mark.parametrize("piece", [3, WHOLE])
def test_foreign_tags_stay_in_the_kernel(cursor: Classifier, api: Api, is_response: bool, piece: int) -> None:
    before = cursor.losses()
    for version in filter(api.flexible, api.versions):
        for seed, chooser in enumerate((Random, Random, Full)):
            message = with_foreign_tags(generated(api, is_response, version, seed, chooser))
            raw, data, flags = left_of(cursor, message, piece)
            assert FOREIGN not in raw
            leaves = LIMITS.get(api.name, (0, 0))[is_response]
            assert data == (message.data if leaves else b"" if is_response else HEADER)
            facts = decode(is_response, api.key, version, data, copied_all=not flags & Flag.CUT).facts
            assert facts.status is (Status.COMPLETE if leaves else Status.HEADER_ONLY)
    assert cursor.losses() == before


@pytest.mark.parametrize("api", FLEXIBLE, ids=lambda api: api.name)
@pytest.mark.parametrize("is_response", [False, True], ids=["request", "response"])
def test_a_full_message_has_every_struct_of_its_version(api: Api, is_response: bool) -> None:
    for version in filter(api.flexible, api.versions):
        message = generated(api, is_response, version, 0, Full)
        assert_full(message.fields, version, message.tree)


def assert_full(fields: tuple[SchemaField, ...], version: int, tree: dict[str, Any]) -> None:
    for each in present(fields, version):
        if each.fields:
            value = tree[each.name]
            assert value
            for struct in value if isinstance(value, list) else [value]:
                assert_full(each.fields, version, struct)


def with_foreign_tags(message: Message) -> Message:
    return replace(message, tree=uncounted(message.tree), foreign=NUMBERS)


def uncounted(value: Any) -> Any:
    """Return the value with all record sets counted as an incomplete batch: their summary has zeros."""
    if isinstance(value, Records):
        return Records(value.data, 0, 0, 0, 0, SetStatus.PARTIAL, 0, -1, -1, -1, -1)
    if isinstance(value, dict):
        return {name: uncounted(each) for name, each in value.items()}
    return list(map(uncounted, value)) if isinstance(value, list) else value


def left_of(cursor: Classifier, message: Message, piece: int) -> tuple[bytes, bytes, int]:
    """Return all samples of a connection with this message, and the message's own data and last flags."""
    cursor.connect(server_side=True)
    cursor.move(Direction.RECEIVE, request(API_VERSIONS, 3, 1).wire, WHOLE)
    cursor.move(Direction.SEND, response(API_VERSIONS, 3, 1).wire, WHOLE)
    if message.response:
        asked = generated(message.api, False, message.version, 1)
        acks = {"Acks": 1} if "Acks" in asked.tree else {}  # else there is no answer
        cursor.move(Direction.RECEIVE, replace(asked, tree=asked.tree | acks).frame(2), WHOLE)
        cursor.move(Direction.SEND, message.frame(2), piece)
    else:
        cursor.move(Direction.RECEIVE, message.frame(2), piece)
    samples = cursor.samples()
    is_answer = (samples["flags"] & Flag.RESPONSE > 0) == message.response
    own = samples[(samples["kind"] == SampleKind.FRAME) & (samples["correlation_id"] == 2) & is_answer]
    data = b"".join(each["data"][: each["size"]].tobytes() for each in own)
    return samples.tobytes(), data, int(own["flags"][-1])


def test_a_tags_number_is_no_length(cursor: Classifier) -> None:
    before = cursor.losses()
    cursor.connect(server_side=True)
    cursor.move(Direction.RECEIVE, request(API_VERSIONS, 3, 1).wire, WHOLE)
    cursor.move(Direction.SEND, response(API_VERSIONS, 3, 1).wire, WHOLE)
    cursor.move(Direction.RECEIVE, PRODUCE_9, WHOLE)
    produced = cursor.samples()[-1]
    data = produced["data"][: produced["size"]].tobytes()
    facts = decode(False, PRODUCE, 9, data, copied_all=not produced["flags"] & Flag.CUT).facts
    assert (facts.status, facts.acks, [topic.name for topic in facts.topics]) == (Status.COMPLETE, 1, ["good"])
    assert b"abc" not in data
    assert cursor.losses() == before


def test_a_connection_that_begins_with_a_foreign_tag_is_kafkas(cursor: Classifier) -> None:
    before = cursor.losses()
    cursor.connect(server_side=True)
    cursor.move(Direction.RECEIVE, PRODUCE_9, WHOLE)
    cursor.move(Direction.SEND, response(PRODUCE, 9, 3).wire, WHOLE)
    samples = cursor.samples()
    frames = samples[samples["kind"] == SampleKind.FRAME]
    assert [(frame["api_key"], frame["correlation_id"], frame["flags"] & Flag.RESPONSE > 0) for frame in frames] == [
        (PRODUCE, 3, False),
        (PRODUCE, 3, True),
    ]
    assert b"good" in frames[0]["data"].tobytes()
    assert b"abc" not in samples.tobytes()
    assert cursor.losses() == before


@pytest.mark.parametrize(
    ("size", "leaves", "malformed"), [(3, b"\1\0\3\3ab", 0), (5, b"\1\0\5\3ab", 0), (2, b"\1\0\2\3ab", 1)]
)
def test_a_tagged_field_ends_where_its_size_says(cursor: Classifier, size: int, leaves: bytes, malformed: int) -> None:
    before = cursor.losses().get("malformed", 0)
    head = struct.pack(">hhi", 1, 12, 2) + HEADER + b"\0"
    body = bytes(4 * 4 + 1 + 2 * 4) + b"\1\1\1" + b"\1\0" + bytes([size]) + b"\3ab" + FOREIGN[: max(size - 3, 0)]
    cursor.connect(server_side=True)
    cursor.move(Direction.RECEIVE, request(API_VERSIONS, 3, 1).wire, WHOLE)
    cursor.move(Direction.SEND, response(API_VERSIONS, 3, 1).wire, WHOLE)
    cursor.move(Direction.RECEIVE, struct.pack(">i", len(head + body)) + head + body, WHOLE)
    sample = cursor.samples()[-1]
    assert sample["data"][: sample["size"]].tobytes().endswith(leaves)
    assert cursor.losses().get("malformed", 0) == before + malformed
