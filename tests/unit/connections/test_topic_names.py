"""Topic ids get their names from brokers' messages and files, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Facts, Status, TopicFacts
from tests.builders.bounded_tables import grown_by
from tests.builders.messages import TOPIC, TOPIC_ID, case

METADATA = ApiKey.METADATA
ANYBODY = "10.0.0.1"
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
    names.learn(case(METADATA, 12, response=True).facts, ANYBODY)
    assert names.resolve(UNNAMED) == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID) == (TOPIC, TOPIC_ID.hex)


def test_a_request_teaches_nothing() -> None:
    names = TopicNames()
    names.learn(case(METADATA, 12, response=False).facts, ANYBODY)
    assert names.resolve(UNNAMED) == (None, TOPIC_ID.hex)


def test_a_topic_made_anew_has_its_new_id() -> None:
    names = TopicNames()
    for topic_id in ("0" * 32, TOPIC_ID.hex):
        names.learn(Facts(True, METADATA, 12, Status.COMPLETE, topics=(TopicFacts(TOPIC, topic_id, (), ()),)), ANYBODY)
    assert names.resolve(WITHOUT_ID) == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(TopicFacts(None, "0" * 32, (), ())) == (TOPIC, "0" * 32)


def test_an_old_id_that_is_named_again_does_not_take_the_name_back() -> None:
    names = TopicNames()
    for topic_id in ("0" * 32, TOPIC_ID.hex, "0" * 32):
        names.add(topic_id, TOPIC, ANYBODY)
    assert names.add("1" * 32, TOPIC, ANYBODY, gone=True)
    assert names.resolve(WITHOUT_ID) == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(TopicFacts(None, "1" * 32, (), ())) == (TOPIC, "1" * 32)


def test_a_name_that_two_clusters_have_is_an_id_only_where_the_cluster_is_known() -> None:
    names = TopicNames()
    names.add(TOPIC_ID.hex, TOPIC, ANYBODY, "one")
    assert names.resolve(WITHOUT_ID) == names.resolve(WITHOUT_ID, "one") == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID, "two") == (TOPIC, None)
    names.add("2" * 32, TOPIC, ANYBODY, "two")
    assert names.resolve(WITHOUT_ID, "one") == (TOPIC, TOPIC_ID.hex)
    assert names.resolve(WITHOUT_ID, "two") == (TOPIC, "2" * 32)
    assert names.resolve(WITHOUT_ID) == (TOPIC, None)


def test_what_was_learned_is_reported_once() -> None:
    names = TopicNames()
    for _ in range(2):
        names.add(TOPIC_ID.hex, TOPIC, ANYBODY)
    assert list(names.report()) == [(TOPIC_ID.hex, TOPIC)]
    names.add(TOPIC_ID.hex, TOPIC, ANYBODY)
    assert list(names.report()) == []


def name_of(names: TopicNames, topic_id: str) -> str | None:
    return names.resolve(TopicFacts(None, topic_id, (), ()))[0]


def test_a_name_that_a_frame_claims_for_an_id_is_not_the_ids() -> None:
    names = TopicNames()
    claimed = TopicFacts("evil", TOPIC_ID.hex, (), ())
    assert names.resolve(claimed) == (None, TOPIC_ID.hex)
    assert names.lacks(Facts(False, METADATA, 12, Status.COMPLETE, topics=(claimed,)))


def test_an_id_with_two_names_has_none_and_no_name_has_it() -> None:
    names = TopicNames()
    for name in ("orders", "payments", "orders", "sales"):
        names.add(TOPIC_ID.hex, name, ANYBODY)
    assert names.resolve(UNNAMED) == (None, TOPIC_ID.hex)
    assert names.resolve(TopicFacts("payments", TOPIC_ID.hex, (), ())) == (None, TOPIC_ID.hex)
    assert names.resolve(TopicFacts("orders", None, (), ())) == ("orders", None)
    assert names.losses["topic_name_conflict"] == 1
    assert list(names.report()) == []
    assert names.lacks(Facts(False, METADATA, 12, Status.COMPLETE, topics=(UNNAMED,)))


ids = st.sampled_from([f"{n:032x}" for n in range(4)])
clusters = st.sampled_from([None, "one", "two"])


@given(st.lists(st.tuples(ids, st.sampled_from("ab"), clusters, st.booleans(), st.booleans())))
def test_memory_for_learned_names_is_that_of_the_kept_ones(
    learned: list[tuple[str, str, str | None, bool, bool]],
) -> None:
    names = TopicNames(4000)
    for topic_id, name, cluster_id, stored, gone in learned:
        names.add(topic_id, name, ANYBODY, cluster_id, stored=stored, gone=gone)
        name_of(names, topic_id)
    while names._names:
        names._forget(next(iter(names._names)))
    assert (names._held_bytes, names._ids, names._unreported) == (0, {}, {})


@pytest.mark.parametrize("learned", [("payments",), ("payments", "sales"), ("orders",), ()])
def test_what_a_file_calls_an_id_is_its_name_whatever_messages_say(learned: tuple[str, ...]) -> None:
    names = TopicNames()
    for name in learned:
        names.add(TOPIC_ID.hex, name, ANYBODY)
    names.add(TOPIC_ID.hex, "orders", ANYBODY, stored=True)
    assert not names.add(TOPIC_ID.hex, "sales", ANYBODY)
    assert names.resolve(UNNAMED) == ("orders", TOPIC_ID.hex)
    assert list(names.report()) == [(TOPIC_ID.hex, "orders")]
    assert names.losses["topic_name_conflict"] == (len(learned) == 2)


def test_beyond_their_bound_names_that_are_used_are_known() -> None:
    names, beyond = TopicNames(85_000), 105
    names.learn(metadata_of(1), ANYBODY)
    for n in range(1, beyond):
        names.add(f"{n:032x}", f"topic-{n}", f"10.0.1.{n}")
        assert name_of(names, "0" * 32) == "topic-0"
    assert name_of(names, f"{1:032x}") is None
    assert name_of(names, f"{beyond - 1:032x}") == f"topic-{beyond - 1}"
    forgotten = names.losses["topic_name_limit"]
    assert 0 < forgotten < 20
    assert len(list(names.report())) == beyond - forgotten


def test_names_that_one_peer_invents_leave_those_of_others() -> None:
    names = TopicNames(85_000)
    for n in range(50):
        names.add(f"{n:032x}", f"topic-{n}", f"10.0.1.{n}")
    for n in range(1000, 2000):
        names.add(f"{n:032x}", "invented", ANYBODY)
    assert [name_of(names, f"{n:032x}") for n in range(50)] == [f"topic-{n}" for n in range(50)]
    assert names.losses["topic_name_limit"] > 900
    assert names.add("f" * 32, "new", "10.0.2.1")


@pytest.mark.parametrize("cluster_bytes", [0, 22, 256])
def test_names_of_topics_take_no_more_than_was_reckoned(cluster_bytes: int) -> None:
    names = TopicNames()

    def learn() -> TopicNames:
        for n in range(2000):
            names.add(f"{n:032x}", f"{n:0249}", "10.0.0.1", f"{n:0{cluster_bytes}}" if cluster_bytes else None)
        return names

    assert grown_by(learn, 1) < names._held_bytes < 2000 * 1500
