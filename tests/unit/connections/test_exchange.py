"""Requests and their responses: pairing, order, and the event for both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kafka_probe.capture.sample import NO_API, Flag
from kafka_probe.connections.exchange import EVENT_ENTRIES, MOST_ADMINISTRATION, Exchanges
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.request_events import CHARACTERS, ROWS
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import INTERNAL_CLIENT, RequestEvent
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.workloads import WorkloadResolver
from tests.builders.bounded_tables import RESOLVER
from tests.builders.event_schema import assert_body_valid
from tests.builders.events import SINCE_BOOT
from tests.builders.messages import GROUP, TOPIC, TOPIC_ID, case
from tests.builders.samples import Samples as Frames
from tests.builders.samples import by_hand, fetch, frame, opened, produced_without_acks, request, response, stream
from tests.builders.trees import Records

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, HEARTBEAT = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.HEARTBEAT,
)


class Watched:
    """Connections 1 and 2, and the exchanges on them."""

    def __init__(self, *, internal: bool = False) -> None:
        self.tracker = Tracker(WorkloadResolver())
        self.names = TopicNames()
        self.reader = FrameReader()
        self.exchanges = Exchanges(self.tracker, self.names, internal=internal)
        for conn in (1, 2):
            self.tracker.take(opened(conn)[0])

    def see(self, *samples: Frames) -> list[Any]:
        """Return the events of a batch, in their order."""
        batch = list(self.reader.read(stream(*samples)))
        for frames in batch:
            for conn in frames.column("conn").tolist():
                connection = self.tracker.get(conn)
                assert connection
                self.tracker.learn(connection, frames.shape.facts)
        self.exchanges.pair(batch)
        return valid(self.exchanges.take_events(SINCE_BOOT))

    def close(self, conn: int) -> list[Any]:
        connection = self.tracker.gone(conn)
        assert connection
        self.exchanges.forget_connection(connection)
        return valid(self.exchanges.take_events(SINCE_BOOT))


def valid(events: Iterable[RequestEvent]) -> list[Any]:
    made = list(events)
    for event in made:
        assert_body_valid(event)
    return made


def delete(conn: int, *names: str, **fields: Any) -> Frames:
    return by_hand("DeleteTopics", 4, {"TopicNames": names}, conn, **fields)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_request_and_its_response_are_one_event(watched: Watched) -> None:
    asked = request(METADATA, 12, correlation_id=5, frame_bytes=40, ts_ns=1_000_000)
    answered = response(METADATA, 12, correlation_id=5, frame_bytes=500, latency_us=2000, ts_ns=3_000_000)
    (event,) = watched.see(asked, answered)
    assert (event["api"], event["api_key"], event["api_version"]) == ("Metadata", METADATA, 12)
    assert (event["correlation_id"], event["latency_us"], event["throttle_ms"]) == (5, 2000, 17)
    assert (event["request_bytes"], event["response_bytes"]) == (40, 500)
    assert event["errors"] == {"3": 1, "9": 1}
    assert event["status"] == "complete"
    assert event["client"]["id"] == "billing-1"


def test_the_response_may_come_in_a_later_batch(watched: Watched) -> None:
    assert watched.see(request(METADATA, 12, correlation_id=5)) == []
    assert len(watched.see(response(METADATA, 12, correlation_id=5))) == 1


@pytest.mark.parametrize(("internal", "events"), [(False, 0), (True, 1)])
def test_own_requests_are_no_events_unless_wanted(internal: bool, events: int) -> None:
    watched = Watched(internal=internal)
    asked = request(METADATA, 12, correlation_id=5, client_id=f"{INTERNAL_CLIENT}sink")
    assert len(watched.see(asked, response(METADATA, 12, correlation_id=5))) == events


def test_equal_correlation_ids_of_two_connections_are_two_exchanges(watched: Watched) -> None:
    watched.see(request(METADATA, 12, 1, correlation_id=5), request(HEARTBEAT, 4, 2, correlation_id=5))
    (event,) = watched.see(response(HEARTBEAT, 4, 2, correlation_id=5))
    assert (event["api"], event["conn_id"]) == ("Heartbeat", f"{2:016x}")


def test_exchanges_come_in_the_order_of_their_responses(watched: Watched) -> None:
    requests = [request(METADATA, 12, correlation_id=n, ts_ns=n) for n in range(6)]
    # Of three shapes, so that the batch is not in the order of time.
    api = (METADATA, HEARTBEAT, METADATA, OFFSET_COMMIT, HEARTBEAT, METADATA)
    responses = [response(key, 4, correlation_id=n, ts_ns=100 + n) for n, key in enumerate(api)]
    assert [event["correlation_id"] for event in watched.see(*requests, *responses)] == list(range(6))


def test_a_response_of_the_same_nanosecond_comes_after_its_request(watched: Watched) -> None:
    # Frames come by shape in the order in which shapes were learned: this response's is the first.
    assert watched.see(response(HEARTBEAT, 4, correlation_id=0)) == []
    both = [build(HEARTBEAT, 4, correlation_id=1, ts_ns=7) for build in (response, request)]
    assert [event["correlation_id"] for event in watched.see(*both)] == [1]


def test_a_response_without_its_request_is_no_exchange(watched: Watched) -> None:
    assert watched.see(response(METADATA, 12, correlation_id=5)) == []


def test_a_request_whose_answer_was_lost_is_reported_with_the_next_answer(watched: Watched) -> None:
    watched.see(*(request(METADATA, 12, correlation_id=n, ts_ns=n) for n in (1, 2, 3)))
    lost, answered = watched.see(response(METADATA, 12, correlation_id=2, ts_ns=10))
    assert (lost["correlation_id"], lost["response_bytes"], lost["latency_us"]) == (1, None, None)
    assert (answered["correlation_id"], answered["response_bytes"] is None) == (2, False)
    assert [event["correlation_id"] for event in watched.close(1)] == [3]


def test_a_produce_request_without_acks_waits_for_no_answer(watched: Watched) -> None:
    (event,) = watched.see(produced_without_acks(correlation_id=5))
    assert event["api"] == "Produce"
    assert (event["response_bytes"], event["latency_us"], event["throttle_ms"]) == (None, None, None)
    assert watched.close(1) == []


def test_a_produce_request_with_acks_does(watched: Watched) -> None:
    assert watched.see(request(PRODUCE, 9, correlation_id=5)) == []
    assert len(watched.see(response(PRODUCE, 9, correlation_id=5))) == 1


def test_what_the_end_of_a_connection_left_unanswered_is_reported(watched: Watched) -> None:
    watched.see(*(request(METADATA, 12, correlation_id=n, ts_ns=n) for n in (1, 2, 3)), request(METADATA, 12, 2))
    watched.see(response(METADATA, 12, correlation_id=1))
    left = watched.close(1)
    assert [(event["correlation_id"], event["response_bytes"]) for event in left] == [(2, None), (3, None)]


def test_what_the_end_of_the_agent_leaves_unanswered_is_reported_if_it_changes_the_cluster(watched: Watched) -> None:
    watched.see(request(METADATA, 12, correlation_id=1), delete(1, "orders", correlation_id=2))
    watched.see(delete(2, "audit", correlation_id=3))
    watched.exchanges.finish()
    left = valid(watched.exchanges.take_events(SINCE_BOOT))
    assert [(event["api"], event["correlation_id"], event["response_bytes"]) for event in left] == [
        ("DeleteTopics", 2, None),
        ("DeleteTopics", 3, None),
    ]
    assert watched.close(1) == watched.close(2) == []


def test_our_own_traffic_is_not_reported(watched: Watched) -> None:
    asked = request(METADATA, 12, client_id="kafka-probe-agent-node-1")
    assert watched.see(asked, response(METADATA, 12)) == []
    assert watched.close(1) == []


def test_a_produced_partition_has_its_records_offset_and_error(watched: Watched) -> None:
    (event,) = watched.see(request(PRODUCE, 9), response(PRODUCE, 9))
    partitions = {row["partition"]: row for row in event["topics"]}
    assert all(row["topic"] == TOPIC for row in partitions.values())
    written = {
        n: (row.get("records"), row.get("bytes"), row.get("offset"), row["error"]) for n, row in partitions.items()
    }
    assert written == {
        0: (40, 5000, 1234, 0),
        1: (3, 200, None, 0),
        7: (None, 70, -1, 6),
        8: (None, None, None, 0),
        9: (None, None, None, 0),
    }


def test_a_fetched_partition_has_the_offset_asked_for_and_the_records_given(watched: Watched) -> None:
    (event,) = watched.see(request(FETCH, 12), response(FETCH, 12))
    partition = next(row for row in event["topics"] if row["partition"] == 3)
    assert (partition["offset"], partition["records"], partition["bytes"]) == (1 << 40, 40, 100_000)


def test_an_exchange_says_who_asked_and_how(watched: Watched) -> None:
    (event,) = watched.see(fetch(8, ("orders",)), by_hand("Fetch", 12, {"SessionId": 7, "ErrorCode": 71}, answer=True))
    assert (event["session_id"], event["session_epoch"], event["max_wait_ms"]) == (7, 8, 0)
    assert (event["errors"], event["error_names"]) == ({"71": 1}, {"INVALID_FETCH_SESSION_EPOCH": 1})


def test_what_a_request_leaves_to_the_broker_is_what_the_broker_gave(watched: Watched) -> None:
    asked = {"GroupId": "etl", "MemberId": "", "SessionTimeoutMs": 45_000, "GroupInstanceId": "etl-0"}
    given = {"MemberId": "etl-0-4711", "GenerationId": 3, "ProtocolName": "range"}
    (event,) = watched.see(by_hand("JoinGroup", 7, asked), by_hand("JoinGroup", 7, given, answer=True))
    assert (event["group"], event["member_id"], event["instance_id"]) == ("etl", "etl-0-4711", "etl-0")
    assert (event["generation"], event["session_timeout_ms"], event["assignor"]) == (3, 45_000, "range")


def test_an_exchange_that_names_several_members_has_none(watched: Watched) -> None:
    members = {"Members": [{"MemberId": "one"}, {"MemberId": "two"}]}
    (event,) = watched.see(by_hand("LeaveGroup", 4, members), by_hand("LeaveGroup", 4, {}, answer=True))
    assert "member_id" not in event


def test_a_partition_says_how_its_records_were_packed(watched: Watched) -> None:
    sets = [Records(bytes(500), flags=1, codec=4), Records(bytes(70), producer_id=-1, codec=0)]
    partitions = [{"Index": index, "Records": records} for index, records in enumerate(sets)]
    produce = by_hand("Produce", 9, {"TopicData": [{"Name": "orders", "PartitionData": partitions}]})
    (event,) = watched.see(produce)
    first, second = event["topics"]
    assert (first["codec"], first["transactional"], first["producer_id"], first["batches"]) == ("zstd", True, 4000, 1)
    assert (second["codec"], second["transactional"], second.get("producer_id")) == ("none", False, None)


def test_a_topic_without_partitions_has_one_row(watched: Watched) -> None:
    (event,) = watched.see(request(METADATA, 12), response(METADATA, 12))
    missing = [(row["partition"], row["error"]) for row in event["topics"] if row["topic"] == "payments"]
    assert missing == [(None, 3)]


def test_topic_ids_have_their_names_once_they_are_known(watched: Watched) -> None:
    watched.names.learn(case(METADATA, 12, response=True).facts, "10.0.0.1")
    (event,) = watched.see(request(FETCH, 13), response(FETCH, 13))
    assert {(row["topic"], row["topic_id"]) for row in event["topics"]} == {(TOPIC, TOPIC_ID.hex)}


def test_an_exchange_names_its_group(watched: Watched) -> None:
    (event,) = watched.see(request(OFFSET_COMMIT, 8), response(OFFSET_COMMIT, 8))
    assert event["group"] == GROUP
    assert event["errors"] == {"25": 2}


@pytest.mark.parametrize("cut", ["request", "response"])
def test_a_frame_that_was_cut_gives_the_exchange_its_status(watched: Watched, cut: str) -> None:
    frames = {"request": request(OFFSET_COMMIT, 8), "response": response(OFFSET_COMMIT, 8)}
    frames[cut]["size"] = 20
    frames[cut]["flags"] |= int(Flag.CUT)
    (event,) = watched.see(*frames.values())
    assert event["status"] == "truncated"


def test_of_a_frame_that_names_very_many_partitions_the_first_are_in_the_event(watched: Watched) -> None:
    partitions = [{"PartitionIndex": partition, "CommittedOffset": 7} for partition in range(ROWS + 5)]
    asked = {"GroupId": "billing", "Topics": [{"Name": "orders", "Partitions": partitions}]}
    (event,) = watched.see(by_hand("OffsetCommit", 7, asked), by_hand("OffsetCommit", 7, {}, answer=True))
    assert [row["partition"] for row in event["topics"]] == list(range(ROWS))
    assert {row["offset"] for row in event["topics"]} == {7}
    assert watched.exchanges.losses["request_topic_limit"] == 1
    assert event["status"] == "truncated"


def test_of_too_many_requests_in_flight_those_that_wait_longest_end_without_a_response() -> None:
    tracker, reader = Tracker(RESOLVER), FrameReader()
    exchanges = Exchanges(tracker, TopicNames(), limit_bytes=20_000)
    for conn in range(1, 41):
        tracker.take(opened(conn)[0])
        exchanges.pair(list(reader.read(request(METADATA, 12, conn, correlation_id=5))))
    events: list[Any] = [*exchanges.take_events(SINCE_BOOT)]
    assert 0 < exchanges.losses["request_limit"] == len(events) < 40
    assert [event["conn_id"] for event in events] == [f"{conn:016x}" for conn in range(1, len(events) + 1)]
    assert {event["response_bytes"] for event in events} == {None}

    def answered(conn: int) -> int:
        exchanges.pair(list(reader.read(response(METADATA, 12, conn, correlation_id=5))))
        return len(list(exchanges.take_events(SINCE_BOOT)))

    assert (answered(1), answered(40)) == (0, 1)


def test_a_request_whose_correlation_id_is_used_again_has_no_response(watched: Watched) -> None:
    ask = [by_hand("DeleteTopics", 4, {"TopicNames": [name]}, correlation_id=7) for name in ("junk", "orders")]
    first, second = watched.see(*ask, by_hand("DeleteTopics", 4, {}, answer=True, correlation_id=7, frame_bytes=9))
    assert [row["topic"] for event in (first, second) for row in event["topics"]] == ["junk", "orders"]
    assert (first["response_bytes"], second["response_bytes"]) == (None, 9)


def test_an_event_has_names_up_to_a_number_of_characters(watched: Watched) -> None:
    names = [f"{number:03}".ljust(249, "\1") for number in range(1200)]
    (event,) = watched.see(
        by_hand("DeleteTopics", 4, {"TopicNames": names}), by_hand("DeleteTopics", 4, {}, answer=True)
    )
    assert CHARACTERS - 249 < sum(len(row["topic"]) for row in event["topics"]) <= CHARACTERS
    assert event["status"] == "truncated"


def test_requests_of_administration_are_paired_alone_within_the_share_of_their_peer() -> None:
    watched = Watched()
    watched.exchanges.pair_all(pair_all=False)

    def seen(*samples: Frames) -> list[Any]:
        batch = watched.exchanges.chosen(list(watched.reader.read(stream(*samples))))
        watched.exchanges.pair(batch)
        return valid(watched.exchanges.take_events(SINCE_BOOT))

    assert seen(request(METADATA, 12, correlation_id=1), response(METADATA, 12, correlation_id=1)) == []
    unknown = frame(1, api_key=NO_API, flags=Flag.RESPONSE, correlation_id=2, frame_bytes=9)
    (event,) = seen(delete(1, "orders", correlation_id=2), unknown)
    assert (event["api"], event["response_bytes"]) == ("DeleteTopics", 9)
    count, entries = MOST_ADMINISTRATION // EVENT_ENTRIES, EVENT_ENTRIES + 1
    # One peer may use half of the limit, of which the request above has a part, and an eighth of it when more is used.
    admitted = MOST_ADMINISTRATION // 2 // entries - 1 + MOST_ADMINISTRATION // 8 // entries
    assert len(seen(*(delete(1, "x", correlation_id=3) for _ in range(count)))) == admitted
    assert watched.exchanges.losses["administration_limit"] == count - admitted
    watched.exchanges.begin_interval()
    many = [f"{number}" for number in range(MOST_ADMINISTRATION // 2)]
    large = (by_hand("DeleteTopics", 4, {"TopicNames": many}, correlation_id=3) for _ in range(9))
    events = seen(delete(1, "x", correlation_id=3), *large)
    # The id is used again, so each request that is admitted ends the one before. A large one takes an eighth.
    assert [len(event["topics"]) for event in events] == [1, *(len(many) for _ in range(4))]
    watched.exchanges.begin_interval()
    (event,) = seen(delete(1, "y", correlation_id=4), delete(1, "z", correlation_id=4))
    assert [row["topic"] for row in event["topics"]] == ["y"]


def test_what_is_not_administration_waits_no_longer_once_it_is_left_out(watched: Watched) -> None:
    watched.see(request(METADATA, 12, correlation_id=5), delete(1, "orders", correlation_id=6))
    watched.exchanges.pair_all(pair_all=False)
    assert [event["api"] for event in watched.close(1)] == ["DeleteTopics"]


def test_own_requests_that_change_the_cluster_are_events_in_any_case(watched: Watched) -> None:
    watched.see(request(METADATA, 12, client_id=f"{INTERNAL_CLIENT}x", correlation_id=1))
    asked = delete(1, "orders", correlation_id=2)
    (event,) = watched.see(asked, by_hand("DeleteTopics", 4, {}, answer=True, correlation_id=2))
    assert event["api"] == "DeleteTopics"
