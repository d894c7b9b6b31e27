"""Facts of messages as real clients and brokers send them, with the protocol's exceptions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import Fact, Facts, MeasureKind, SetStatus, Status, TopicFacts, measure_values
from kafka_probe.protocol.plan import Form, PlanStep, full_plan
from kafka_probe.protocol.schemas import Api, apis
from tests.builders.messages import CASES, CLIENT_ID, TOPIC, TOPIC_ID, Case, case
from tests.builders.trees import Records, generated, message_of
from tests.builders.wire import API_VERSIONS, FETCH, METADATA, PRODUCE, SASL_AUTHENTICATE
from tests.unit.protocol.cuts import shape_of


def named(found: Case) -> str:
    return found.name


def decode_case(found: Case, data: bytes | None = None, *, copied_all: bool = True) -> Facts:
    facts = found.facts
    data = found.data if data is None else data
    return decode(facts.response, facts.api_key, facts.api_version, data, copied_all=copied_all).facts


@pytest.mark.parametrize("expected", CASES, ids=named)
def test_facts_and_measures_are_those_that_were_encoded(expected: Case) -> None:
    facts = expected.facts
    shape = decode(facts.response, facts.api_key, facts.api_version, expected.data, copied_all=True).shape()
    assert shape.facts == expected.facts
    values = measure_values(shape, expected.data)
    found = [(m.kind, m.topic, m.partition, value) for m, value in zip(shape.measures, values, strict=True)]
    assert found == expected.values


def test_a_length_far_beyond_the_data_ends_at_once() -> None:
    two_billion_topics = b"\xff\xff" + b"\x7f\xff\xff\xff" + b"\x00\x01a" * 10
    facts = decode(False, METADATA, 1, two_billion_topics, copied_all=True).facts
    assert (facts.status, len(facts.topics)) == (Status.MALFORMED, 10)


def test_a_negative_length_is_malformed_however_much_was_copied() -> None:
    facts = decode(False, METADATA, 1, b"\xff\xff" + b"\xff\xff\xff\xfe", copied_all=False).facts
    assert facts.status is Status.MALFORMED


def test_a_frame_is_complete_once_its_facts_are() -> None:
    topic_and_no_more = b"\xff\xff" + b"\x00\x00\x00\x01\x00\x01t"
    facts = decode(False, METADATA, 4, topic_and_no_more, copied_all=False).facts
    assert facts == Facts(False, METADATA, 4, Status.COMPLETE, topics=(TopicFacts("t", None, (), ()),))


def test_every_element_of_an_array_takes_bytes() -> None:
    def narrow(step: PlanStep) -> bool:
        empty = step.form is Form.STRUCT and not step.inner
        return empty or any(map(narrow, step.inner))

    plans = [full_plan(response, api, v) for api in apis().values() for v in api.versions for response in (False, True)]
    assert not any(narrow(step) for plan in plans for step in plan.steps)


@pytest.mark.parametrize("version", [0, 1])
def test_controlled_shutdown_0_has_no_client_id(version: int) -> None:
    message = message_of("ControlledShutdown", False, version, {"BrokerId": 5})
    facts = shape_of(message, message.data).facts
    assert (facts.client_id, facts.numbers(Fact.BROKER_ID)) == (CLIENT_ID if version else None, (5,))


def test_the_client_id_of_a_flexible_header_is_not_compact_and_may_be_null() -> None:
    found = case(ApiKey.HEARTBEAT, 4, response=False)
    nameless = b"\xff\xff" + found.data[2 + len(CLIENT_ID) :]
    assert decode_case(found, nameless).client_id is None
    assert decode_case(found, nameless).groups == decode_case(found).groups == ("billing",)


def test_an_api_versions_response_has_no_tags_in_its_header() -> None:
    facts = decode_case(case(API_VERSIONS, 4, response=True))
    assert facts.numbers(Fact.API_KEY) == tuple(range(60))
    assert (facts.numbers(Fact.MIN_VERSION), facts.numbers(Fact.MAX_VERSION)) == ((0,) * 60, (9,) * 60)


def test_bytes_behind_the_body_are_left_aside() -> None:
    found = case(METADATA, 5, response=False)
    shape = decode(False, METADATA, 5, found.data + b"more", copied_all=True).shape()
    assert shape.facts == found.facts
    assert shape.used_bytes <= len(found.data)


def test_tags_of_unknown_numbers_are_passed_over_by_their_size() -> None:
    client_id, tags = b"\xff\xff", b"\2" + b"\x63\3abc" + b"\x64\0"
    topic = b"\2t" + tags
    shape = decode(False, METADATA, 9, client_id + tags + b"\2" + topic, copied_all=False).shape()
    assert shape.facts == Facts(False, METADATA, 9, Status.COMPLETE, topics=(TopicFacts("t", None, (), ()),))
    assert shape.mask.count(0) == 2 * len("abc")


def test_a_tagged_field_of_the_version_may_leave_shorter_than_its_size() -> None:
    cluster_id = b"\1\0" + b"\5" + b"\3ab"  # of 5 bytes 3 have left
    whole = case(FETCH, 12, response=False).data
    data = whole[: whole.rindex(b"\1\0\x0c\x0cthe-cluster")] + cluster_id
    assert decode(False, FETCH, 12, data, copied_all=True).facts.cluster_id == "ab"


def test_a_request_without_acknowledgement_says_so() -> None:
    message = message_of("Produce", False, 9, {"Acks": 0})
    assert decode(False, PRODUCE, 9, message.data, copied_all=True).facts.acks == 0


def test_a_body_that_never_leaves_the_kernel_is_header_only() -> None:
    client_id = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
    facts = decode(False, SASL_AUTHENTICATE, 2, client_id, copied_all=False).facts
    assert facts == Facts(False, SASL_AUTHENTICATE, 2, Status.HEADER_ONLY, values=((Fact.CLIENT_ID, CLIENT_ID),))
    assert decode(True, SASL_AUTHENTICATE, 2, b"", copied_all=False).facts.status is Status.HEADER_ONLY


def test_newer_versions_and_unknown_apis_still_name_the_client() -> None:
    client_id = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
    newer = decode(False, PRODUCE, 99, client_id + b"whatever", copied_all=True).facts
    assert newer == Facts(False, PRODUCE, 99, Status.UNKNOWN_VERSION, values=((Fact.CLIENT_ID, CLIENT_ID),))
    unknown = decode(False, 9999, 0, client_id + b"whatever", copied_all=True).facts
    assert unknown == Facts(False, 9999, 0, Status.UNKNOWN_API, values=((Fact.CLIENT_ID, CLIENT_ID),))
    assert decode(True, 9999, 0, b"whatever", copied_all=True).facts.status is Status.UNKNOWN_API


@pytest.mark.parametrize("version", [3, 4, 99])
def test_an_api_versions_request_of_a_version_too_new_is_answered_in_version_0(version: int) -> None:
    answer = b"\x00\x23" + b"\x00\x00\x00\x01" + b"\x00\x12\x00\x00\x00\x03"
    facts = decode(True, API_VERSIONS, version, answer, copied_all=True).facts
    assert facts == Facts(
        True,
        API_VERSIONS,
        version,
        Status.COMPLETE,
        errors=((35, 1),),
        values=((Fact.API_KEY, 18), (Fact.MIN_VERSION, 0), (Fact.MAX_VERSION, 3)),
    )


def test_a_response_to_an_unknown_api_versions_version_still_gives_its_error() -> None:
    facts = decode(True, API_VERSIONS, 99, b"\x00\x2a\x07", copied_all=True).facts
    assert facts == Facts(True, API_VERSIONS, 99, Status.UNKNOWN_VERSION, errors=((42, 1),))


TEACHING_RESPONSES = {
    "Metadata": {10, 11, 12, 13},
    "CreateTopics": {7},
    "DeleteTopics": {6},
    "ConsumerGroupDescribe": {0, 1},
    "DescribeTopicPartitions": {0},
    "ShareGroupDescribe": {0, 1},
    "DescribeShareGroupOffsets": {0, 1},
    "AlterShareGroupOffsets": {0},
    "DeleteShareGroupOffsets": {0},
}


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
@pytest.mark.parametrize("response", [False, True], ids=["request", "response"])
def test_names_of_topic_ids_are_learned_of_what_brokers_say_and_of_nothing_else(api: Api, response: bool) -> None:
    messages = [generated(api, response, version, seed) for version in api.versions for seed in range(6)]
    teaching = {message.version for message in messages if shape_of(message, message.data).facts.topic_names}
    assert teaching == (TEACHING_RESPONSES.get(api.name, set()) if response else set())


def test_a_metadata_response_teaches_the_name_of_a_topic_id() -> None:
    assert decode_case(case(METADATA, 12, response=True)).topic_names == ((TOPIC_ID.hex, TOPIC),)


@pytest.mark.parametrize(
    ("epoch", "incremental", "measured"), [(0, False, []), (-1, False, []), (1, True, [1]), (77, True, [77])]
)
def test_a_fetch_is_incremental_by_its_epoch_and_what_it_forgets_is_decoded(
    epoch: int, incremental: bool, measured: list[int]
) -> None:
    gone = {"Topic": TOPIC, "Partitions": [5]}
    tree = {"SessionId": 99, "SessionEpoch": epoch, "ForgottenTopicsData": [gone]}
    data = message_of("Fetch", False, 12, tree).data
    shape = decode(False, FETCH, 12, data, copied_all=True).shape()
    assert (shape.facts.number(Fact.SESSION_ID), shape.facts.incremental) == (99, incremental)
    assert shape.facts.forgotten == (TopicFacts(TOPIC, None, (5,), ()),)
    assert measure_values(shape, data) == measured


def test_brokers_are_named_with_their_addresses() -> None:
    address = ((Fact.BROKER_ID, 3), (Fact.HOST, "broker-3.kafka.example.org"), (Fact.PORT, 9092))
    values = decode_case(case(METADATA, 12, response=True)).values
    assert tuple(each for each in values if each in address) == address * 2


def test_the_group_is_named_only_if_it_is_the_only_one() -> None:
    assert decode_case(case(ApiKey.OFFSET_FETCH, 7, response=False)).group == "billing"
    assert decode_case(case(ApiKey.OFFSET_FETCH, 8, response=False)).group is None


def test_a_transaction_coordinator_is_not_a_group() -> None:
    found = case(ApiKey.FIND_COORDINATOR, 2, response=False)
    transaction = found.data[:-1] + b"\x01"
    assert decode_case(found, transaction).groups == ()


def test_null_client_and_null_topics_are_nothing() -> None:
    all_topics = b"\xff\xff" + b"\xff\xff\xff\xff"
    assert decode(False, METADATA, 1, all_topics, copied_all=True).facts == Facts(False, METADATA, 1, Status.COMPLETE)


def test_names_that_are_not_utf_8_are_still_names() -> None:
    assert decode(False, SASL_AUTHENTICATE, 0, b"\x00\x02a\xff", copied_all=False).facts.client_id == "a\ufffd"


def test_the_status_of_a_stub_means_what_the_kernel_means() -> None:
    header = (Path(__file__).parents[3] / "bpf" / "sample.h").read_text()
    (body,) = re.findall(r"enum set_status \{(.*?)\}", header, re.DOTALL)
    assert re.findall(r"SET_(\w+)", body) == [status.name for status in SetStatus]
    assert [status.value for status in SetStatus] == list(range(len(SetStatus)))


@pytest.mark.parametrize(
    ("status", "second_kind"),
    [
        (SetStatus.COUNTED, MeasureKind.RECORDS),
        (SetStatus.UNREADABLE, MeasureKind.UNCOUNTED_BYTES),
        (SetStatus.PARTIAL, MeasureKind.RECORDS),
        (SetStatus.WRAPPER, MeasureKind.UNCOUNTED_BYTES),
        (9, MeasureKind.UNCOUNTED_BYTES),
    ],
)
def test_records_are_counted_or_their_bytes_are_uncounted(status: int, second_kind: MeasureKind) -> None:
    head = b"\xff\xff" + b"\x00\x01" + bytes(4) + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x01"
    data = head + bytes(4) + (80).to_bytes(4, "big") + Records(b"", 5, status=status).stub
    shape = decode(False, PRODUCE, 0, data, copied_all=True).shape()
    kinds = {measure.kind for measure in shape.measures}
    counts = {MeasureKind.RECORDS, MeasureKind.UNCOUNTED_BYTES}
    assert kinds & {MeasureKind.RECORD_BYTES, *counts} == {MeasureKind.RECORD_BYTES, second_kind}


def test_the_stub_stands_only_where_records_are() -> None:
    empty, full = (0).to_bytes(4, "big"), (80).to_bytes(4, "big") + Records(b"", 5).stub
    head = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x02"
    for first, second in ((empty, full), (full, empty)):
        data = head + b"\x00\x00\x00\x00" + first + b"\x00\x00\x00\x01" + second
        shape = decode(False, PRODUCE, 0, data, copied_all=True).shape()
        assert shape.facts.topics[0].partitions == (0, 1)
        assert {measure.partition for measure in shape.measures} == {1 if first == empty else 0}
        assert measure_values(shape, data) == [80, 5, 1, 500, 539, 4000, 6]
