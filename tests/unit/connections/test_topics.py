"""Topic ids get their names from what brokers say, and keep them within bounds."""

from __future__ import annotations

from kafka_probe.connections.topics import TopicNames
from kafka_probe.protocol.facts import Facts, Status, TopicFacts
from tests.unit.protocol.messages import TOPIC, TOPIC_ID, case

METADATA = 3
UNNAMED = TopicFacts(None, TOPIC_ID.hex, (), ())
WITHOUT_ID = TopicFacts(TOPIC, None, (), ())


def metadata_of(topics: int) -> Facts:
    found = tuple(TopicFacts(f"topic-{n}", f"{n:032x}", (), ()) for n in range(topics))
    return Facts(True, METADATA, 12, Status.COMPLETE, topics=found)


def test_before_anything_was_learned_a_topic_is_what_the_frame_says() -> None:
    names = TopicNames()
    assert names.resolve(UNNAMED) == (None, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID) == (TOPIC, None)


def test_a_metadata_response_names_ids_and_gives_names_their_id() -> None:
    names = TopicNames()
    names.learn(case(METADATA, 12, response=True).facts)
    assert names.resolve(UNNAMED) == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID) == (TOPIC, TOPIC_ID.hex)


def test_a_request_teaches_nothing() -> None:
    names = TopicNames()
    names.learn(case(METADATA, 12, response=False).facts)
    assert names.resolve(UNNAMED) == (None, TOPIC_ID.hex)


def test_a_topic_made_anew_has_its_new_id() -> None:
    names = TopicNames()
    for topic_id in ("0" * 32, TOPIC_ID.hex):
        names.learn(Facts(True, METADATA, 12, Status.COMPLETE, topics=(TopicFacts(TOPIC, topic_id, (), ()),)))
    assert names.resolve(WITHOUT_ID) == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(TopicFacts(None, "0" * 32, (), ())) == (TOPIC, "0" * 32)


def test_an_old_id_that_is_heard_of_again_does_not_take_the_name_back() -> None:
    names = TopicNames()
    for topic_id in ("0" * 32, TOPIC_ID.hex, "0" * 32):
        names.add(topic_id, TOPIC)
    assert names.add("1" * 32, TOPIC, gone=True)
    assert names.resolve(WITHOUT_ID) == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(TopicFacts(None, "1" * 32, (), ())) == (TOPIC, "1" * 32)


def test_a_name_that_two_clusters_have_is_an_id_only_where_the_cluster_is_known() -> None:
    names = TopicNames()
    names.add(TOPIC_ID.hex, TOPIC, "one")
    assert names.resolve(WITHOUT_ID) == names.resolve(WITHOUT_ID, "one") == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID, "two") == (TOPIC, None)
    names.add("2" * 32, TOPIC, "two")
    assert names.resolve(WITHOUT_ID, "one") == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID, "two") == (TOPIC, "2" * 32)
    assert names.resolve(WITHOUT_ID) == (TOPIC, None)


def test_what_was_learned_is_reported_once() -> None:
    names = TopicNames()
    for _ in range(2):
        names.add(TOPIC_ID.hex, TOPIC)
    assert list(names.report()) == [(TOPIC_ID.hex, TOPIC)]
    names.add(TOPIC_ID.hex, TOPIC)
    assert list(names.report()) == []


def test_beyond_its_bound_the_newest_names_are_known() -> None:
    names, beyond = TopicNames(85_000), 105
    names.learn(metadata_of(beyond))
    assert names.resolve(TopicFacts(None, f"{beyond - 1:032x}", (), ()))[0] == f"topic-{beyond - 1}"
    assert names.resolve(TopicFacts(None, "0" * 32, (), ()))[0] is None
    forgotten = names.losses["topic_name_limit"]
    assert 0 < forgotten < 10
    assert len(list(names.report())) == beyond - forgotten
