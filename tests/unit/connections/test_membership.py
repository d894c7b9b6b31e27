"""Changes of the members of groups are `request` events without `--requests`, with what changed and why."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_probe.capture.sample import NO_API, Flag
from kafka_probe.connections.exchange import MOST_MEMBERSHIP, Exchanges
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.load_shedding import LoadShedding
from kafka_probe.processing import _MEASURED
from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.setting_types import ExchangeSelection
from kafka_probe.workloads import WorkloadResolver
from tests.builders.event_schema import assert_body_valid
from tests.builders.events import SINCE_BOOT
from tests.builders.samples import Samples as Frames
from tests.builders.samples import by_hand, frame, opened, stream
from tests.builders.trees import Tree

JOIN, SYNC, LEAVE, BEAT, CONSUMER = "JoinGroup", "SyncGroup", "LeaveGroup", "Heartbeat", "ConsumerGroupHeartbeat"
VERSIONS = {JOIN: 9, SYNC: 5, LEAVE: 5, BEAT: 4, CONSUMER: 1, "ShareGroupHeartbeat": 1, "StreamsGroupHeartbeat": 0}
JAVA = "apache-kafka-java"
MEMBER = {"GroupId": "billing", "MemberId": "m1"}
ASSIGNED: Any = {"Assignment": {"TopicPartitions": [{"TopicId": bytes(range(16)), "Partitions": [0, 1]}]}}


class Watched:
    """Connections 1 and 2, and the events of an agent without `--requests`."""

    def __init__(self) -> None:
        self.tracker = Tracker(WorkloadResolver())
        self.reader = FrameReader(_MEASURED)
        self.exchanges = Exchanges(self.tracker, TopicNames())
        self.exchanges.pair_all(pair_all=False)
        self.load_shedding = LoadShedding(ExchangeSelection("off"), None)
        for conn in (1, 2):
            self.tracker.take(opened(conn)[0])

    def see(self, *samples: Frames, software: str | None = None) -> list[Any]:
        """Return the events of a batch."""
        batch = list(self.reader.read(stream(*samples)))
        for frames in batch:
            for conn in frames.column("conn").tolist():
                connection = self.tracker.get(conn)
                assert connection
                self.tracker.learn(connection, frames.shape.facts)
                connection.software_name = software
        if chosen := self.exchanges.chosen(batch):
            self.exchanges.pair(chosen)
        events = [*self.load_shedding.wanted(self.exchanges.take_events(SINCE_BOOT))]
        for event in events:
            assert_body_valid(event)
        return events


@pytest.fixture
def watched() -> Watched:
    return Watched()


def ask(name: str, number: int = 1, conn: int = 1, **fields: object) -> Frames:
    """Return a request with the correlation id `number`."""
    tree: Tree = {**MEMBER, **fields}
    return by_hand(name, VERSIONS[name], tree, conn, correlation_id=number, frame_bytes=50, ts_ns=1_000_000 * number)


def answer(name: str, number: int = 1, conn: int = 1, error: str | None = None, **fields: object) -> Frames:
    """Return the response to such a request, half a millisecond later."""
    tree: Tree = {"ErrorCode": ERROR_CODES[error] if error else 0, **fields}
    times = {"ts_ns": 1_000_000 * number + 500_000, "latency_us": 500}
    return by_hand(name, VERSIONS[name], tree, conn, answer=True, correlation_id=number, frame_bytes=50, **times)


def leaving(reason: str | None) -> Frames:
    return ask(LEAVE, Members=[{"MemberId": "m1", "Reason": reason}])


@pytest.mark.parametrize(
    ("asked", "answered", "change"),
    [
        (ask(JOIN), answer(JOIN, GenerationId=7, MemberId="m1"), "rejoined"),
        (ask(JOIN, MemberId=""), answer(JOIN, GenerationId=7, MemberId="m1"), "joined"),
        (ask(JOIN, MemberId=""), answer(JOIN, error="MEMBER_ID_REQUIRED", MemberId="m1"), "new"),
        (ask(JOIN), answer(JOIN, error="UNKNOWN_MEMBER_ID"), "removed"),
        (ask(JOIN), answer(JOIN, error="GROUP_MAX_SIZE_REACHED"), "refused"),
        (ask(SYNC, GenerationId=7), answer(SYNC), "assigned"),
        (ask(SYNC, GenerationId=7), answer(SYNC, error="FENCED_INSTANCE_ID"), "fenced"),
        (leaving(None), answer(LEAVE), "left"),
        (leaving(None), answer(LEAVE, Members=[{"MemberId": "m1", "ErrorCode": 25}]), "removed"),
        (ask(BEAT), answer(BEAT, error="UNKNOWN_MEMBER_ID"), "removed"),
        (ask(CONSUMER, MemberEpoch=0), answer(CONSUMER, MemberEpoch=4), "joined"),
        (ask(CONSUMER, MemberEpoch=0), answer(CONSUMER, MemberEpoch=4, **ASSIGNED), "joined"),
        (ask(CONSUMER, MemberEpoch=0), answer(CONSUMER, error="UNKNOWN_MEMBER_ID"), "removed"),
        (ask(CONSUMER, MemberEpoch=-1), answer(CONSUMER, MemberEpoch=-1), "left"),
        (ask(CONSUMER, MemberEpoch=-2), answer(CONSUMER, MemberEpoch=-2), "left"),
        (ask(CONSUMER, MemberEpoch=4), answer(CONSUMER, MemberEpoch=5, **ASSIGNED), "assigned"),
        (ask(CONSUMER, MemberEpoch=4), answer(CONSUMER, error="FENCED_MEMBER_EPOCH"), "fenced"),
        (ask(CONSUMER, MemberEpoch=0), answer(CONSUMER, error="UNRELEASED_INSTANCE_ID"), "refused"),
        (ask("ShareGroupHeartbeat", MemberEpoch=0), answer("ShareGroupHeartbeat", MemberEpoch=1), "joined"),
        (ask("StreamsGroupHeartbeat", MemberEpoch=-1), answer("StreamsGroupHeartbeat", MemberEpoch=-1), "left"),
    ],
)
@pytest.mark.parametrize("batches", [1, 2])
def test_what_an_exchange_changed_for_a_member(
    watched: Watched, asked: Frames, answered: Frames, change: str, batches: int
) -> None:
    events = watched.see(asked, answered) if batches == 1 else watched.see(asked) + watched.see(answered)
    (event,) = events
    assert (event["membership"], event["group"], event["member_id"]) == (change, "billing", "m1")
    assert (event["latency_us"], "reason" in event) == (500, False)
    assert event["topics"] == []
    assert not any(watched.exchanges.losses.values())


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (ask(JOIN), answer(JOIN, error="REBALANCE_IN_PROGRESS")),
        (ask(SYNC), answer(SYNC, error="REBALANCE_IN_PROGRESS")),
        (ask(LEAVE), answer(LEAVE, error="NOT_COORDINATOR")),
        (ask(BEAT), answer(BEAT)),
        (ask(BEAT), answer(BEAT, error="REBALANCE_IN_PROGRESS")),
        (ask(CONSUMER, MemberEpoch=4), answer(CONSUMER, MemberEpoch=4)),
        (ask(CONSUMER, MemberEpoch=0), answer(CONSUMER, error="COORDINATOR_LOAD_IN_PROGRESS")),
    ],
)
def test_an_exchange_that_changes_nothing_is_no_event(watched: Watched, asked: Frames, answered: Frames) -> None:
    assert watched.see(asked, answered) == []
    assert watched.see(asked) == []
    assert watched.see(answered) == []
    assert not any(watched.exchanges.losses.values())


def test_the_generation_and_epoch_of_a_change_are_those_of_the_response(watched: Watched) -> None:
    joined = watched.see(ask(JOIN), answer(JOIN, GenerationId=7, MemberId="m1"))
    epoch = watched.see(ask(CONSUMER, 2, MemberEpoch=0), answer(CONSUMER, 2, MemberEpoch=4))
    assert (joined[0]["generation"], epoch[0]["member_epoch"]) == (7, 4)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("consumer poll timeout has expired.", "poll_timeout"),
        ("the consumer is being closed", "close"),
        ("the consumer unsubscribed from all topics", "unsubscribe"),
        ("something else", "other"),
        ("", None),
        (None, None),
    ],
)
def test_a_reason_of_the_java_client_is_known_by_its_length(
    watched: Watched, reason: str | None, expected: str | None
) -> None:
    (event,) = watched.see(leaving(reason), answer(LEAVE), software=JAVA)
    assert event.get("reason") == expected
    for software in ("kgo", None):
        (event,) = watched.see(leaving(reason), answer(LEAVE), software=software)
        assert event.get("reason") == (expected and "other")
    assert reason is None or reason == "" or reason not in str(event)


def test_a_member_joins_again_because_metadata_changed(watched: Watched) -> None:
    asked = ask(JOIN, Reason="cached metadata has changed")
    (event,) = watched.see(asked, answer(JOIN, GenerationId=7), software=JAVA)
    assert event["reason"] == "metadata_change"
    streams = ask(JOIN, Reason="Scheduled probing rebalance", Protocols=[{"Name": "stream", "Metadata": b""}])
    (event,) = watched.see(streams, answer(JOIN, GenerationId=8), software=JAVA)
    assert event["reason"] == "other"


def test_a_new_member_gives_no_reason_of_its_own(watched: Watched) -> None:
    asked = ask(JOIN, Reason="need to re-join with the given member-id: m1")
    (event,) = watched.see(asked, answer(JOIN, GenerationId=7), software=JAVA)
    assert "reason" not in event


def test_a_request_that_removes_several_members_names_them_without_a_reason(watched: Watched) -> None:
    by_id, by_instance = ({"MemberId": "m1"}, {"MemberId": "", "GroupInstanceId": "i2"})
    named = [{**one, "Reason": "member was removed by an admin"} for one in (by_id, by_instance)]
    failed = [{"MemberId": "m1", "ErrorCode": ERROR_CODES["UNKNOWN_MEMBER_ID"]}, {"MemberId": "", "ErrorCode": 0}]
    (event,) = watched.see(ask(LEAVE, Members=named), answer(LEAVE, Members=failed), software=JAVA)
    assert (event["membership"], "reason" in event) == ("left", False)
    assert event["members"] == [
        {"member_id": "m1", "instance_id": ""},
        {"member_id": "", "instance_id": "i2"},
    ]
    (event,) = watched.see(ask(LEAVE, Members=named[1:]), answer(LEAVE), software=JAVA)
    assert (event["instance_id"], event["reason"], "members" in event) == ("i2", "admin", False)


def test_the_member_is_the_one_that_asks_not_one_of_the_list_for_the_leader(watched: Watched) -> None:
    listed = [{"MemberId": name, "GroupInstanceId": name if name == "m2" else None} for name in ("m1", "m2", "m3")]
    answered = answer(JOIN, GenerationId=7, MemberId="m1", Leader="m1", Members=listed)
    (event,) = watched.see(ask(JOIN, MemberId=""), answered)
    assert (event["membership"], event["member_id"], "instance_id" in event) == ("joined", "m1", False)


def test_a_response_that_was_not_read_is_no_success(watched: Watched) -> None:
    unread = frame(1, api_key=NO_API, flags=Flag.RESPONSE, correlation_id=1, frame_bytes=9, ts_ns=1_500_000)
    assert watched.see(ask(JOIN), unread) == []
    (event,) = watched.see(leaving(None), unread)
    assert event["membership"] == "left"


def test_a_heartbeat_that_is_answered_late_ends_no_request_after_it(watched: Watched) -> None:
    watched.see(ask(BEAT, 9))
    watched.see(ask(JOIN, 10))
    refused = watched.see(answer(BEAT, 9, error="UNKNOWN_MEMBER_ID"))
    joined = watched.see(answer(JOIN, 10, GenerationId=7))
    assert [event["membership"] for event in refused + joined] == ["removed", "rejoined"]


def test_a_member_that_joins_again_at_once_was_removed_under_its_old_id(watched: Watched) -> None:
    watched.see(ask(BEAT, 1))
    again = [
        *(ask(BEAT, 2), answer(BEAT, 2, error="UNKNOWN_MEMBER_ID"), ask(JOIN, 3, MemberId="")),
        *(answer(JOIN, 3, error="MEMBER_ID_REQUIRED", MemberId="m2"), ask(JOIN, 4, MemberId="m2")),
    ]
    events = watched.see(*again)
    assert [(event["membership"], event["member_id"]) for event in events] == [("removed", "m1"), ("new", "m2")]


def test_the_group_is_that_of_the_connections_heartbeats(watched: Watched) -> None:
    watched.see(ask(BEAT, 1, 1), ask(BEAT, 1, 2, GroupId="other"))  # of one client at the broker's end
    events = watched.see(*(answer(BEAT, 1, conn, "UNKNOWN_MEMBER_ID") for conn in (1, 2)))
    assert [event["group"] for event in events] == ["billing", "other"]


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "GROUP_AUTHORIZATION_FAILED"])
def test_a_request_to_remove_several_members_may_fail_as_a_whole(watched: Watched, error: str) -> None:
    members = [{"MemberId": name} for name in ("m1", "m2", "m3")]
    assert watched.see(ask(LEAVE, Members=members), answer(LEAVE, error=error)) == []


def test_the_response_names_the_member_of_a_connection_that_is_seen_first(watched: Watched) -> None:
    (event,) = watched.see(answer(CONSUMER, MemberId="m7", MemberEpoch=5, **ASSIGNED))
    assert (event["member_id"], event["group"], event["request_bytes"]) == ("m7", None, None)


def test_events_of_heartbeats_have_no_topics(watched: Watched) -> None:
    names = [f"{number}" for number in range(900)]
    asked = ask(CONSUMER, MemberEpoch=0, SubscribedTopicNames=names)
    (event,) = watched.see(asked, answer(CONSUMER, MemberEpoch=4, **ASSIGNED))
    assert (event["topics"], event["partitions"]) == ([], 2)


def test_endpoints_of_streams_groups_are_no_assignment(watched: Watched) -> None:
    endpoint = {"UserEndpoint": {"Host": "x", "Port": 1}, "ActivePartitions": [{"Topic": "x", "Partitions": [1]}]}
    streams = "StreamsGroupHeartbeat"
    assert watched.see(ask(streams, MemberEpoch=4), answer(streams, PartitionsByUserEndpoint=[endpoint])) == []


def test_a_client_that_leaves_does_not_wait_for_the_response(watched: Watched) -> None:
    watched.see(leaving("the consumer is being closed"))
    connection = watched.tracker.gone(1)
    assert connection
    watched.exchanges.forget_connection(connection)
    (event,) = watched.load_shedding.wanted(watched.exchanges.take_events(SINCE_BOOT))
    assert (event["membership"], event["response_bytes"]) == ("left", None)


def test_only_the_heartbeats_that_change_something_are_paired_with_their_response(watched: Watched) -> None:
    samples = [ask(BEAT, number, conn) for conn in (1, 2) for number in range(50)]
    samples += [answer(BEAT, number, conn) for conn in (1, 2) for number in range(49)]
    samples += [answer(BEAT, 49, 1), answer(BEAT, 49, 2, "UNKNOWN_MEMBER_ID")]
    (event,) = watched.see(*samples)
    assert (event["conn_id"], event["correlation_id"]) == (f"{2:016x}", 49)


def test_changes_of_members_have_a_limit_of_their_own(watched: Watched) -> None:
    count = MOST_MEMBERSHIP // 2 + MOST_MEMBERSHIP // 8  # the most that one peer may use
    leave = [ask(LEAVE, 1, Members=[{"MemberId": "m1"}]) for _ in range(count + 3)]
    assert len(watched.see(*leave, answer(LEAVE))) == count
    assert watched.exchanges.losses["membership_limit"] == 3
    topics = by_hand("DeleteTopics", 4, {"TopicNames": ["x"]}, 2, correlation_id=1)
    (event,) = watched.see(topics, by_hand("DeleteTopics", 4, {}, 2, answer=True, correlation_id=1, frame_bytes=9))
    assert event["api"] == "DeleteTopics"
    watched.exchanges.begin_interval()
    assert len(watched.see(ask(SYNC), answer(SYNC))) == 1
