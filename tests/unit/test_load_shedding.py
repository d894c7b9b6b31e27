"""Load shedding leaves out detail above the CPU limit, step by step, and restores it below."""

from __future__ import annotations

import time
from threading import Thread
from typing import cast

import pytest

from kafka_probe.events import RequestEvent
from kafka_probe.load_shedding import LoadShedding
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.setting_types import ExchangeSelection
from tests.builders.fed_agent import Fed

LIMIT = 0.2


def detail(requests: str = "all", cpu_limit: float | None = LIMIT) -> LoadShedding:
    return LoadShedding(ExchangeSelection.parse(requests), cpu_limit)


def after(shedding: LoadShedding, *shares: float) -> str | None:
    """Return the details that are left out after intervals with these shares of a core."""
    for share in shares:
        shedding.adapt(share)
    return shedding.shed


def spend_cpu(seconds: float) -> None:
    """Use the CPU for this time of the calling thread."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@pytest.mark.parametrize("capturing", [False, True])
def test_only_the_time_of_the_capture_thread_costs_detail(capturing: bool) -> None:
    fed = Fed(cpu_limit=LIMIT)
    if capturing:
        spend_cpu(0.5)
    else:
        other = Thread(target=spend_cpu, args=(0.5,))
        other.start()
        other.join()
    fed.report()
    assert fed.events("agent")[-1]["shed"] == ("topics" if capturing else None)


def test_without_a_limit_nothing_is_left_out() -> None:
    shedding = detail(cpu_limit=None)
    assert after(shedding, 5.0, 5.0) is None
    assert (shedding.requests, shedding.topics) == (True, True)


def test_requests_give_way_first_and_topics_next() -> None:
    shedding = detail()
    assert after(shedding, LIMIT) is None
    assert after(shedding, 0.21) == "requests"
    assert (shedding.requests, shedding.topics) == (False, True)
    assert after(shedding, 0.21, 0.21) == "topics"
    assert (shedding.requests, shedding.topics) == (False, False)


def test_where_no_requests_are_reported_topics_give_way_at_once() -> None:
    assert after(detail("off"), 0.21) == "topics"


def test_detail_comes_back_step_by_step_after_three_calm_intervals_and_then_six() -> None:
    shedding = detail()
    assert after(shedding, 0.5, 0.5) == "topics"
    assert after(shedding, 0.05, 0.05) == "topics"
    assert after(shedding, 0.05) == "requests"
    assert after(shedding, *[0.05] * 5) == "requests"
    assert after(shedding, 0.05) is None


def test_what_is_below_the_limit_but_not_calm_changes_nothing() -> None:
    shedding = detail()
    assert after(shedding, 0.5, 0.05, 0.05, 0.15, 0.05, 0.05) == "requests"
    assert after(shedding, 0.05) is None


def test_a_load_that_stays_between_half_of_the_limit_and_the_limit_costs_no_detail_for_good() -> None:
    shedding = detail("off")
    assert after(shedding, 0.5, *[0.15] * 95) == "topics"
    assert after(shedding, 0.15) is None


def test_each_return_makes_the_next_one_slower_until_all_was_calm() -> None:
    shedding = detail("off")
    assert after(shedding, 0.5, *[0.05] * 3) is None
    assert after(shedding, 0.5, *[0.05] * 5) == "topics"
    assert after(shedding, 0.05) is None
    assert after(shedding, *[0.05] * 12) is None
    assert after(shedding, 0.5, *[0.05] * 3) is None


def test_other_settings_bring_all_detail_back() -> None:
    shedding = detail()
    assert after(shedding, 0.5, 0.5) == "topics"
    shedding.reconfigure(ExchangeSelection.parse("errors"), None)
    assert (shedding.requests, shedding.topics, shedding.shed) == (True, True, None)


def test_requests_that_change_a_cluster_are_events_whatever_the_settings() -> None:
    event = cast("RequestEvent", {"kind": "request", "api_key": ApiKey.DELETE_TOPICS, "errors": {}})
    assert [*detail("errors").wanted([event])] == [event]
