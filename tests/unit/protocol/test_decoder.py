"""Decoded facts against what other people's libraries encoded, whole and cut anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import Fact, Facts, Kind, SetStatus, Status, TopicFacts, measure_values
from kafka_probe.protocol.plan import Form, Step, plan_for
from kafka_probe.protocol.rules import LIMITS
from kafka_probe.protocol.schemas import apis
from tests.unit.protocol.messages import CASES, CLIENT_ID, TOPIC, TOPIC_ID, Case, case
from tests.unit.protocol.trees import Records


def named(found: Case) -> str:
    return found.name


def decode_case(found: Case, data: bytes | None = None, *, copied_all: bool = True) -> Facts:
    facts = found.facts
    data = found.data if data is None else data
    return decode(facts.response, facts.api_key, facts.api_version, data, copied_all=copied_all).facts


@pytest.mark.parametrize("expected", CASES, ids=named)
def test_facts_and_measures_are_those_that_were_encoded(expected: Case) -> None:
    facts = expected.facts
    shape = decode(facts.response, facts.api_key, facts.api_version, expected.data, copied_all=True)
    assert shape.facts == expected.facts
    values = measure_values(shape, expected.data)
    found = [(m.kind, m.topic, m.partition, value) for m, value in zip(shape.measures, values, strict=True)]
    assert found == expected.values


def test_every_version_of_every_allowed_api_is_tried() -> None:
    tried = {(c.facts.response, c.facts.api_key, c.facts.api_version) for c in CASES}
    allowed = [api for api in apis().values() if api.name in LIMITS]
    assert tried == {(response, api.key, v) for api in allowed for v in api.versions for response in (False, True)}


@pytest.mark.parametrize("whole", CASES, ids=named)
def test_a_frame_cut_anywhere_gives_a_part_of_its_facts(whole: Case) -> None:
    needed = next(end for end in range(len(whole.data) + 1) if decode_case(whole, whole.data[:end]) == whole.facts)
    for end in range(needed):
        part = decode_case(whole, whole.data[:end], copied_all=False)
        assert part.status is Status.TRUNCATED
        assert part.stopped_at
        assert_part_of(part, whole.facts)
        assert decode_case(whole, whole.data[:end]).status is Status.MALFORMED


def assert_part_of(part: Facts, whole: Facts) -> None:
    assert part.values == whole.values[: len(part.values)]
    assert part.record_sets == whole.record_sets[: len(part.record_sets)]
    counts = dict(whole.errors)
    assert all(count <= counts[code] for code, count in part.errors)
    for part_topics, topics in ((part.topics, whole.topics), (part.forgotten, whole.forgotten)):
        assert len(part_topics) <= len(topics)
        for part_topic, topic in zip(part_topics, topics, strict=False):
            assert_part_of_topic(part_topic, topic)


def assert_part_of_topic(part: TopicFacts, whole: TopicFacts) -> None:
    assert part.name in (None, whole.name)
    assert part.topic_id in (None, whole.topic_id)
    assert part.partitions == whole.partitions[: len(part.partitions)]
    assert part.errors == whole.errors[: len(part.errors)]


@given(st.booleans(), st.integers(-1, 100), st.integers(-1, 20), st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_give_a_status(response: bool, key: int, version: int, data: bytes, copied_all: bool) -> None:
    shape = decode(response, key, version, data, copied_all=copied_all)
    assert len(shape.mask) == len(data)
    assert (shape.facts.stopped_at is None) == (shape.facts.status not in (Status.TRUNCATED, Status.MALFORMED))
    measure_values(shape, data)


@given(st.sampled_from(CASES), st.data())
def test_damaged_frames_give_a_status(whole: Case, draw: st.DataObject) -> None:
    data = bytearray(whole.data)
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert decode_case(whole, bytes(data), copied_all=draw.draw(st.booleans())).status in Status


def test_a_length_far_beyond_the_data_ends_at_once() -> None:
    two_billion_topics = b"\xff\xff" + b"\x7f\xff\xff\xff" + b"\x00\x01a" * 10
    facts = decode(False, 3, 1, two_billion_topics, copied_all=True).facts
    assert (facts.status, len(facts.topics)) == (Status.MALFORMED, 10)


def test_a_negative_length_is_malformed_however_much_was_copied() -> None:
    assert decode(False, 3, 1, b"\xff\xff" + b"\xff\xff\xff\xfe", copied_all=False).facts.status is Status.MALFORMED


def test_a_frame_is_complete_once_its_facts_are() -> None:
    topic_and_no_more = b"\xff\xff" + b"\x00\x00\x00\x01\x00\x01t"
    facts = decode(False, 3, 4, topic_and_no_more, copied_all=False).facts
    assert facts == Facts(False, 3, 4, Status.COMPLETE, topics=(TopicFacts("t", None, (), ()),))


def test_every_element_of_an_array_takes_bytes() -> None:
    def narrow(step: Step) -> bool:
        empty = step.form is Form.STRUCT and not step.inner
        return empty or any(map(narrow, step.inner))

    plans = [plan_for(c.facts.response, c.facts.api_key, c.facts.api_version, b"") for c in CASES]
    assert not any(narrow(step) for plan in plans for step in plan.steps)


def test_a_body_that_never_leaves_the_kernel_is_header_only() -> None:
    client_id = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
    facts = decode(False, 36, 2, client_id, copied_all=False).facts
    assert facts == Facts(False, 36, 2, Status.HEADER_ONLY, values=((Fact.CLIENT_ID, CLIENT_ID),))
    assert decode(True, 36, 2, b"", copied_all=False).facts.status is Status.HEADER_ONLY


def test_controlled_shutdown_0_has_no_client_id() -> None:
    assert decode(False, 7, 0, b"\x00\x00\x00\x05", copied_all=True).facts == Facts(False, 7, 0, Status.HEADER_ONLY)


def test_newer_versions_and_unknown_apis_still_name_the_client() -> None:
    client_id = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
    newer = decode(False, 0, 99, client_id + b"whatever", copied_all=True).facts
    assert newer == Facts(False, 0, 99, Status.UNKNOWN_VERSION, values=((Fact.CLIENT_ID, CLIENT_ID),))
    unknown = decode(False, 9999, 0, client_id + b"whatever", copied_all=True).facts
    assert unknown == Facts(False, 9999, 0, Status.UNKNOWN_API, values=((Fact.CLIENT_ID, CLIENT_ID),))
    assert decode(True, 9999, 0, b"whatever", copied_all=True).facts.status is Status.UNKNOWN_API


@pytest.mark.parametrize("version", [3, 4, 99])
def test_an_api_versions_request_of_a_version_too_new_is_answered_in_version_0(version: int) -> None:
    answer = b"\x00\x23" + b"\x00\x00\x00\x01" + b"\x00\x12\x00\x00\x00\x03"
    facts = decode(True, 18, version, answer, copied_all=True).facts
    assert facts == Facts(
        True,
        18,
        version,
        Status.COMPLETE,
        errors=((35, 1),),
        values=((Fact.API_KEY, 18), (Fact.MIN_VERSION, 0), (Fact.MAX_VERSION, 3)),
    )


def test_a_response_to_an_unknown_api_versions_version_still_gives_its_error() -> None:
    facts = decode(True, 18, 99, b"\x00\x2a\x07", copied_all=True).facts
    assert facts == Facts(True, 18, 99, Status.UNKNOWN_VERSION, errors=((42, 1),))


def test_metadata_responses_teach_the_names_of_topic_ids() -> None:
    assert decode_case(case(3, 12, response=True)).topic_names == ((TOPIC_ID.hex, TOPIC),)
    assert decode_case(case(3, 9, response=True)).topic_names == ()
    assert decode_case(case(3, 12, response=False)).topic_names == (), "a client may claim anything"


def test_the_group_is_named_only_if_it_is_the_only_one() -> None:
    assert decode_case(case(9, 7, response=False)).group == "billing"
    assert decode_case(case(9, 8, response=False)).group is None


def test_a_transaction_coordinator_is_not_a_group() -> None:
    found = case(10, 2, response=False)
    transaction = found.data[:-1] + b"\x01"
    assert decode_case(found, transaction).groups == ()


def test_null_client_and_null_topics_are_nothing() -> None:
    all_topics = b"\xff\xff" + b"\xff\xff\xff\xff"
    assert decode(False, 3, 1, all_topics, copied_all=True).facts == Facts(False, 3, 1, Status.COMPLETE)


def test_names_that_are_not_utf_8_are_still_names() -> None:
    assert decode(False, 36, 0, b"\x00\x02a\xff", copied_all=False).facts.client_id == "a\ufffd"


def test_the_status_of_a_stub_means_what_the_kernel_means() -> None:
    header = (Path(__file__).parents[3] / "bpf" / "record.h").read_text()
    (body,) = re.findall(r"enum set_status \{(.*?)\}", header, re.DOTALL)
    assert re.findall(r"SET_(\w+)", body) == [status.name for status in SetStatus]
    assert [status.value for status in SetStatus] == list(range(len(SetStatus)))


@pytest.mark.parametrize(
    ("status", "second_kind"),
    [
        (SetStatus.COUNTED, Kind.RECORDS),
        (SetStatus.UNREADABLE, Kind.UNCOUNTED_BYTES),
        (SetStatus.PARTIAL, Kind.RECORDS),
        (SetStatus.WRAPPER, Kind.UNCOUNTED_BYTES),
        (9, Kind.UNCOUNTED_BYTES),
    ],
)
def test_records_are_counted_or_their_bytes_are_uncounted(status: int, second_kind: Kind) -> None:
    head = b"\xff\xff" + b"\x00\x01" + bytes(4) + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x01"
    data = head + bytes(4) + (80).to_bytes(4, "big") + Records(b"", 5, status=status).stub
    shape = decode(False, 0, 0, data, copied_all=True)
    assert [measure.kind for measure in shape.measures][:2] == [Kind.RECORD_BYTES, second_kind]


def test_the_stub_stands_only_where_records_are() -> None:
    empty, full = (0).to_bytes(4, "big"), (80).to_bytes(4, "big") + Records(b"", 5).stub
    head = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x02"
    for first, second in ((empty, full), (full, empty)):
        data = head + b"\x00\x00\x00\x00" + first + b"\x00\x00\x00\x01" + second
        shape = decode(False, 0, 0, data, copied_all=True)
        assert shape.facts.topics[0].partitions == (0, 1)
        assert {measure.partition for measure in shape.measures} == {1 if first == empty else 0}
        assert measure_values(shape, data) == [80, 5, 1, 4000, 6]
