"""The archive of an agent: which frames it sends, at what rate, and which of them a close counts."""

from __future__ import annotations

import pytest

from kafka_probe.archive import archive
from kafka_probe.capture.sample import Flag
from kafka_probe.config import load
from kafka_probe.errors import UsageError
from kafka_probe.events import INTERNAL_CLIENT
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.kernel_allow_list import rules_hash
from tests.builders.fed_agent import Fed
from tests.builders.messages import CLIENT_ID, TOPIC
from tests.builders.samples import (
    ESTABLISHED_TO_CLOSE,
    ESTABLISHED_TO_CLOSE_WAIT,
    Samples,
    by_hand,
    closed,
    fetch,
    fetched_nothing,
    frame,
    gone,
    opened,
    request,
    response,
    stream,
)

METADATA, API_VERSIONS, PRODUCE, HEARTBEAT = ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.PRODUCE, ApiKey.HEARTBEAT
SECOND_NS = 10**9
NORMAL = {"first_state": 4, "sent_ns": 1, "received_ns": 1, "closing_ns": 1, "last_request_bytes": 50}
RESPONSE = int(Flag.RESPONSE)


def exchange(
    conn: int = 1, correlation_id: int = 1, api_key: int = API_VERSIONS, version: int = 0, latency_us: int = 100
) -> Samples:
    samples = stream(request(api_key, version, conn), response(api_key, version, conn, latency_us=latency_us))
    samples["correlation_id"], samples["ts_ns"] = correlation_id, correlation_id * 1000
    return samples


def ids(fed: Fed) -> list[int]:
    """Return the correlation ids of the archived frames."""
    return [sample["correlation_id"] for sample in fed.archived() if sample["part"] == 0]


def test_an_archived_frame_has_what_the_kernel_copied() -> None:
    fed = Fed(archive={"archive": "all"})
    asked = request(METADATA, 12, correlation_id=-5, ts_ns=123, tcp_seq=2**32 - 1, frame_bytes=77)
    answered = response(METADATA, 12, correlation_id=-5, ts_ns=456, latency_us=9, frame_bytes=900)
    fed.see(opened(rx_base=5, tx_base=7), asked, answered)
    first, *others = fed.archived()
    assert (first["monotonic_ns"], first["tcp_seq"]) == (123, 2**32 - 1)
    assert (first["correlation_id"], first["frame_bytes"]) == (-5, 77)
    assert (first["api_key"], first["api_version"], first["flags"], first["part"]) == (METADATA, 12, 0, 0)
    assert (first["conn_id"], first["side"]) == (f"{1:016x}", "client")
    assert first["flow_id"] is not None
    assert first["data"] == asked["data"][0, : asked["size"][0]].tobytes()
    pieces = [sample["data"][: sample["size"]].tobytes() for sample in answered]
    assert [sample["data"] for sample in others] == pieces
    assert {sample["latency_us"] for sample in others} == {9}
    (event,) = fed.archive_sink.events
    assert (event["copy_rules"], event["seq"], event["agent_id"]) == (rules_hash(), 0, fed.agent._sender.agent_id)
    assert event["ts"] == (456 + event["wall_offset_ns"]) // 1000


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("off", []),
        ("all", [1, 1, 2, 2, 3, 3]),
        ("errors", [3, 3]),
        ("slower:1", [2, 2]),
        ("1/1", [1, 1, 2, 2, 3, 3]),
        ("1/1000000000", []),
    ],
)
def test_exchanges_are_chosen_with_both_their_frames(which: str, expected: list[int]) -> None:
    fed = Fed(archive={"archive": which})
    refused = stream(request(HEARTBEAT, 0, correlation_id=3), response(HEARTBEAT, 0, correlation_id=3))
    fed.see(opened(), exchange(correlation_id=1))
    fed.see(exchange(correlation_id=2, latency_us=1000)[:1])
    fed.see(exchange(correlation_id=2, latency_us=1000)[1:], refused)
    assert sorted(ids(fed)) == expected


def test_one_in_n_takes_about_that_part_of_the_exchanges_each_whole() -> None:
    fed = Fed(archive={"archive": "1/10"})
    fed.see(opened(), *(exchange(correlation_id=number) for number in range(2000)))
    chosen = ids(fed)
    assert sorted(chosen) == sorted([*{*chosen}] * 2)
    assert 140 < len({*chosen}) < 270


@pytest.mark.parametrize(
    ("narrowed", "expected"),
    [
        ("api=Meta*", [2, 2]),
        (f"client={CLIENT_ID}", [1, 1, 2, 2, 3, 3]),
        ("client=other", []),
        (f"topic={TOPIC}", [2, 2]),
        (f"topic={TOPIC[:2]}*,api=ApiVersions", []),
        ("workload=java", []),
        ("workload=kafka*", [1, 1, 2, 2, 3, 3]),
    ],
)
def test_a_filter_narrows_by_client_topic_api_and_workload(narrowed: str, expected: list[int]) -> None:
    fed = Fed(archive={"archive": "all", "archive_filter": narrowed})
    fed.see(opened(tgid=2**22 + 1, comm=b"kafka-thing"), exchange(correlation_id=1))
    fed.see(exchange(correlation_id=2, api_key=METADATA, version=1), exchange(correlation_id=3))
    assert ids(fed) == expected


def test_an_exchange_is_archived_once_its_response_is_seen() -> None:
    fed = Fed(archive={"archive": "all", "archive_filter": "topic=*"})
    fed.see(opened(), request(PRODUCE, 9, correlation_id=4))
    assert ids(fed) == []
    fed.see(response(PRODUCE, 9, correlation_id=4))
    assert ids(fed) == [4, 4]


def test_frames_of_kafka_probe_itself_are_not_archived() -> None:
    fed = Fed(archive={"archive": "all"})
    own = request(METADATA, 1, client_id=f"{INTERNAL_CLIENT}agent")
    fed.see(opened(), own)
    fed.see(own, closed(owner_exiting=1), gone())
    fed.report()
    assert fed.archived() == []
    assert fed.events("close")[0]["recorded_frames"] is None


@pytest.mark.parametrize(
    ("how", "recorded"),
    [
        ({}, None),
        ({"in_flight": 1}, 2),
        ({"owner_exiting": 1}, 2),
        ({"error": 104}, 2),
        ({"first_state": ESTABLISHED_TO_CLOSE}, 2),
        ({"first_state": ESTABLISHED_TO_CLOSE_WAIT}, 2),
        ({"closing_ns": 1 + SECOND_NS}, 2),
    ],
)
def test_the_last_exchange_of_a_connection_that_ended_abnormally_is_archived(
    how: dict[str, int], recorded: int | None
) -> None:
    fed = Fed(archive={})
    fed.see(opened(), exchange(), opened(2), exchange(2, 9), stream(closed(1, **NORMAL | how), gone(1)))
    fed.report()
    (close,) = fed.events("close")
    assert (close["recorded_frames"], close["evicted"]) == (recorded, None if recorded is None else False)
    assert ids(fed) == [1] * (recorded or 0)


def test_a_close_says_that_the_last_request_was_evicted() -> None:
    fed = Fed(archive={"recorder_bytes": "64KiB"})
    fed.see(opened(), exchange(), *(opened(conn) for conn in range(2, 500)))
    for conn in range(2, 500):
        fed.see(exchange(conn))
    fed.see(closed(1, **NORMAL | {"in_flight": 1}))
    fed.report()
    (close,) = fed.events("close")
    assert (close["recorded_frames"], close["evicted"]) == (0, True)
    assert fed.events("agent")[0]["losses"]["recorder_evicted"] > 0


def test_of_a_busy_connection_the_newest_frames_are_archived() -> None:
    fed = Fed(archive={})
    fed.see(opened(), *(exchange(correlation_id=number) for number in range(1000)), closed(**NORMAL | {"in_flight": 1}))
    fed.report()
    firsts = [one for one in fed.archived() if not one["part"]]
    asked, answered = ([one["correlation_id"] for one in firsts if one["flags"] & 1 == way] for way in (0, 1))
    assert asked == [*range(1000 - archive._MOST_SAMPLES, 1000)]
    assert answered == [*range(1000 - archive._MOST_SAMPLES // 2, 1000)]  # they have two samples each


def test_samples_beyond_the_rate_are_counted_and_those_of_bad_ends_have_half_of_it() -> None:
    fed = Fed(archive={"archive": "all", "archive_bytes_per_s": "64KiB"})
    many = [exchange(correlation_id=number) for number in range(2000)]
    fed.see(opened(), *many)
    before = len(fed.archived())
    fed.see(closed(**NORMAL | {"in_flight": 1}))
    fed.report()
    losses = fed.events("agent")[0]["losses"]
    assert 0 < before < 2000
    assert losses["archive_rate"] == len(stream(*many)) - before
    assert {*range(2000 - archive._MOST_SAMPLES, 2000)} <= {*ids(fed)}
    assert len(fed.archived()) == before + len({(one["tcp_seq"], one["part"]) for one in fed.archived()[before:]})


def test_a_close_does_not_send_frames_again_that_were_archived_before() -> None:
    fed = Fed(archive={"archive": "all"})
    closing = closed(**NORMAL | {"in_flight": 1})
    fed.see(opened(), exchange(correlation_id=1), exchange(correlation_id=2), closing, gone())
    fed.report()
    assert ids(fed) == [1, 1, 2, 2]
    assert fed.events("close")[0]["recorded_frames"] == 4


@pytest.mark.parametrize("others", [0, 3000])
def test_the_last_exchange_is_archived_whole_however_long_its_response_is(others: int) -> None:
    fed = Fed(archive={"archive_bytes_per_s": "100MiB"})
    long = frame(1, data=bytes(20_000), api_key=METADATA, flags=RESPONSE, correlation_id=5, ts_ns=9)
    fed.see(opened(), request(METADATA, 12, correlation_id=5, ts_ns=8), long)
    crowd = range(2, 2 + others)
    for conn in crowd:
        fed.see(opened(conn), exchange(conn))
    fed.see(*(closed(conn, **NORMAL | {"in_flight": 1}) for conn in (1, *crowd)))
    fed.report()
    close = next(event for event in fed.events("close") if event["conn_id"] == f"{1:016x}")
    assert (close["recorded_frames"], close["evicted"]) == (2, False)
    of_first = [one for one in fed.archived() if one["conn_id"] == close["conn_id"]]
    assert [one["part"] for one in of_first if one["flags"] & 1] == [*range(len(long))]


def test_a_topic_filter_finds_an_exchange_whose_response_has_a_shape_seen_before_its_request() -> None:
    fed = Fed(archive={"archive": "all", "archive_filter": "topic=orders"})
    nothing = fetched_nothing(correlation_id=4)
    fed.see(opened(), fetch(2, correlation_id=4), nothing)
    fed.see(fetched_nothing(correlation_id=5), fetch(3, ("orders",), correlation_id=5, ts_ns=1))
    assert ids(fed) == [5, 5]


def test_a_frame_of_an_unknown_connection_is_not_archived() -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(frame(7, data=b"\xff\xff", api_key=API_VERSIONS))
    fed.report()
    assert fed.archived() == []
    assert fed.events("agent")[0]["losses"]["connection_unknown"] == 1


def test_a_request_that_has_no_response_is_archived_at_once() -> None:
    fed = Fed(archive={"archive": "all", "archive_filter": f"topic={TOPIC}"})
    produced = {"Acks": 0, "TopicData": [{"Name": TOPIC, "PartitionData": [{"Index": 0}]}]}
    fed.see(opened(), by_hand("Produce", 8, produced, correlation_id=8))
    assert ids(fed) == [8]


def test_without_a_recorder_all_frames_can_be_archived_and_a_close_has_none() -> None:
    fed = Fed(archive={"archive": "all", "recorder_bytes": "0"})
    fed.see(opened(), exchange(), closed(**NORMAL | {"in_flight": 1}), gone())
    fed.report()
    assert ids(fed) == [1, 1]
    assert fed.events("close")[0]["recorded_frames"] is None


@pytest.mark.parametrize("size", ["1", "1KiB", "-1"])
def test_a_recorder_that_could_hold_nothing_is_refused(size: str) -> None:
    with pytest.raises(UsageError, match="--recorder-bytes: "):
        load({"recorder_bytes": size})


@pytest.mark.parametrize("chosen", [{"archive": "errors"}, {"archive": "all", "archive_filter": "topic=orders"}])
@pytest.mark.parametrize("size", ["0", "7MiB"])
def test_an_archive_that_searches_the_recorder_needs_a_large_one(chosen: dict[str, str], size: str) -> None:
    with pytest.raises(UsageError, match=r"--archive: .* need recorder_bytes of at least 8 MiB"):
        load({**chosen, "recorder_bytes": size})
    assert load({**chosen, "recorder_bytes": "8MiB"}).archives


@pytest.mark.parametrize("names", [{"topic": "kafka-probe.frames"}, {"topic": "a", "archive_topic": "a"}])
def test_frames_do_not_share_the_topic_of_events(names: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--archive-topic: must differ from topic"):
        load(names)


@pytest.mark.parametrize("text", ["orders", "topic=", "name=x", "topic=a,topic=b"])
def test_a_filter_that_is_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="--archive-filter: must be client=PATTERN"):
        load({"archive_filter": text})
