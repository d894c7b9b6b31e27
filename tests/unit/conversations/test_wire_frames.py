"""Frames are rebuilt to their size on the wire, byte by byte where nothing was withheld."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.conversations.copied_frames import CUT, CopiedFrame
from kafka_probe.conversations.wire_frames import WireFrame, Zeros, wire_frame
from kafka_probe.protocol import archive_compatibility
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.archive_compatibility import ArchiveRules
from kafka_probe.protocol.facts import Fact, Status
from kafka_probe.protocol.kernel_allow_list import EMPTIED, HEADER_ONLY, LIMITS, CopyRule, KeptBack, copy_rules
from kafka_probe.protocol.schemas import Api, apis
from kafka_probe.protocol.wire import STUB_BYTES
from tests.builders.copied import copied
from tests.builders.trees import CLIENT_ID, Records, generated, message_of

COPIED = [api for api in apis().values() if api.name in LIMITS]
SEEDS = range(1, 5)
BATCH_BYTES = 61  # of the header of a record batch


def flat(wire: WireFrame) -> bytes:
    return b"".join(bytes(part.size) if isinstance(part, Zeros) else part for part in wire.parts)


@pytest.mark.parametrize("api", COPIED, ids=lambda api: api.name)
def test_every_version_has_its_size_and_the_bytes_that_were_not_withheld(api: Api) -> None:
    for version, response, seed in product(api.versions, (False, True), SEEDS):
        message = generated(api, response, version, seed)
        wire, rebuilt = message.frame(), wire_frame(copied(message))
        assert rebuilt.known_bytes == len(wire), message
        if message.data == wire[4 + 4 * (not response) + 4 :]:
            assert flat(rebuilt) == wire, message
            assert not rebuilt.comments
        elif api.name not in EMPTIED and not message.holds_records:
            kept = flat(rebuilt)
            assert {one for one, other in zip(kept, wire, strict=True) if one != other} <= {0}, message
            assert sum(one != other for one, other in zip(kept, wire, strict=True)) <= rebuilt.zeros, message
            assert rebuilt.zeros == len(wire) - (8 if response else 12) - len(message.data), message


def test_a_record_set_becomes_the_header_of_an_empty_batch_and_zeros() -> None:
    sets = [Records(b"secret" * size) for size in (1, 5, 100)]
    partitions = [{"Index": number, "Records": records} for number, records in enumerate(sets)]
    tree = {"ClientId": CLIENT_ID, "Acks": 1, "TopicData": [{"Name": "orders", "PartitionData": partitions}]}
    message = message_of("Produce", False, 8, tree)
    rebuilt = wire_frame(copied(message))
    wire = message.frame()
    assert len(flat(rebuilt)) == len(wire)
    assert b"secret" not in flat(rebuilt)
    assert [part.size for part in rebuilt.parts if isinstance(part, Zeros)] == [600 - BATCH_BYTES]
    assert len(rebuilt.comments) == len(sets)
    at = wire.index(b"secret" * 100)
    assert flat(rebuilt)[at + 8 : at + 12] == (600 - 12).to_bytes(4, "big")
    assert flat(rebuilt)[at + 16] == 2


@pytest.mark.parametrize(
    ("given", "written"), [((7, 46), (7, 39)), ((-1, -1), (0, 0)), ((9, 8), (0, 0)), ((0, 1 << 40), (0, 0))]
)
def test_the_header_of_a_batch_has_the_offsets_of_its_record_set(
    given: tuple[int, int], written: tuple[int, int]
) -> None:
    records = Records(bytes(600), first_offset=given[0], last_offset=given[1])
    tree = {"Acks": 1, "TopicData": [{"Name": "orders", "PartitionData": [{"Index": 0, "Records": records}]}]}
    message = message_of("Produce", False, 8, tree)
    rebuilt = wire_frame(copied(message))
    at = len(message.frame()) - 600
    header = flat(rebuilt)[at:]
    assert (int.from_bytes(header[:8], "big"), int.from_bytes(header[23:27], "big")) == written
    assert ("offsets" in rebuilt.comments[0]) == (given[0] <= given[1] and given[0] >= 0)


def test_hidden_fields_have_their_lengths() -> None:
    reasons = None, "", "r", "r" * 200
    members = [{"MemberId": "m-1", "GroupInstanceId": None, "Reason": reason} for reason in reasons]
    message = message_of("LeaveGroup", False, 5, {"GroupId": "billing", "Members": members})
    rebuilt = wire_frame(copied(message))
    assert flat(rebuilt) == message.frame().replace(b"r" * 200, bytes(200)).replace(b"\2r", b"\2\0")
    assert rebuilt.comments == ["201 bytes of fields withheld"]


def test_a_frame_is_rebuilt_by_the_rules_that_copied_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"with-reasons": ArchiveRules(frozenset({(ApiKey.LEAVE_GROUP, False)}), KeptBack({}, {}))}
    monkeypatch.setattr(archive_compatibility, "_rules_by_hash", lambda: rules)
    members = [{"MemberId": "m-1", "GroupInstanceId": None, "Reason": "closed"}, {"MemberId": "m-2", "Reason": ""}]
    message = message_of("LeaveGroup", False, 5, {"GroupId": "billing", "Members": members})
    whole = copied(message, message.header + message.body)
    frame = CopiedFrame(whole.first._replace(copy_rules="with-reasons"), whole.data, whole=True, copied_all=True)
    assert flat(wire_frame(frame)) == message.frame()
    assert frame.facts.status is Status.COMPLETE
    assert frame.facts.texts(Fact.MEMBER_ID) == ("m-1", "m-2")


def test_a_frame_that_was_cut_has_its_size_if_it_is_a_request() -> None:
    topics = [{"Name": f"topic-{number}"} for number in range(100)]
    asked = message_of("Metadata", False, 8, {"ClientId": CLIENT_ID, "Topics": topics})
    cut = wire_frame(copied(asked, asked.data[:500], CUT))
    assert cut.known_bytes == len(asked.frame())
    assert flat(cut)[: 12 + 500] == asked.frame()[: 12 + 500]
    answered = message_of("Metadata", True, 8, {"Topics": topics})
    known = wire_frame(copied(answered, answered.data[:500], CUT))
    assert flat(known) == answered.frame()[: 8 + 500]
    assert known.comments == [f"{len(answered.frame()) - 508} bytes of the frame withheld"]


@pytest.mark.parametrize("api", [api for api in apis().values() if api.name in HEADER_ONLY], ids=lambda api: api.name)
def test_a_request_of_which_only_the_header_was_copied_has_its_size(api: Api) -> None:
    for version in api.versions:
        message = generated(api, False, version, 1)
        header = message.data[: len(message.data) - len(message.body)]
        rebuilt = wire_frame(copied(message, header.rstrip(b"\0") if api.flexible(version) else header))
        assert rebuilt.known_bytes == len(message.frame())


def test_bytes_that_the_rules_do_not_describe_leave_the_header_and_the_size() -> None:
    message = message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "billing", "MemberId": "m-1"})
    rebuilt = wire_frame(copied(message, message.data + bytes(100)))
    assert rebuilt.known_bytes == len(message.frame())
    assert flat(rebuilt)[:12] == message.frame()[:12]


def test_a_response_to_an_unknown_request_ends_behind_its_header() -> None:
    message = message_of("Heartbeat", True, 0, {})
    frame = copied(message, b"")
    unknown = CopiedFrame(frame.first._replace(api_key=255), b"", whole=True, copied_all=False)
    assert flat(wire_frame(unknown)) == message.frame()[:8]


def test_api_keys_are_those_of_the_frames() -> None:
    message = message_of("ApiVersions", False, 0, {"ClientId": CLIENT_ID})
    assert int.from_bytes(flat(wire_frame(copied(message)))[4:6], "big") == ApiKey.API_VERSIONS


def test_fields_that_are_longer_than_one_length_can_say_share_the_bytes() -> None:
    configs = [{"Name": f"config-{n}", "Value": "v" * 20_000} for n in range(4)]
    message = message_of("CreateTopics", False, 4, {"ClientId": CLIENT_ID, "Topics": [{"Configs": configs}]})
    rebuilt = wire_frame(copied(message))
    assert rebuilt.known_bytes == len(message.frame())
    assert [part.size for part in rebuilt.parts if isinstance(part, Zeros)] == [32_767, 32_767, 80_000 - 2 * 32_767]


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f"])
def test_a_length_that_no_frame_has_ends_the_body(length: bytes) -> None:
    partitions = [{"Index": 0, "Records": Records(bytes(40))}]
    tree = {"ClientId": CLIENT_ID, "Acks": 1, "TopicData": [{"Name": "orders", "PartitionData": partitions}]}
    message = message_of("Produce", False, 9, tree)
    at = message.data.rindex(b"\x29")  # the varint of 40 bytes
    rebuilt = wire_frame(copied(message, message.data[:at] + length + bytes(STUB_BYTES)))
    assert rebuilt.known_bytes == len(message.frame())


@pytest.mark.parametrize("api", [api for api in apis().values() if api.name in HEADER_ONLY], ids=lambda api: api.name)
def test_a_version_that_this_release_does_not_know_has_its_size(api: Api) -> None:
    frame = copied(generated(api, False, api.versions[-1], 1))
    newer = CopiedFrame(frame.first._replace(api_version=99), frame.data, whole=True, copied_all=False)
    assert wire_frame(newer).known_bytes == frame.first.frame_bytes


def test_rules_that_this_release_does_not_know_leave_the_header_and_the_size() -> None:
    frame = copied(message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "billing", "MemberId": "m"}))
    newer = CopiedFrame(frame.first._replace(copy_rules="newer"), frame.data, whole=True, copied_all=True)
    rebuilt = wire_frame(newer)
    assert flat(rebuilt)[12:] == bytes(frame.first.frame_bytes - 12)
    assert rebuilt.comments[0] == "copied by rules newer, which this release does not know; a newer one reads it"


def test_a_value_that_rules_of_another_release_copied_is_there() -> None:
    configs = [{"Name": "retention.ms", "Value": "1000"}]
    message = message_of("CreateTopics", False, 5, {"ClientId": CLIENT_ID, "Topics": [{"Configs": configs}]})
    wire = message.frame()
    assert flat(wire_frame(copied(message, wire[12:]))) == wire


@pytest.mark.parametrize("number", [-1, 1 << 40])
def test_numbers_that_no_frame_has_are_no_error(number: int) -> None:
    frame = copied(message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "billing", "MemberId": "m"}))
    forged = frame.first._replace(frame_bytes=number, correlation_id=number, api_key=number, api_version=number)
    wire_frame(CopiedFrame(forged, frame.data, whole=True, copied_all=True))


@given(
    rule=st.sampled_from(copy_rules()), response=st.booleans(), data=st.binary(max_size=100), size=st.integers(0, 200)
)
def test_no_bytes_of_any_api_are_an_error(rule: CopyRule, response: bool, data: bytes, size: int) -> None:
    first = copied(message_of("ApiVersions", response, 0, {})).first
    forged = first._replace(api_key=rule.api_key, api_version=rule.api_version, frame_bytes=size)
    rebuilt = wire_frame(CopiedFrame(forged, data, whole=True, copied_all=True))
    if response or size < 4:
        assert rebuilt.known_bytes <= max(size, 12)
    else:
        assert rebuilt.known_bytes == max(size, 12)
