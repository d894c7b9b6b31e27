"""The accounts of the soak find missing, doubled and invented events, and excuse only what no agent could see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.builders.events import SECOND_US, client, close, flow
from tests.lab.times import Times
from tests.programs.soak.accounts import Account, AgentReports, account, account_flood

FLOW = "ab"


def wire(*answered_us: int | None, ended_us: int = 60 * SECOND_US) -> Times:
    """Return the times of a connection that sends a request every second; None: it got no answer."""
    asked = {(FLOW, number): (number * SECOND_US, us) for number, us in enumerate(answered_us, 1)}
    return Times(asked, {FLOW: (ended_us, ended_us + SECOND_US)})


def reports(*correlation_ids: int, closes: int = 1) -> AgentReports:
    exchanges = Counter((FLOW, number) for number in correlation_ids)
    asked = Counter({FLOW: len(correlation_ids)})
    until_us = 90 * SECOND_US
    return AgentReports(
        exchanges, +Counter({FLOW: closes}), asked=asked, reported_until_us=until_us, complete_until_us=until_us
    )


ANSWERED = (SECOND_US + 9, 2 * SECOND_US + 9, 3 * SECOND_US + 9)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (reports(1, 2, 3), []),
        (reports(1, 3), [f"requests: ('{FLOW}', 2) at (2000000, 2000009) was not reported"]),
        (reports(1, 2, 2, 3), [f"requests: ('{FLOW}', 2) was reported 2 times"]),
        (reports(1, 2, 3, 4), [f"requests: ('{FLOW}', 4) was reported, and never sent"]),
        (reports(1, 2, 3, closes=0), [f"ends: {FLOW} at (60000000, 61000000) was not reported"]),
    ],
    ids=["all", "missing", "doubled", "made up", "an end"],
)
def test_reports_are_compared_with_the_wire(agent: AgentReports, words: list[str]) -> None:
    assert account(wire(*ANSWERED), [agent], [0], []).unexplained == words


def test_what_passed_between_two_agents_is_excused_and_nothing_else() -> None:
    """An older connection is found again within three exchanges."""
    first = reports(1, closes=0)
    first.reported_until_us = first.complete_until_us = SECOND_US
    answered = (number * SECOND_US + 9 for number in range(1, 8))
    kept = account(wire(*answered), [first, reports(7)], [0, 2 * SECOND_US + SECOND_US // 2], [2 * SECOND_US])
    assert kept.counts["requests while no agent watched"] == 1
    assert kept.counts["requests by which positions were found"] == 3
    assert kept.counts["requests that the broker did not read"] == 0
    assert [words.split(" at ")[0] for words in kept.unexplained] == [f"requests: ('{FLOW}', 6)"]


def test_an_agent_that_was_silent_for_long_before_it_was_killed_is_no_excuse() -> None:
    first = reports(1, closes=0)
    first.reported_until_us = first.complete_until_us = SECOND_US
    kept = account(wire(*ANSWERED), [first, reports(2, 3)], [0, 21 * SECOND_US], [20 * SECOND_US])
    assert [words.split(":")[0] for words in kept.unexplained] == ["agent 1"]


def test_flows_count_the_requests_that_were_reported_one_by_one() -> None:
    agent = reports(1, 2, 3)
    agent.asked[FLOW] += 1
    assert account(wire(*ANSWERED), [agent], [0], []).unexplained == [f"requests in flows: 4 of {FLOW} instead of 3"]


@pytest.mark.parametrize(("ended_us", "unexplained"), [(3 * SECOND_US, 0), (9 * SECOND_US, 1)])
def test_what_the_broker_did_not_read_is_excused(ended_us: int, unexplained: int) -> None:
    kept = account(wire(SECOND_US + 9, 4 * SECOND_US, None, ended_us=ended_us), [reports(1, 2)], [0], [])
    assert len(kept.unexplained) == unexplained
    assert kept.counts["requests that the broker did not read"] == 1 - unexplained


def test_the_broker_may_have_read_any_part_of_what_no_agent_watched() -> None:
    first = reports(1, closes=0)
    first.reported_until_us = first.complete_until_us = SECOND_US
    times = wire(SECOND_US + 9, 4 * SECOND_US, None, ended_us=3 * SECOND_US)
    kept = account(times, [first, reports()], [0, 19 * SECOND_US], [2 * SECOND_US])
    assert (kept.unexplained, [*kept.unread], [*kept.unsure]) == ([], [], [(FLOW, 3)])
    for counted in (1, 2, 3, 4):
        kept.equal("by the broker", {"Metadata": counted}, {"Metadata": 3}, {"Metadata": 1})
    assert kept.unexplained == [f"by the broker: {n} of Metadata instead of 3" for n in (1, 4)]


def test_flows_without_a_connection_are_of_floods() -> None:
    nowhere: dict[str, Any] = {"conn_id": None, "flow_id": None, "local": None}
    agent = AgentReports()
    agent.take(flow(seq=0, api="Metadata", api_version=None, client=client(None), requests=7, **nowhere))
    assert (agent.flooded, agent.asked) == (7, {})
    assert agent.requests == {("Metadata", None, None): 7}


@pytest.mark.parametrize("loss", ["frame_truncated", "header_incomplete"])
@pytest.mark.parametrize(("broke_off_us", "unexplained"), [(9 * SECOND_US, 0), (21 * SECOND_US, 1)])
def test_an_answer_that_broke_off_while_an_agent_watched_is_explained_by_its_loss(
    broke_off_us: int, unexplained: int, loss: str
) -> None:
    times = wire(*ANSWERED)
    times.broken_off.append(broke_off_us)
    first = reports(1, 2, 3)
    first.losses = {"frame_limit": 0, loss: 1}
    second = AgentReports(reported_until_us=90 * SECOND_US, complete_until_us=90 * SECOND_US)
    kept = account(times, [first, second], [0, 20 * SECOND_US + 1], [20 * SECOND_US])
    assert len(kept.unexplained) == unexplained
    assert kept.counts["frames that broke off"] == 1


FLOOD_PORT = 9999


def flooded(requests: int, **losses: int) -> AgentReports:
    """Return an agent's events after a flood of this many requests."""
    found = AgentReports(losses=losses, flood_port=FLOOD_PORT)
    end: dict[str, Any] = {
        "local": f"10.66.0.1:{FLOOD_PORT}",
        "flow_id": FLOW,
        "requests": requests,
        "responses": requests,
    }
    found.take(flow(seq=0, **end))
    found.take(close(seq=1, **end))
    return found


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (flooded(10), []),
        (flooded(7, peer_limited=3), []),
        (flooded(7), ["floods: 7 of 10 requests reported, and 0 losses are counted"]),
        (flooded(11), ["floods: 11 of 10 requests reported, and 0 losses are counted"]),
    ],
    ids=["all", "counted", "missing", "made up"],
)
def test_a_flood_is_reported_or_counted(reported: AgentReports, words: list[str]) -> None:
    kept = Account()
    account_flood(kept, [reported], 10)
    assert kept.unexplained == words


@pytest.mark.parametrize(
    ("dropped", "words"),
    [(3, []), (2, ["missing events of agent 1: 3 of events instead of 2"])],
    ids=["counted", "not counted"],
)
def test_missing_events_are_those_that_the_full_buffer_of_the_sink_refused(dropped: int, words: list[str]) -> None:
    agent = reports(1, 2, 3)
    agent.take({"seq": 3, "kind": "open"})
    agent.losses = {"sink_buffer_full": dropped}
    assert account(wire(*ANSWERED), [agent], [0], []).unexplained == words


def test_a_missing_event_may_have_counted_all_requests_of_a_flooding_connection() -> None:
    reported = flooded(6)
    reported.missing = 2
    kept = Account()
    account_flood(kept, [reported], 10)
    account_flood(kept, [reported], 11)
    assert kept.unexplained == ["floods: 6 of 11 requests reported, and 4 losses are counted"]


def test_a_flood_is_nothing_of_the_honest_clients() -> None:
    reported = flooded(10)
    assert not reported.closes
    assert not reported.asked
    assert reported.requests.total() == 10  # the pipeline's table has them, too
