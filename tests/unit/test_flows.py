"""Frames become `flow` events: what is counted, under which connection, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kafka_probe import flow_events
from kafka_probe.capture.sample import NO_API, Flag
from kafka_probe.events import bucket_of
from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.bounded_tables import Watched
from tests.builders.events import INTERVAL
from tests.builders.messages import GROUP, TOPIC, TOPIC_ID
from tests.builders.samples import (
    by_hand,
    fetch,
    fetched_nothing,
    frame,
    request,
    response,
    stream,
)
from tests.builders.trees import Records

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, HEARTBEAT, OFFSET_FETCH = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_FETCH,
)


@pytest.fixture
def watched() -> Watched:
    return Watched(2, DEFAULT, DEFAULT)


def test_requests_and_responses_of_one_api_and_version_are_one_flow(watched: Watched) -> None:
    watched.see(*(request(METADATA, 12, frame_bytes=40) for _ in range(3)))
    watched.see(response(METADATA, 12, frame_bytes=500))
    flow = watched.flow()
    assert (flow["api"], flow["api_key"], flow["api_version"]) == ("Metadata", METADATA, 12)
    assert (flow["requests"], flow["responses"]) == (3, 1)
    assert (flow["request_bytes"], flow["response_bytes"]) == (120, 500)
    assert not flow["internal"]


def test_connections_apis_and_versions_are_flows_of_their_own(watched: Watched) -> None:
    watched.see(request(METADATA, 12, 1), request(METADATA, 12, 2), request(METADATA, 11, 1), request(HEARTBEAT, 4, 1))
    flows = [(flow["conn_id"], flow["api"], flow["api_version"], flow["requests"]) for flow in watched.report()]
    one, two = f"{1:016x}", f"{2:016x}"
    expected = {(one, "Metadata", 12, 1), (two, "Metadata", 12, 1), (one, "Metadata", 11, 1), (one, "Heartbeat", 4, 1)}
    assert set(flows) == expected
    assert len(flows) == len(expected)


def test_an_interval_begins_with_nothing(watched: Watched) -> None:
    watched.see(request(METADATA, 12))
    assert watched.flow()["requests"] == 1
    assert watched.report() == []
    watched.see(request(METADATA, 12))
    assert watched.flow()["requests"] == 1


def test_many_frames_at_once_count_as_one_by_one() -> None:
    records = [
        built
        for n in range(300)  # so many that latencies are counted as arrays
        for built in (
            request(PRODUCE, 9, 1 + n % 2, client_id=f"client-{n % 2}", frame_bytes=5000 + n, correlation_id=n),
            response(PRODUCE, 9, 1 + n % 2, frame_bytes=90, latency_us=100 * n, correlation_id=n),
            request(FETCH, 13, 1 + n % 2, client_id=f"client-{n % 2}", frame_bytes=70),
            response(FETCH, 13, 1 + n % 3 % 2, latency_us=7 * n),
            fetched_nothing(1 + n % 2, latency_us=500_000 + n),
            request(METADATA, 12, 1 + n % 2, client_id=f"client-{n % 2}"),
        )
    ]
    at_once, one_by_one = Watched(2), Watched(2)
    at_once.see(*records)
    for record in records:
        one_by_one.see(record)

    def flows(watched: Watched) -> list[dict[str, Any]]:
        return sorted(watched.report(), key=lambda flow: (flow["conn_id"], flow["api_key"], flow["api_version"]))

    assert flows(at_once) == flows(one_by_one)


def test_what_is_produced_counts_by_topic(watched: Watched) -> None:
    # The message names one topic twice: 40 records of 5000 bytes, 70 bytes that could not be counted, 3 of 200.
    watched.see(request(PRODUCE, 9), request(PRODUCE, 9))
    (topic,) = watched.flow()["topics"]
    assert (topic["topic"], topic["topic_id"]) == (TOPIC, None)
    assert topic["requests"] == 2
    assert topic["partitions"] == 5
    assert topic["records"] == 2 * (40 + 3)
    assert topic["bytes"] == 2 * (5000 + 70 + 200)
    assert topic["uncounted_bytes"] == 2 * 70


def test_what_is_fetched_counts_by_topic(watched: Watched) -> None:
    watched.see(request(FETCH, 12), response(FETCH, 12), response(FETCH, 12))
    (topic,) = watched.flow()["topics"]
    assert (topic["requests"], topic["partitions"]) == (1, 3)
    assert (topic["records"], topic["bytes"], topic["uncounted_bytes"]) == (80, 2 * 100_064, 2 * 64)
    assert topic["errors"] == {"1": 2}


def test_a_consumer_that_waits_asks_for_all_topics_of_its_session_in_every_interval(watched: Watched) -> None:
    watched.see(fetch(0, ("orders", "sales")), *(fetch(epoch) for epoch in range(1, 100)))
    assert asked(watched.flow()) == {"orders": 100, "sales": 100}
    watched.see(*(fetch(epoch) for epoch in range(100, 300)))
    flow = watched.flow()
    assert asked(flow) == {"orders": 200, "sales": 200}
    assert flow["requests"] == 200


def test_what_changes_a_session_counts_from_its_place_in_the_batch_on(watched: Watched) -> None:
    watched.see(fetch(0, ("orders",), ts_ns=1))
    idle = [fetch(n, ts_ns=10 * n) for n in range(1, 10)]
    watched.see(*idle, fetch(10, ("sales",), ("orders",), ts_ns=55), fetch(5, ("orders",), conn=2, ts_ns=57))
    one, two = sorted(watched.report(), key=lambda flow: str(flow["conn_id"]))
    assert asked(one) == {"orders": 1 + 5, "sales": 1 + 4}
    assert asked(two) == {"orders": 1}


def test_a_session_that_was_refused_begins_anew_with_the_next_full_request(watched: Watched) -> None:
    refused = by_hand("Fetch", 12, {"ErrorCode": 70}, answer=True, ts_ns=3)
    watched.see(fetch(0, ("orders",), ts_ns=1), fetch(1, ts_ns=2), refused, fetch(0, ("sales",), ts_ns=4))
    watched.see(fetch(1, ts_ns=5))
    flow = watched.flow()
    assert asked(flow) == {"orders": 2, "sales": 2}
    assert flow["errors"] == {"70": 1}


def test_a_fetch_without_a_session_asks_for_what_it_names(watched: Watched) -> None:
    watched.see(fetch(0, ("sales",)), *(fetch(-1, ("orders",)) for _ in range(3)))
    assert asked(watched.flow()) == {"sales": 1, "orders": 3}


def test_a_share_consumer_has_a_session_too(watched: Watched) -> None:
    named = {"Topics": [{"TopicId": TOPIC_ID.bytes, "Partitions": [{"PartitionIndex": 0}]}]}
    watched.see(by_hand("ShareFetch", 1, {**named, "GroupId": "share"}))
    watched.see(*(by_hand("ShareFetch", 1, {"ShareSessionEpoch": n, "GroupId": "share"}) for n in range(1, 10)))
    flow = watched.flow()
    assert [(topic["topic_id"], topic["requests"]) for topic in flow["topics"]] == [(TOPIC_ID.hex, 10)]
    assert flow["group"] == "share"


def test_what_a_session_asked_for_in_an_interval_without_topics_is_not_reported_later(watched: Watched) -> None:
    watched.see(fetch(0, ("orders",)), *(fetch(epoch) for epoch in range(1, 10)))
    (shed,) = watched.dispatcher.report(INTERVAL, with_topics=False)
    assert shed
    assert (shed["requests"], shed["topics"]) == (10, [])
    watched.see(fetch(10))
    assert asked(watched.flow()) == {"orders": 1}


def asked(flow: dict[str, Any]) -> dict[str, int]:
    """Return the number of requests by topic."""
    return {topic["topic"]: topic["requests"] for topic in flow["topics"]}


def test_batches_codecs_acks_and_transactions_are_counted(watched: Watched) -> None:
    records = Records(bytes(500), records=7, batches=2, codec=4)
    partitions = {"Name": "orders", "PartitionData": [{"Index": index, "Records": records} for index in (0, 1)]}
    produce = {"TransactionalId": "etl-1", "Acks": -1, "TopicData": [partitions]}
    watched.see(by_hand("Produce", 9, produce), by_hand("Produce", 9, produce))
    flow = watched.flow()
    (topic,) = flow["topics"]
    assert (topic["records"], topic["batches"], topic["codecs"]) == (28, 8, {"zstd": 4})
    assert (flow["acks"], flow["transactional_id"]) == (-1, "etl-1")


def test_what_the_broker_did_not_write_is_refused_in_the_interval_of_its_response(watched: Watched) -> None:
    records = Records(bytes(500), records=7)
    produce = {"Acks": -1, "TopicData": [{"Name": "orders", "PartitionData": [{"Index": 0, "Records": records}]}]}
    refused = {"Responses": [{"Name": "orders", "PartitionResponses": [{"Index": 0, "ErrorCode": 6}]}]}
    for number in (1, 2):
        watched.see(by_hand("Produce", 9, produce, correlation_id=number))
    (topic,) = watched.flow()["topics"]
    assert topic["records"] == 14
    assert "refused_records" not in topic
    watched.see(by_hand("Produce", 9, refused, answer=True, correlation_id=2))
    (topic,) = watched.flow()["topics"]
    assert (topic["topic"], topic["records"], topic["errors"]) == ("orders", 0, {"6": 1})
    assert (topic["refused_records"], topic["refused_bytes"]) == (7, 500)
    assert watched.produces.losses["refusal_unmatched"] == 0


def test_who_fetches_as_a_replica_is_reported_and_a_consumer_is_none(watched: Watched) -> None:
    replica_ids = []
    for version, says in ((12, {"ReplicaId": 2}), (12, {"ReplicaId": -1}), (15, {"ReplicaState": {"ReplicaId": 2}})):
        watched.see(by_hand("Fetch", version, says))
        replica_ids.append(watched.flow()["replica_id"])
    assert replica_ids == [2, None, 2]


def test_a_topic_id_has_its_name_once_a_metadata_response_was_seen(watched: Watched) -> None:
    watched.see(request(FETCH, 13))
    (topic,) = watched.flow()["topics"]
    assert (topic["topic"], topic["topic_id"]) == (None, TOPIC_ID.hex)
    watched.see(request(FETCH, 13, 1), response(METADATA, 12, 2))
    fetched = next(flow for flow in watched.report() if flow["api"] == "Fetch")
    assert [(t["topic"], t["topic_id"]) for t in fetched["topics"]] == [(TOPIC, TOPIC_ID.hex)]


def test_of_two_ids_of_a_name_the_later_one_is_the_topics(watched: Watched) -> None:
    older, newer = (
        by_hand("Metadata", 12, {"Topics": [{"Name": "orders", "TopicId": bytes([n] * 16)}]}, answer=True, ts_ns=n)
        for n in (1, 2)
    )
    watched.see(newer, older, fetch(-1, ("orders",)))
    fetched = next(flow for flow in watched.report() if flow["api"] == "Fetch")
    assert [topic["topic_id"] for topic in fetched["topics"]] == ["02" * 16]


def test_latencies_fall_into_the_buckets_of_the_schema(watched: Watched) -> None:
    watched.see(*(response(METADATA, 12, latency_us=us) for us in (0, 1, 250, 251, 2**32 - 1)))
    assert watched.flow()["latency"] == {str(bucket_of(0)): 2, str(bucket_of(250)): 2, str(bucket_of(2**32 - 1)): 1}


def test_a_fetch_that_waited_for_nothing_is_kept_apart(watched: Watched) -> None:
    watched.see(response(FETCH, 12, latency_us=900), fetched_nothing(latency_us=500_000), fetched_nothing(latency_us=2))
    flow = watched.flow()
    assert flow["responses"] == 3
    assert flow["latency"] == {str(bucket_of(900)): 1}
    assert flow["latency_empty"] == {str(bucket_of(2)): 1, str(bucket_of(500_000)): 1}


def test_a_response_to_an_unseen_request_has_no_api_and_no_latency(watched: Watched) -> None:
    watched.see(request(METADATA, 12))
    watched.see(frame(api_key=NO_API, flags=Flag.RESPONSE, frame_bytes=30))
    unmatched = next(flow for flow in watched.report() if flow["responses"])
    assert (unmatched["api"], unmatched["api_key"], unmatched["api_version"]) == (None, None, None)
    assert (unmatched["responses"], unmatched["response_bytes"]) == (1, 30)
    assert unmatched["latency"] == {}
    assert not unmatched["internal"]


def test_errors_and_throttle_times_add_up(watched: Watched) -> None:
    watched.see(response(FETCH, 12), response(FETCH, 12), response(FETCH, 12))
    flow = watched.flow()
    assert flow["errors"] == {"1": 3, "71": 3}
    assert flow["throttle_ms"] == 3 * 17


def test_made_up_throttle_times_make_no_event_that_the_pipeline_would_refuse(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flow_events.MOST_THROTTLE_MS < 2**48
    monkeypatch.setattr(flow_events, "MOST_THROTTLE_MS", 20)
    watched.see(response(FETCH, 12), response(FETCH, 12))
    assert watched.flow()["throttle_ms"] == 20


def test_an_error_of_a_whole_topic_is_the_topics(watched: Watched) -> None:
    watched.see(response(METADATA, 12))
    errors = {topic["topic"]: topic["errors"] for topic in watched.flow()["topics"]}
    assert errors == {"orders": {"9": 1}, "payments": {"3": 1}}


def test_a_flow_has_the_group_that_its_requests_name(watched: Watched) -> None:
    watched.see(request(OFFSET_COMMIT, 8), response(OFFSET_COMMIT, 8))
    assert watched.flow()["group"] == GROUP


def test_answers_in_the_interval_after_their_requests_have_the_group(watched: Watched) -> None:
    watched.see(request(OFFSET_COMMIT, 8))
    watched.flow()
    watched.see(response(OFFSET_COMMIT, 8))
    assert watched.flow()["group"] == GROUP


def test_a_flow_that_names_several_groups_has_none(watched: Watched) -> None:
    watched.see(request(OFFSET_FETCH, 8))
    assert watched.flow()["group"] is None


def test_frames_of_a_connection_that_ended_in_the_interval_are_reported(watched: Watched) -> None:
    watched.see(request(METADATA, 12))
    watched.close(1)
    assert watched.flow()["requests"] == 1


def test_frames_of_an_unknown_connection_are_counted_as_lost(watched: Watched) -> None:
    watched.see(request(METADATA, 12, 99), request(METADATA, 12, 99), request(METADATA, 12, 1))
    assert watched.flow()["conn_id"] == f"{1:016x}"
    assert watched.tracker.losses["connection_unknown"] == 2


def test_what_a_kafka_probe_does_is_one_row_without_topics(watched: Watched) -> None:
    agent = "kafka-probe-agent-node-1"
    watched.see(request(METADATA, 12, client_id=agent), response(METADATA, 12))
    watched.see(request(PRODUCE, 9, client_id=agent), response(PRODUCE, 9))
    flow = watched.flow()
    assert flow["internal"]
    assert (flow["api"], flow["api_key"], flow["api_version"], flow["topics"]) == (None, None, None, [])
    assert (flow["requests"], flow["responses"]) == (2, 2)


def test_flows_are_the_same_whatever_the_order_of_connections_in_a_batch(watched: Watched) -> None:
    records = stream(*(request(METADATA, 12, conn, frame_bytes=size) for conn, size in ((2, 10), (1, 20), (2, 30))))
    watched.see(records)
    by_conn = {flow["conn_id"]: flow["request_bytes"] for flow in watched.report()}
    assert by_conn == {f"{1:016x}": 20, f"{2:016x}": 40}


def test_sizes_beyond_32_bits_add_up(watched: Watched) -> None:
    many = np.repeat(request(METADATA, 12, frame_bytes=2**30 - 1), 5)
    watched.see(many)
    assert watched.flow()["request_bytes"] == 5 * (2**30 - 1)
