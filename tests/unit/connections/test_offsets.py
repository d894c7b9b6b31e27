"""Ends of partitions and positions of groups: what exchanges show of them, and when they are sent."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kafka_probe.capture.sample import Flag
from kafka_probe.connections.offsets import (
    CHANGED_PAUSE_NS,
    CHARACTERS,
    KEPT_NS,
    MOST_ROWS,
    ROWS_PER_EVENT,
    UNCHANGED_PAUSE_NS,
)
from kafka_probe.events import INTERNAL_CLIENT
from kafka_probe.protocol.facts import SetStatus
from tests.builders.events import SINCE_BOOT
from tests.builders.messages import GROUP, TOPIC, TOPIC_ID
from tests.builders.offsets import (
    NAMED,
    SECOND_NS,
    OffsetsAgent,
    asked_position,
    committed,
    exchange,
    fetched,
    listed,
    named,
    produced,
)
from tests.builders.samples import Samples, by_hand, frame, opened
from tests.builders.trees import CLIENT_ID, Records, message_of


@pytest.fixture
def agent() -> OffsetsAgent:
    return OffsetsAgent()


@pytest.mark.parametrize("version", range(19))
def test_the_high_watermark_of_a_fetch_response_is_the_end(agent: OffsetsAgent, version: int) -> None:
    assert agent.rows(fetched(77, version=version)) == [(None, named(version, 13), 4, 77, "fetch")]


@pytest.mark.parametrize("version", range(14))
def test_a_produce_response_shows_the_end_behind_the_records(agent: OffsetsAgent, version: int) -> None:
    rows = agent.rows(*produced(1000, Records(bytes(500), records=40), version=version))
    assert rows == [(None, named(version, 13), 4, 1040, "produce")]


@pytest.mark.parametrize("version", range(12))
def test_a_response_to_a_request_for_the_end_shows_it(agent: OffsetsAgent, version: int) -> None:
    assert agent.rows(*listed(-1, 500, version=version)) == [(None, TOPIC, 4, 500, "list_offsets")]


@pytest.mark.parametrize("version", range(11))
def test_a_commit_without_an_error_is_the_position(agent: OffsetsAgent, version: int) -> None:
    assert agent.rows(*committed(70, version=version)) == [(GROUP, named(version, 10), 4, 70, "offset_commit")]


@pytest.mark.parametrize("version", range(11))
def test_a_position_that_the_broker_returns_counts(agent: OffsetsAgent, version: int) -> None:
    assert agent.rows(*asked_position(70, version=version)) == [(GROUP, named(version, 10), 4, 70, "offset_fetch")]


@pytest.mark.parametrize(
    "samples",
    [
        [fetched(-1)],
        [fetched(77, error=6)],
        produced(-1, Records(bytes(500))),
        produced(1000, Records(bytes(500)), error=6),
        produced(1000, Records(bytes(500), status=SetStatus.UNREADABLE)),
        produced(1000, Records(bytes(500)), acks=0),
        produced((1 << 63) - 1, Records(bytes(500))),
        listed(-1, -1),
        listed(-1, 500, error=6),
        listed(-2, 0),
        listed(1_700_000_000_000, 300),
        listed(-1, 500, isolation=1),
        committed(70, error=25),
        committed(-1),
        committed(70, group=""),
        committed(70)[:1],
        committed(70)[1:],
        asked_position(-1),
        asked_position(70, error=3),
        asked_position(70, error_of_all=16),
        asked_position(70, version=8, error_of_all=16),
        asked_position(70, version=8, groups=(GROUP, "audit")),
    ],
)
def test_what_is_not_confirmed_or_not_known_has_no_row(agent: OffsetsAgent, samples: list[Samples]) -> None:
    assert agent.rows(*samples) == []


def test_of_an_old_list_of_offsets_the_largest_is_the_end(agent: OffsetsAgent) -> None:
    assert agent.rows(*listed(-1, 500, version=0)) == [(None, TOPIC, 4, 500, "list_offsets")]


def test_of_a_commit_that_is_refused_in_part_the_rest_counts(agent: OffsetsAgent) -> None:
    asked = [{"PartitionIndex": number, "CommittedOffset": 70 + number} for number in range(3)]
    answered = [{"PartitionIndex": number, "ErrorCode": 12 * (number == 1)} for number in range(3)]
    rows = agent.rows(
        *exchange(
            "OffsetCommit",
            7,
            {"GroupId": GROUP, "Topics": [{**NAMED, "Partitions": asked}]},
            {"Topics": [{**NAMED, "Partitions": answered}]},
        )
    )
    assert [(partition, offset) for _, _, partition, offset, _ in rows] == [(0, 70), (2, 72)]


def test_of_a_response_that_was_cut_the_last_partition_is_left_out(agent: OffsetsAgent) -> None:
    partitions = [{"PartitionIndex": number, "HighWatermark": 70 + number} for number in range(3)]
    message = message_of("Fetch", True, 7, {"Responses": [{**NAMED, "Partitions": partitions}]})
    data, flags = message.data[:-5], Flag.RESPONSE | Flag.CUT
    rows = agent.rows(frame(data=data, api_key=1, api_version=7, flags=flags))
    assert [(partition, offset) for _, _, partition, offset, _ in rows] == [(0, 70), (1, 71)]


def test_a_topic_id_has_the_name_that_was_learned(agent: OffsetsAgent) -> None:
    topics = [{"Name": TOPIC, "TopicId": TOPIC_ID.bytes}]
    known = by_hand("Metadata", 12, {"ClusterId": "the-cluster", "Topics": topics}, answer=True)
    agent.see(known)
    agent.see(fetched(77, version=15))
    (event,) = agent.offsets.report(SECOND_NS, 10**6, SINCE_BOOT)
    (end,) = event["partition_ends"]
    assert (end["cluster_id"], end["topic"], end["topic_id"]) == ("the-cluster", TOPIC, TOPIC_ID.hex)


def test_connections_of_two_clusters_have_ends_of_their_own(agent: OffsetsAgent) -> None:
    agent.tracker.take(opened(3, peer=("10.0.0.2", 9092))[0])
    for conn, cluster in ((1, "one"), (3, "two")):
        agent.see(by_hand("Metadata", 12, {"ClusterId": cluster}, conn, answer=True))
    agent.see(fetched(77, conn=1), fetched(99, conn=3))
    (event,) = agent.offsets.report(SECOND_NS, 10**6, SINCE_BOOT)
    assert {(end["cluster_id"], end["offset"]) for end in event["partition_ends"]} == {("one", 77), ("two", 99)}


def test_without_a_cluster_id_brokers_have_ends_of_their_own(agent: OffsetsAgent) -> None:
    agent.tracker.take(opened(3, peer=("10.0.0.2", 9092))[0])
    agent.tracker.take(opened(4, server_side=True, peer=("10.0.0.2", 4000), local=("10.0.0.7", 9092))[0])
    agent.see(*(fetched(70 + conn, conn=conn, ts_ns=conn) for conn in (1, 2, 3, 4)))
    (event,) = agent.offsets.report(SECOND_NS, 10**6, SINCE_BOOT)
    brokers = [(end["cluster_id"], end["broker"], end["offset"]) for end in event["partition_ends"]]
    assert brokers == [(None, "10.0.0.1:9092", 72), (None, "10.0.0.2:9092", 73), (None, "10.0.0.7:9092", 74)]


def test_a_connection_without_a_cluster_id_has_that_of_its_broker(agent: OffsetsAgent) -> None:
    agent.see(by_hand("Metadata", 12, {"ClusterId": "the-cluster"}, 1, answer=True))
    agent.see(fetched(70, conn=1), *committed(60, conn=2))
    (event,) = agent.offsets.report(SECOND_NS, 10**6, SINCE_BOOT)
    rows = [*event["partition_ends"], *event["group_positions"]]
    assert [(row["cluster_id"], row["broker"]) for row in rows] == [("the-cluster", None)] * 2


def test_a_cluster_id_in_a_request_counts_for_no_other_connection(agent: OffsetsAgent) -> None:
    agent.see(by_hand("Fetch", 12, {"ClusterId": "false"}, 1))
    agent.see(fetched(70, conn=1), *committed(60, conn=2))
    (event,) = agent.offsets.report(SECOND_NS, 10**6, SINCE_BOOT)
    (position,) = event["group_positions"]
    assert (position["cluster_id"], position["broker"]) == (None, "10.0.0.1:9092")


def test_a_row_has_the_time_of_the_response(agent: OffsetsAgent) -> None:
    agent.see(*committed(70, number=8))
    (event,) = agent.offsets.report(SECOND_NS, 10**6, SINCE_BOOT)
    assert (event["group_positions"][0]["seen"], event["ts"]) == (9000, 10**6)


def test_own_connections_have_no_offsets(agent: OffsetsAgent) -> None:
    message = message_of("Heartbeat", False, 0, {}).data
    own = f"{INTERNAL_CLIENT}x".encode()
    agent.see(frame(data=len(own).to_bytes(2, "big") + own + message[2 + len(CLIENT_ID) :], api_key=12))
    response = fetched(77)
    assert agent.rows(response) == []


def test_the_newest_offset_counts_whatever_it_is(agent: OffsetsAgent) -> None:
    fetches = [fetched(end, ts_ns=ts_ns, conn=conn) for end, ts_ns, conn in ((77, 3, 1), (90, 1, 2), (5, 2, 2))]
    assert [offset for *_, offset, _ in agent.rows(*fetches)] == [77]
    assert [offset for *_, offset, _ in agent.rows(fetched(60, ts_ns=9), after_ns=CHANGED_PAUSE_NS)] == [60]


def test_an_offset_is_sent_when_it_changed_and_half_a_minute_after_the_last(agent: OffsetsAgent) -> None:
    def rows_of(*offsets: int, after_ns: int) -> list[int]:
        samples = [sample for number, offset in enumerate(offsets) for sample in commit_at(offset, number)]
        return [offset for *_, offset, _ in agent.rows(*samples, after_ns=after_ns)]

    def commit_at(offset: int, number: int) -> list[Samples]:
        return committed(offset, number=agent.now_ns // 10**6 + number)

    assert rows_of(70, after_ns=5 * SECOND_NS) == [70]
    assert rows_of(71, 72, after_ns=5 * SECOND_NS) == []
    assert rows_of(after_ns=20 * SECOND_NS) == []
    assert rows_of(after_ns=5 * SECOND_NS) == [72]  # also if nothing more is seen
    assert rows_of(72, after_ns=CHANGED_PAUSE_NS) == []
    assert rows_of(after_ns=CHANGED_PAUSE_NS) == []
    assert rows_of(75, after_ns=0) == [75]
    assert rows_of(76, 75, after_ns=CHANGED_PAUSE_NS) == []


def test_an_offset_that_stays_the_same_is_sent_each_hour(agent: OffsetsAgent) -> None:
    (row,) = agent.rows(fetched(1))
    assert agent.rows(after_ns=UNCHANGED_PAUSE_NS - 1) == []
    assert agent.rows(after_ns=1) == [row]
    assert agent.rows(fetched(1), after_ns=CHANGED_PAUSE_NS) == []
    assert agent.rows(after_ns=UNCHANGED_PAUSE_NS - CHANGED_PAUSE_NS) == [row]


def test_an_offset_that_was_not_seen_for_a_day_is_forgotten(agent: OffsetsAgent) -> None:
    agent.rows(fetched(1))
    assert agent.rows(after_ns=KEPT_NS - 2 * SECOND_NS) != []
    assert agent.rows(after_ns=UNCHANGED_PAUSE_NS) == []
    assert (agent.offsets.held_bytes, agent.left_out) == (0, 0)


def test_a_client_that_waits_longer_than_a_batch_takes_is_paired(agent: OffsetsAgent) -> None:
    first, second = committed(70, number=5), committed(71, number=6)
    agent.see(first[0])
    agent.see(second[0])
    agent.see(first[1])
    assert [row[3] for row in agent.rows(second[1])] == [70]


def test_a_response_may_come_in_a_later_batch(agent: OffsetsAgent) -> None:
    ask, answer = committed(70)
    assert agent.rows(ask) == []
    assert agent.rows(answer) == [(GROUP, TOPIC, 4, 70, "offset_commit")]
    assert agent.rows(answer, after_ns=CHANGED_PAUSE_NS) == []


def test_a_request_in_flight_at_the_end_of_each_batch_is_paired(agent: OffsetsAgent) -> None:
    exchanges = [committed(70 + number, number=number) for number in range(5)]
    agent.see(exchanges[0][0])
    for before, after in pairwise(exchanges):
        agent.see(before[1], after[0])
    assert agent.rows() == [(GROUP, TOPIC, 4, 73, "offset_commit")]


def test_groups_that_commit_on_one_connection_have_their_own_positions(agent: OffsetsAgent) -> None:
    commits = [committed(70 + number, group=f"group-{number}", number=number) for number in range(3)]
    rows = agent.rows(*(sample for pair in commits for sample in pair))
    assert {(group, offset) for group, _, _, offset, _ in rows} == {(f"group-{n}", 70 + n) for n in range(3)}


def test_a_response_belongs_to_the_request_with_its_correlation_id(agent: OffsetsAgent) -> None:
    refused, other = committed(80, number=2, error=25), committed(90, conn=2, number=2)
    assert agent.rows(refused[0], other[0], refused[1]) == []
    assert agent.rows(other[1]) == [(GROUP, TOPIC, 4, 90, "offset_commit")]


@pytest.mark.parametrize("batches", [1, 3])
def test_a_refused_commit_does_not_hide_the_one_before(agent: OffsetsAgent, batches: int) -> None:
    exchanges = [committed(70, number=1), committed(80, number=3), committed(90, number=5, error=25)]
    if batches == 1:
        agent.see(*(sample for exchanged in exchanges for sample in exchanged))
    else:
        for exchanged in exchanges:
            agent.see(*exchanged)
    assert agent.rows() == [(GROUP, TOPIC, 4, 80, "offset_commit")]


def test_a_response_after_more_than_a_minute_is_not_paired(agent: OffsetsAgent) -> None:
    ask, answer = committed(70)
    agent.rows(ask, after_ns=60 * SECOND_NS)
    assert agent.rows(answer) == []


def test_negative_correlation_ids_are_paired(agent: OffsetsAgent) -> None:
    ask, answer = committed(70)
    ask["correlation_id"] = answer["correlation_id"] = -7
    assert len(agent.rows(ask, answer)) == 1


def many(count: int, conn: int = 1, number: int = 0, topic: str = TOPIC) -> list[Samples]:
    """Return an exchange that commits for this many partitions."""
    asked = [{"PartitionIndex": partition, "CommittedOffset": 7} for partition in range(count)]
    answered = [{"PartitionIndex": partition} for partition in range(count)]
    return exchange(
        "OffsetCommit",
        2,
        {"GroupId": GROUP, "Topics": [{"Name": topic, "Partitions": asked}]},
        {"Topics": [{"Name": topic, "Partitions": answered}]},
        conn,
        number,
    )


def test_an_interval_has_a_limited_number_of_rows_and_the_rest_comes_with_the_next(agent: OffsetsAgent) -> None:
    agent.limit(100 << 20)
    for conn in (1, 2):
        agent.see(*many(6_000, conn, topic=f"topic-{conn}"))
    first = agent.rows()
    # The agent's process has both connections: beyond half of the rows it may take an eighth of them.
    assert len(first) == MOST_ROWS // 2 + MOST_ROWS // 8 + 1
    assert agent.left_out == 12_000 - len(first)
    assert len(agent.rows()) == 12_000 - len(first)
    assert agent.rows() == []


def test_events_have_a_thousand_rows_at_most(agent: OffsetsAgent) -> None:
    agent.see(*many(2_500))
    sizes = [len(event["group_positions"]) for event in agent.offsets.report(SECOND_NS, 0, SINCE_BOOT)]
    assert sizes == [ROWS_PER_EVENT, ROWS_PER_EVENT, 500]


def test_events_have_a_limited_number_of_characters(agent: OffsetsAgent) -> None:
    topic = "t".ljust(249, "\1")
    agent.see(*many(900, topic=topic))
    sizes = [len(event["group_positions"]) for event in agent.offsets.report(SECOND_NS, 0, SINCE_BOOT)]
    most = CHARACTERS // len(f"10.0.0.1:9092{GROUP}{topic}")
    assert sizes == [most, 900 - most]


def test_a_peer_that_invents_partitions_neither_displaces_others_nor_takes_more_memory() -> None:
    agent = OffsetsAgent(0)
    agent.limit(2 << 20)
    for conn, address in ((1, "10.0.0.1"), (2, "10.0.0.2")):
        agent.tracker.take(opened(conn, server_side=True, peer=(address, 4000), local=("10.0.0.7", 9092))[0])
    agent.see(*many(100, conn=2, topic="honest"))
    for step in range(100):
        agent.see(*many(1_000, conn=1, number=step, topic=f"invented-{step}"))
        agent.see(*committed(step, conn=2, number=1000 + step))
    rows = agent.rows()
    assert {(topic, partition) for _, topic, partition, *_ in rows} >= {("honest", n) for n in range(100)}
    assert (GROUP, TOPIC, 4, 99, "offset_commit") in rows
    assert agent.left_out > 90_000
    assert agent.offsets.held_bytes <= 1 << 20


def test_requests_that_nobody_answers_are_limited() -> None:
    agent = OffsetsAgent(0)
    agent.limit(400_000)
    for conn, address in ((1, "10.0.0.1"), (2, "10.0.0.2")):
        agent.tracker.take(opened(conn, server_side=True, peer=(address, 4000), local=("10.0.0.7", 9092))[0])
    ask, answer = committed(70, conn=2)
    agent.see(ask)
    for step in range(300):
        agent.see(many(1, conn=1, number=step, topic=f"invented-{step}")[0])
    assert agent.left_out > 0
    assert agent.rows(answer) == [(GROUP, TOPIC, 4, 70, "offset_commit")]
