"""Every frame of every recorded conversation, cut as the kernel cuts it and decoded, against what kio reads in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import Facts, Kind, Shape, Status, measure_values
from kafka_probe.protocol.rules import HEADER_ONLY
from kafka_probe.protocol.schemas import apis
from tests.recorded import oracle
from tests.recorded.conversations import CONVERSATIONS
from tests.recorded.cut import batches, request_data, response_data
from tests.recorded.recording import Request, exchanges, names, read

PRODUCE, FETCH, METADATA, API_VERSIONS, SHARE_FETCH = 0, 1, 3, 18, 78
GROUP_APIS = (8, 9, 11, 12, 13, 14, 68, 76)
NEW_GROUP_APIS = (68, 76, 78, 79)


@pytest.fixture(params=names())
def conversation(request: pytest.FixtureRequest) -> list[Request]:
    return recorded(request.param)


@cache
def recorded(name: str) -> list[Request]:
    return exchanges(read(name))


def everything() -> Iterator[Request]:
    for name in names():
        yield from recorded(name)


def of_request(request: Request) -> Shape:
    data, copied_all = request_data(request)
    return decode(False, request.api_key, request.api_version, data, copied_all=copied_all)


def of_response(request: Request) -> Shape:
    data, copied_all = response_data(request)
    return decode(True, request.api_key, request.api_version, data, copied_all=copied_all)


def bodies(conversation: list[Request]) -> Iterator[tuple[Request, Facts, Any]]:
    """Both frames of each exchange whose body leaves the kernel: the facts decoded, and the body as kio has it."""
    for request in conversation:
        if request.api_version in apis()[request.api_key].versions and name_of(request) not in HEADER_ONLY:
            yield request, of_request(request).facts, oracle.read_body(request, response=False)
            if request.response is not None:
                yield request, of_response(request).facts, oracle.read_body(request, response=True)


def name_of(request: Request) -> str:
    return apis()[request.api_key].name


def test_every_conversation_was_recorded() -> None:
    assert names() == sorted(CONVERSATIONS)
    assert sum(1 for _ in everything()) > 900


def test_the_api_the_version_and_the_client_id_of_every_request_are_right(conversation: list[Request]) -> None:
    for request in conversation:
        facts = of_request(request).facts
        assert (facts.api_key, facts.api_version) == (request.api_key, request.api_version)
        assert facts.client_id == request.client_id


def test_every_frame_is_decoded_to_its_end(conversation: list[Request]) -> None:
    for request in conversation:
        known = request.api_version in apis()[request.api_key].versions
        hidden = name_of(request) in HEADER_ONLY
        done = Status.HEADER_ONLY if hidden else Status.COMPLETE if known else Status.UNKNOWN_VERSION
        assert of_request(request).facts.status is done, request
        if request.response is not None:
            # a version that the broker does not know is answered in one that everybody does
            done = Status.HEADER_ONLY if hidden else Status.COMPLETE
            assert of_response(request).facts.status is done, request


def test_topics_partitions_and_their_errors_are_right(conversation: list[Request]) -> None:
    for request, facts, body in bodies(conversation):
        assert list(facts.topics) == oracle.topics(body), request


def test_errors_of_all_levels_are_counted(conversation: list[Request]) -> None:
    for request, facts, body in bodies(conversation):
        assert dict(facts.errors) == oracle.errors(body), request


def test_groups_are_right(conversation: list[Request]) -> None:
    for request, facts, body in bodies(conversation):
        assert set(facts.groups) == oracle.groups(body), request
        if request.api_key in GROUP_APIS and not facts.response:
            assert facts.group is not None


def test_the_fetch_session_is_right(conversation: list[Request]) -> None:
    for request, facts, body in bodies(conversation):
        if request.api_key == FETCH:
            assert facts.session_id == getattr(body, "session_id", None)
            assert list(facts.forgotten) == oracle.forgotten(body)
            if not facts.response and facts.session_id is not None:
                assert facts.incremental == (body.session_epoch > 0)


def test_every_record_set_is_told_by_size_count_and_producer(conversation: list[Request]) -> None:
    for request in conversation:
        if name_of(request) == "Produce":
            check_records(of_request(request), request_data(request)[0], oracle.read_body(request, response=False))
        elif name_of(request) in ("Fetch", "ShareFetch") and request.response is not None:
            check_records(of_response(request), response_data(request)[0], oracle.read_body(request, response=True))


def check_records(shape: Shape, data: bytes, body: Any) -> None:
    found: dict[Kind, list[int]] = {}
    for measure, value in zip(shape.measures, measure_values(shape, data), strict=True):
        found.setdefault(measure.kind, []).append(value)
    sets = oracle.record_sets(body)
    headers = [list(batches(each)) for each in sets]
    assert found.get(Kind.RECORD_BYTES, []) == [len(each) for each in sets]
    assert found.get(Kind.RECORDS, []) == [sum(batch.records for batch in each) for each in headers]
    assert found.get(Kind.BATCHES, []) == [len(each) for each in headers]
    assert found.get(Kind.BATCH_PRODUCER_ID, []) == [each[0].producer_id for each in headers]
    assert [(each.transactional, each.control) for each in shape.facts.record_sets] == [
        (any(batch.transactional for batch in each), any(batch.control for batch in each)) for each in headers
    ]


def test_every_produce_and_fetch_has_the_right_topic_names(conversation: list[Request]) -> None:
    """Those that give ids too: by the answers to Metadata in the same conversation."""
    learned: dict[str, str] = {}
    true: dict[str, str] = {}
    for request, facts, body in bodies(conversation):
        learned.update(facts.topic_names)
        if facts.response and request.api_key == METADATA:
            true.update({topic.topic_id: topic.name for topic in oracle.topics(body) if topic.topic_id and topic.name})
    assert learned.items() >= true.items()
    for request, facts, body in bodies(conversation):
        if request.api_key in (PRODUCE, FETCH, SHARE_FETCH):
            assert [topic.name or learned.get(topic.topic_id or "") for topic in facts.topics] == [
                topic.name or true[topic.topic_id or ""] for topic in oracle.topics(body)
            ]


def test_every_request_is_answered_but_those_that_ask_for_no_answer(conversation: list[Request]) -> None:
    """Else its connection ended: a consumer does not wait for its last polls."""
    ended = set()
    for request in conversation:
        if name_of(request) == "Produce" and of_request(request).facts.acks == 0:
            assert request.response is None
        elif request.response is None:
            ended.add(request.frame.connection)
        else:
            assert request.frame.connection not in ended


def test_the_new_group_protocols_are_decoded() -> None:
    seen = {request.api_key for request in everything()}
    assert seen.issuperset(NEW_GROUP_APIS)
    for request in everything():
        if request.api_key in NEW_GROUP_APIS:
            assert of_request(request).facts.status is Status.COMPLETE
            assert of_request(request).facts.member_ids == (oracle.read_body(request, response=False).member_id,)


def test_clients_say_which_library_they_are() -> None:
    libraries = set()
    for request in everything():
        if request.api_key == API_VERSIONS and request.api_version in (3, 4):
            facts, body = of_request(request).facts, oracle.read_body(request, response=False)
            told = facts.software_name, facts.software_version
            assert told == (body.client_software_name, body.client_software_version)
            libraries.add(facts.software_name)
    assert libraries == {"kafka-python", "confluent-kafka-python", "apache-kafka-java", "kgo", "sarama"}


def test_no_prefix_of_a_frame_says_more_than_the_frame(conversation: list[Request]) -> None:
    for request in {(each.api_key, each.api_version): each for each in conversation}.values():
        data = request_data(request)[0]
        whole = decode(False, request.api_key, request.api_version, data, copied_all=False).facts
        for size in range(len(data)):
            facts = decode(False, request.api_key, request.api_version, data[:size], copied_all=False).facts
            assert facts.status is not Status.MALFORMED
            assert [each.name for each in facts.topics] == [each.name for each in whole.topics[: len(facts.topics)]]
