"""Fetch sessions: the same counts as one frame after another would give, however frames are grouped into batches."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_probe.capture.sample import SAMPLE
from kafka_probe.connections.fetch_sessions import FetchSession, NamedFrames, naming
from kafka_probe.connections.frame_reader import Frames
from kafka_probe.memory import MIB
from kafka_probe.peer_limits import SharedBudget
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, Shape, Status, TopicFacts

FULL, INCREMENTAL, CLOSE, NEVER_SENT = 0, 1, -1, -7
VERSION = 16

Partitions = dict[str, tuple[int, ...]]


def request(epoch: int | None, named: Partitions | None = None, forgotten: Partitions | None = None) -> Facts:
    values = () if epoch is None else ((Fact.SESSION_EPOCH, epoch),)
    version = 6 if epoch is None else VERSION
    return Facts(False, ApiKey.FETCH, version, Status.COMPLETE, None, values, (), topics(named), topics(forgotten))


def answer(named: Partitions | None = None, error: int = 0) -> Facts:
    errors = ((error, 1),) if error else ()
    return Facts(True, ApiKey.FETCH, VERSION, Status.COMPLETE, None, ((Fact.SESSION_ID, 7),), errors, topics(named))


def topics(named: Partitions | None) -> tuple[TopicFacts, ...]:
    return tuple(TopicFacts(name, None, partitions, ()) for name, partitions in (named or {}).items())


def grouped(batch: list[Facts], now: int = 0) -> list[NamedFrames]:
    """Return the frames in groups of equal facts, as shapes group them."""
    samples = np.zeros(len(batch), SAMPLE)
    # A clock whose two times are equal.
    samples["ts_ns"] = (now + np.arange(len(batch))) // 3
    groups: dict[Facts, list[int]] = {}
    for index, facts in enumerate(batch):
        groups.setdefault(facts, []).append(index)
    # The order of groups is that in which shapes were learned, which has no meaning.
    shuffled = sorted(groups.items(), key=lambda group: hash(str(group[0])))
    return [
        (named, Frames(0, Shape(facts, b"", (), 0), samples, np.array(indices), np.zeros((0, 0), np.int64)), members)
        for facts, indices in shuffled
        if (named := naming(facts)) and len(members := np.arange(len(indices)))
    ]


def asked(*batches: list[Facts], forgotten: bool = False) -> dict[str | None, int]:
    """Return how often each topic was requested through the session.

    forgotten: the connection ends before the counts are taken.
    """
    session, now = FetchSession(ApiKey.FETCH, SharedBudget(MIB, Counter()), "10.0.0.1"), 0
    for batch in batches:
        session.see(grouped(batch, now))
        now += len(batch)
    if forgotten:
        session.forget()
    _, counts = session.take()
    return {name: times for (name, _), times in counts.items()}


def one_by_one(frames: list[Facts]) -> dict[str | None, int]:
    """Count topics by the rules of KIP-227, for each frame in turn, without shortcuts."""
    held: set[tuple[str | None, int]] = set()
    known = False
    counts: Counter[str | None] = Counter()
    for facts in frames:
        named = {(topic.name, partition) for topic in facts.topics for partition in topic.partitions}
        if facts.response:
            held |= set() if known else named
            continue
        epoch = facts.number(Fact.SESSION_EPOCH)
        if epoch != INCREMENTAL:
            held, known = set(), True
        if epoch in (FULL, INCREMENTAL):
            held |= named
            held -= {(topic.name, partition) for topic in facts.forgotten for partition in topic.partitions}
            counts.update({name for name, _ in held | named})
    return counts


def test_requests_before_the_end_of_a_connection_count() -> None:
    assert asked([request(FULL, {"orders": (0,)}), *[request(INCREMENTAL)] * 3], forgotten=True) == {"orders": 4}


def test_an_idle_consumer_asks_for_all_topics_of_its_session() -> None:
    both: Partitions = {"orders": (0, 1), "sales": (0,)}
    idle = [request(INCREMENTAL)] * 100
    assert asked([request(FULL, both)], idle, idle) == {"orders": 201, "sales": 201}


def test_a_topic_leaves_with_the_last_of_its_partitions() -> None:
    first = request(INCREMENTAL, forgotten={"orders": (0,)})
    last = request(INCREMENTAL, forgotten={"orders": (1,)})
    idle = request(INCREMENTAL)
    assert asked([request(FULL, {"orders": (0, 1), "sales": (0,)})], [first, idle], [last, idle]) == {
        "orders": 3,
        "sales": 5,
    }


@pytest.mark.parametrize("error", [70, 71])
def test_a_session_that_was_refused_is_what_the_next_full_request_names(error: int) -> None:
    before = [request(FULL, {"orders": (0,)}), answer({"orders": (0,)}), request(INCREMENTAL), answer(error=error)]
    after = [request(FULL, {"sales": (0,)}), request(INCREMENTAL), answer()]
    assert asked(before + after) == asked(before, after) == {"orders": 2, "sales": 2}


def test_a_session_found_in_midstream_holds_what_was_named_so_far_even_in_an_answer() -> None:
    idle = request(INCREMENTAL)
    assert asked([idle, answer(), idle, answer({"orders": (3,)}), idle, idle]) == {"orders": 2}
    # If the beginning of a session was seen, a response proves nothing: it may be to an older request.
    forgets = request(INCREMENTAL, forgotten={"orders": (0,)})
    assert asked([request(FULL, {"orders": (0,)}), forgets, answer({"orders": (0,)}), idle]) == {"orders": 1}


def test_what_is_named_and_forgotten_at_once_was_asked_for_once() -> None:
    both = request(INCREMENTAL, {"orders": (0,)}, {"orders": (0,)})
    assert asked([request(FULL, {"sales": (0,)}), both, request(INCREMENTAL)]) == {"sales": 3, "orders": 1}


def test_requests_in_several_versions_count_for_the_newest() -> None:
    session = FetchSession(ApiKey.FETCH, SharedBudget(MIB, Counter()), "10.0.0.1")
    idle = request(INCREMENTAL)
    session.see(grouped([request(FULL, {"orders": (0,)}), idle._replace(api_version=VERSION + 1), idle]))
    assert session.take() == (VERSION + 1, {("orders", None): 3})
    session.see(grouped([idle]))
    assert session.take() == (VERSION, {("orders", None): 1})


class Name(str):
    """A topic's name. The class counts how often any is looked up, added to a table or removed from it."""

    __slots__ = ()
    looked_up = 0

    def __hash__(self) -> int:
        Name.looked_up += 1
        return super().__hash__()


@pytest.mark.parametrize("change", ["adds and forgets", "forgets what is not held", "adds what is held"])
def test_a_frame_costs_no_more_the_more_is_held(change: str) -> None:
    def looked_up(held: int) -> int:
        session = FetchSession(ApiKey.FETCH, SharedBudget(100 * MIB, Counter()), "10.0.0.1")
        session.see(grouped([request(FULL, {Name(f"held-{n}"): (0,) for n in range(held)})]))
        frames = {
            "adds and forgets": lambda n: request(INCREMENTAL, {Name(f"new-{n + 1}"): (0,)}, {Name(f"new-{n}"): (0,)}),
            "forgets what is not held": lambda n: request(INCREMENTAL, forgotten={Name(f"new-{n}"): (0,)}),
            "adds what is held": lambda n: request(INCREMENTAL, {Name(f"held-{n % 9}"): (0, n)}),
        }
        changes = [grouped([frames[change](n)]) for n in range(1000)]
        Name.looked_up = 0
        for groups in changes:
            session.see(groups)
        return Name.looked_up

    assert looked_up(15_000) == looked_up(10) < 20_000


def test_requests_without_a_session_are_counted_by_what_they_name_and_end_the_session() -> None:
    for alone in (request(epoch, {"orders": (0,)}) for epoch in (None, CLOSE, NEVER_SENT)):
        named = naming(alone)
        assert named
        assert not named.by_session
        assert asked([request(FULL, {"sales": (0,)}), alone, alone]) == {"sales": 1}


def test_a_request_that_was_cut_before_it_named_its_session_leaves_it_alone() -> None:
    assert naming(Facts(False, ApiKey.FETCH, VERSION, Status.TRUNCATED)) is None


def test_only_fetches_have_sessions() -> None:
    assert naming(Facts(False, 0, 9, Status.COMPLETE, topics=topics({"orders": (0,)}))) is None
    assert naming(Facts(False, ApiKey.SHARE_FETCH, 1, Status.COMPLETE, values=((Fact.SESSION_EPOCH, 0),)))


named = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple))
frames = st.one_of(
    st.builds(request, st.just(FULL), named),
    st.builds(request, st.just(INCREMENTAL), named, named),
    # Most frames are like these.
    st.builds(request, st.just(INCREMENTAL), st.just({})),
    st.builds(request, st.just(INCREMENTAL), st.just({"a": (0,)})),
    st.builds(request, st.sampled_from((CLOSE, None)), named),
    st.builds(answer, named, st.sampled_from((0, 70, 71))),
)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.tuples(frames, st.integers(0, 3))))
def test_any_sequence_in_any_batches_counts_as_one_by_one(frames: list[tuple[Facts, int]]) -> None:
    batch_of = np.cumsum([n == 0 for _, n in frames]).tolist()
    batches = [
        [frame for _, (frame, _) in batch] for _, batch in groupby(zip(batch_of, frames, strict=True), lambda p: p[0])
    ]
    assert asked(*batches) == one_by_one([frame for frame, _ in frames])
