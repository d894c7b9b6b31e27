"""The lags of groups, from what exchanges show of ends and positions."""

from __future__ import annotations

import pytest

from kafka_probe.connections.offsets import SEEN_LATELY_NS, GroupLag
from tests.builders.messages import GROUP, TOPIC, TOPIC_ID
from tests.builders.offsets import SECOND_NS, OffsetsAgent, committed, fetched
from tests.builders.samples import by_hand

MS_NS = 10**6


@pytest.fixture
def agent() -> OffsetsAgent:
    return OffsetsAgent()


def lags(agent: OffsetsAgent, since_ns: int = 0, now_ns: int = SECOND_NS) -> list[GroupLag]:
    agent.rows()
    return agent.offsets.lags(now_ns, since_ns)


def test_a_lag_is_the_end_less_the_position(agent: OffsetsAgent) -> None:
    agent.see(fetched(77), *committed(70))
    ((_, *lag),) = lags(agent)
    assert lag == [GROUP, TOPIC, 1, 7, 7]


def test_a_partition_of_which_only_one_is_known_does_not_count(agent: OffsetsAgent) -> None:
    agent.see(*committed(70))
    assert lags(agent) == []
    agent.see(fetched(77), *committed(5, 3, number=9))
    assert [(lag.partitions, lag.total) for lag in lags(agent)] == [(1, 7)]


def test_a_position_beyond_a_newer_end_is_no_negative_lag(agent: OffsetsAgent) -> None:
    agent.see(*committed(80), fetched(77, ts_ns=20 * MS_NS))
    assert [lag.total for lag in lags(agent)] == [0]


def test_a_position_beyond_an_older_end_shows_that_the_end_is_seen_elsewhere(agent: OffsetsAgent) -> None:
    agent.see(fetched(77), *committed(80))
    assert lags(agent) == []


def test_a_topic_that_one_of_them_names_by_its_id_is_one_topic(agent: OffsetsAgent) -> None:
    topics = [{"Name": TOPIC, "TopicId": TOPIC_ID.bytes}]
    agent.see(by_hand("Metadata", 12, {"ClusterId": "the-cluster", "Topics": topics}, answer=True))
    agent.see(fetched(77, version=13), *committed(70, version=8))
    assert [(lag.cluster, lag.topic, lag.total) for lag in lags(agent)] == [("the-cluster", TOPIC, 7)]


def test_a_lag_of_which_nothing_was_seen_lately_is_left_out(agent: OffsetsAgent) -> None:
    agent.see(*committed(70, number=5), fetched(77, ts_ns=20 * MS_NS))
    assert [lag.total for lag in lags(agent, 20 * MS_NS)] == [7]
    assert lags(agent, 20 * MS_NS + 1) == []


def test_the_newest_end_counts_and_groups_have_their_own_lags(agent: OffsetsAgent) -> None:
    agent.see(fetched(77, ts_ns=1 * MS_NS), fetched(90, ts_ns=2 * MS_NS, conn=2))
    agent.see(*committed(70), *committed(88, group="other", number=9))
    found = {lag.group: (lag.total, lag.most) for lag in lags(agent)}
    assert found == {GROUP: (20, 20), "other": (2, 2)}


def test_a_partition_that_moved_away_does_not_count(agent: OffsetsAgent) -> None:
    agent.see(fetched(77, ts_ns=6 * MS_NS), *committed(70))
    later = 7 * MS_NS + SEEN_LATELY_NS
    assert [lag.total for lag in lags(agent, now_ns=later - 2 * MS_NS)] == [7]
    agent.see(fetched(900, ts_ns=later))
    assert lags(agent, now_ns=later) == []


def test_lags_of_one_label_set_are_added() -> None:
    one, other = GroupLag("", "g", "t", 2, 30, 20), GroupLag("", "g", "t", 1, 25, 25)
    assert one.plus(other) == GroupLag("", "g", "t", 3, 55, 25)
