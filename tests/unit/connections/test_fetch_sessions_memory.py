"""The memory that fetch sessions take, and that they give it back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.flow_sums import SUMMED
from tests.builders.bounded_tables import Watched, grown_by, let_all_go, with_budget
from tests.builders.events import INTERVAL
from tests.builders.samples import Samples, by_hand, fetch


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (1, 4), (1, 5), (1, 90), (8, 1), (200, 1)])
def test_what_a_fetch_session_holds_is_reckoned_and_given_back(topics: int, partitions: int) -> None:
    watched = with_budget(40)

    def asked(conn: int) -> Samples:
        named = [
            {"Topic": f"{conn}-{n}".rjust(200, "x"), "Partitions": [{"Partition": 300 + p} for p in range(partitions)]}
            for n in range(topics)
        ]
        return by_hand("Fetch", 12, {"SessionEpoch": 0, "Topics": named}, conn)

    requests = [asked(conn) for conn in range(1, 41)]
    budget = watched.tracker.budget

    def ask(some: list[Samples]) -> bool:
        for one in some:
            watched.see(one)
        list(watched.dispatcher.report(INTERVAL))
        watched.reader = FrameReader(SUMMED)
        return True

    ask(requests[:1])
    before = budget.used_bytes
    assert grown_by(lambda: ask(requests[1:]), 1) < budget.used_bytes - before
    let_all_go(watched, 40)
    assert budget.used_bytes == 0


def ask_in_all_versions(watched: Watched, names: tuple[str, ...]) -> None:
    watched.see(fetch(0, names))
    for version in range(7, 18):
        watched.see(by_hand("Fetch", version, {"SessionId": 7, "SessionEpoch": 1}))


def ask_for_one_after_the_other(watched: Watched, names: tuple[str, ...]) -> None:
    watched.see(fetch(0, names[:1]))
    for before, name in pairwise(names):
        watched.see(fetch(1, (name,), (before,)))


def hold_none_and_all_again(watched: Watched, names: tuple[str, ...]) -> None:
    for _ in range(3):
        watched.see(fetch(0, names), fetch(1, (), names))


@pytest.mark.parametrize("ask", [ask_in_all_versions, ask_for_one_after_the_other, hold_none_and_all_again])
def test_what_a_fetch_session_asked_for_is_reckoned_until_it_is_reported(
    ask: Callable[[Watched, tuple[str, ...]], None],
) -> None:
    watched = with_budget(1)
    names = tuple(f"{n:0200}" for n in range(500))
    watched.see(fetch(0))
    (session,) = watched.sessions(1)
    list(watched.dispatcher.report(INTERVAL))
    budget = watched.tracker.budget
    before = budget.used_bytes

    def take() -> object:
        ask(watched, names)
        taken = session.take()
        watched.flows._counts.clear()
        watched.dispatcher._namings.clear()
        watched.reader = FrameReader(SUMMED)
        return taken

    assert grown_by(take, 1) < budget.used_bytes - before
    session.forget()
    for _ in range(2):
        session.take()
    assert budget.used_bytes == before


def test_topics_that_are_asked_for_one_after_the_other_stay_within_the_budget() -> None:
    watched = with_budget(1, 20_000)
    ask_for_one_after_the_other(watched, tuple(f"topic-{n}" for n in range(100)))
    assert watched.tracker.losses["partition_limit"] > 50
    assert watched.tracker.budget.used_bytes < 20_000


def test_partitions_of_fetch_sessions_beyond_the_bound_are_counted() -> None:
    watched = with_budget(4, 10_000)
    for conn in range(1, 5):
        watched.see(fetch(0, ("a", "b", "c", "d"), conn=conn))
    assert 0 < watched.tracker.losses["partition_limit"] < 16
    watched.report()
    let_all_go(watched, 4)
    assert watched.tracker.budget.used_bytes == 0
