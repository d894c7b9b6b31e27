"""The product's facts of every frame of every recording equal those that kio reads."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, MeasureKind, Status
from kafka_probe.protocol.kernel_allow_list import HEADER_ONLY
from tests.builders import oracle
from tests.builders.recordings import names
from tests.builders.wire import Seen
from tests.lab.replay import Held, Replay
from tests.lab.walker import OF_GROUP_MEMBERS
from tests.recorded.conversations import CONVERSATIONS

pytestmark = pytest.mark.root

NEW_GROUP_APIS = {
    *(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT),
    *(ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE),
}
SIDES = ("client", "server")
WITH_TOPICS = ("Produce", "Fetch", "ShareFetch")
Conversations = dict[str, list[Held]]


def visible(conversation: list[Held]) -> list[Held]:
    """Return the exchanges whose bodies leave the kernel."""
    return [held for held in conversation if held.known_version and held.api not in HEADER_ONLY]


def test_every_conversation_was_recorded(everything: Conversations) -> None:
    assert names() == sorted(CONVERSATIONS)
    assert sum(len(conversation) for conversation in everything.values()) > 900


def test_the_header_of_every_request_is_right(conversation: list[Held]) -> None:
    for held in conversation:
        facts, recorded = held.asked.facts, held.recorded
        assert (facts.response, facts.api_key, facts.api_version) == (False, recorded.api_key, recorded.api_version)
        assert (facts.client_id, held.asked.correlation_id) == (recorded.client_id, recorded.correlation_id)
        assert held.asked.frame_bytes == len(recorded.frame.data) + 4


def test_every_response_is_matched_with_its_request(conversation: list[Held]) -> None:
    """A request without a response had acks=0, or its connection ended: consumers do not wait for their last polls."""
    ended = set()
    for held in conversation:
        recorded = held.recorded
        if held.api == "Produce" and held.asked.facts.acks == 0:
            assert held.answered is None
        elif held.answered is None:
            ended.add(recorded.frame.connection)
        else:
            facts = held.answered.facts
            assert (facts.response, facts.api_key, facts.api_version) == (True, recorded.api_key, recorded.api_version)
            assert held.answered.correlation_id == recorded.correlation_id
            assert recorded.frame.connection not in ended


def test_every_frame_is_decoded_to_its_end(conversation: list[Held]) -> None:
    for held in conversation:
        hidden = held.api in HEADER_ONLY
        done = Status.HEADER_ONLY if hidden else Status.COMPLETE if held.known_version else Status.UNKNOWN_VERSION
        assert held.asked.facts.status is done, held.recorded
        if held.answered is not None:
            # a version that the broker does not know is answered in one that everybody does
            done = Status.HEADER_ONLY if hidden else Status.COMPLETE
            assert held.answered.facts.status is done, held.recorded


def test_nothing_is_lost(replays: dict[str, Replay]) -> None:
    for name, replay in replays.items():
        unknown = sum(not held.known_version for held in replay.held)
        assert replay.lost == ({"unknown_version": len(SIDES) * unknown} if unknown else {}), name


def test_a_version_that_the_broker_does_not_know_is_refused_with_error_35(everything: Conversations) -> None:
    refused = [held for held in everything["franz-go"] if not held.known_version]
    assert refused
    for held in refused:
        assert held.answered
        assert held.answered.facts.errors == ((35, 1),)


def test_topics_partitions_and_their_errors_are_right(conversation: list[Held]) -> None:
    for held in visible(conversation):
        for facts, body in held.bodies:
            assert list(facts.topics) == oracle.topics(body), held.recorded


def test_errors_of_all_levels_are_counted(conversation: list[Held]) -> None:
    for held in visible(conversation):
        for facts, body in held.bodies:
            assert dict(facts.errors) == oracle.errors(body), held.recorded


def test_groups_are_right(conversation: list[Held]) -> None:
    for held in visible(conversation):
        for facts, body in held.bodies:
            assert set(facts.groups) == oracle.groups(body), held.recorded
        if held.recorded.api_key in OF_GROUP_MEMBERS:
            assert held.asked.facts.group


def test_the_fetch_session_is_right(conversation: list[Held]) -> None:
    for held in visible(conversation):
        if held.api == "Fetch":
            for facts, body in held.bodies:
                assert facts.number(Fact.SESSION_ID) == getattr(body, "session_id", None)
                assert list(facts.forgotten) == oracle.forgotten(body)
                if not facts.response and facts.number(Fact.SESSION_ID) is not None:
                    assert facts.incremental == (body.session_epoch > 0)


def test_every_record_set_is_reported_by_size_count_and_producer(conversation: list[Held]) -> None:
    for held in conversation:
        if held.api == "Produce":
            check_records(held.asked, oracle.read_body(held.recorded, response=False))
        elif held.api in ("Fetch", "ShareFetch") and held.answered is not None:
            check_records(held.answered, oracle.read_body(held.recorded, response=True))


def check_records(seen: Seen, body: Any) -> None:
    found: dict[MeasureKind, list[int]] = {}
    for kind, _, _, value in seen.values:
        found.setdefault(kind, []).append(value)
    sets = oracle.record_sets(body)
    batches = [list(oracle.batches(each)) for each in sets]
    assert found.get(MeasureKind.RECORD_BYTES, []) == [len(each) for each in sets]
    assert found.get(MeasureKind.RECORDS, []) == [sum(batch.records for batch in each) for each in batches]
    assert found.get(MeasureKind.BATCHES, []) == [len(each) for each in batches]
    assert found.get(MeasureKind.BATCH_FIRST_OFFSET, []) == [each[0].first_offset for each in batches]
    assert found.get(MeasureKind.BATCH_LAST_OFFSET, []) == [each[-1].last_offset for each in batches]
    assert found.get(MeasureKind.BATCH_PRODUCER_ID, []) == [each[0].producer_id for each in batches]
    assert found.get(MeasureKind.BATCH_PRODUCER_EPOCH, []) == [each[0].producer_epoch for each in batches]
    assert [(each.codec, each.transactional, each.control) for each in seen.facts.record_sets] == [
        (each[-1].codec, any(batch.transactional for batch in each), any(batch.control for batch in each))
        for each in batches
    ]


def test_every_produce_and_fetch_has_the_right_topic_names(conversation: list[Held]) -> None:
    """Topics with an id only get their names from the Metadata responses of the same conversation."""
    learned: dict[str, str] = {}
    true: dict[str, str] = {}
    for held in visible(conversation):
        for facts, body in held.bodies:
            learned.update(facts.topic_names)
            if held.api == "Metadata" and facts.response:
                true.update({each.topic_id: each.name for each in oracle.topics(body) if each.topic_id and each.name})
    assert learned.items() >= true.items()
    for held in conversation:
        if held.api in WITH_TOPICS:
            for facts, body in held.bodies:
                assert [each.name or learned.get(each.topic_id or "") for each in facts.topics] == [
                    each.name or true[each.topic_id or ""] for each in oracle.topics(body)
                ]


def test_the_new_group_protocols_are_decoded(everything: Conversations) -> None:
    modern = [held for held in chain(*everything.values()) if held.recorded.api_key in NEW_GROUP_APIS]
    assert {held.recorded.api_key for held in modern} == NEW_GROUP_APIS
    for held in modern:
        (facts, body), *_ = held.bodies
        assert facts.status is Status.COMPLETE
        assert facts.texts(Fact.MEMBER_ID) == (body.member_id,)


def test_clients_say_which_library_they_are(everything: Conversations) -> None:
    libraries = set()
    for conversation in everything.values():
        for held in visible(conversation):
            if held.api == "ApiVersions" and held.recorded.api_version >= 3:
                (facts, body), *_ = held.bodies
                software = facts.software_name, facts.software_version
                assert software == (body.client_software_name, body.client_software_version)
                libraries.add(facts.software_name)
    assert libraries == {"kafka-python", "confluent-kafka-python", "apache-kafka-java", "kgo", "sarama"}
