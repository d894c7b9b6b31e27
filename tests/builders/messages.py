"""Builds messages of the most used APIs in every version, as real clients and brokers send them.

Strings that the decoder must pass over are SKIPPED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from kafka_probe.protocol.facts import Facts, SetStatus
from kafka_probe.protocol.schemas import apis
from tests.builders.expected import Value, expected
from tests.builders.trees import CLIENT_ID, Message, Records, Tree, message_of

__all__ = ["CASES", "CLIENT_ID", "GROUP", "OTHER_TOPIC", "SKIPPED", "TOPIC", "TOPIC_ID", "Case", "case"]

GROUP = "billing"
MEMBER = "billing-1-4711"
TOPIC = "orders"
OTHER_TOPIC = "payments"
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")
SKIPPED = "~skip~"

_NAMED: Tree = {"Name": TOPIC, "Topic": TOPIC, "TopicId": TOPIC_ID.bytes}
_BROKER: Tree = {"NodeId": 3, "Host": "broker-3.kafka.example.org", "Port": 9092, "Rack": SKIPPED}
_LEADER: Tree = {"LeaderId": 3, "LeaderEpoch": 9}
_MEMBER: Tree = {"GroupId": GROUP, "MemberId": MEMBER}
_COUNTED = Records(bytes(5000))
_UNREADABLE = Records(bytes(70), status=SetStatus.UNREADABLE)
_CUT = Records(bytes(200), records=3, status=SetStatus.PARTIAL)


@dataclass(frozen=True)
class Case:
    """A frame's data, and the facts and measured values (kind, topic, partition, value) that are in it.

    wire: the same part of the frame as on the wire.
    """

    data: bytes
    facts: Facts
    values: list[Value]
    wire: bytes

    @property
    def name(self) -> str:
        direction = "response" if self.facts.response else "request"
        return f"{self.facts.api_key} {direction} {self.facts.api_version}"


def case(api_key: int, version: int, *, response: bool) -> Case:
    wanted = (api_key, version, response)
    return next(c for c in CASES if (c.facts.api_key, c.facts.api_version, c.facts.response) == wanted)


def _case(message: Message) -> Case:
    found = expected(message)
    return Case(message.data, found.facts(message), found.measured, message.header + message.body)


def _produce(version: int) -> Tree:
    sets = [_COUNTED, _UNREADABLE, Records(b""), None if version else Records(b"")]
    partitions = [{"Index": index, "Records": records} for index, records in zip((0, 7, 8, 9), sets, strict=True)]
    again = {**_NAMED, "PartitionData": [{"Index": 1, "Records": _CUT}]}
    return {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{**_NAMED, "PartitionData": partitions}, again]}


def _fetched(_version: int) -> Tree:
    partitions = [
        {
            "PartitionIndex": 3,
            "AbortedTransactions": [{"ProducerId": 5, "FirstOffset": 6}],
            "Records": Records(bytes(100_000)),
            "CurrentLeader": _LEADER,
        },
        {"PartitionIndex": 4, "ErrorCode": 1},
        {"PartitionIndex": 5, "Records": Records(bytes(64), status=SetStatus.UNREADABLE)},
    ]
    topics = [{**_NAMED, "Partitions": partitions}]
    return {**_error(71), "SessionId": 99, "Responses": topics, "NodeEndpoints": [_BROKER]}


def _fetch(version: int) -> Tree:
    return {
        "ClusterId": "the-cluster",
        "MaxWaitMs": 500,
        "SessionId": 99,
        "SessionEpoch": version,
        "Topics": [{**_NAMED, "Partitions": [{"Partition": 3, "FetchOffset": 1 << 40, "HighWatermark": 1 << 41}]}],
        "ForgottenTopicsData": [{**_NAMED, "Partitions": [5]}],
        "RackId": SKIPPED,
    }


def _described(_version: int) -> Tree:
    partitions = [
        {"ErrorCode": code, "PartitionIndex": index, **_LEADER, "ReplicaNodes": [1, 2], "IsrNodes": [1]}
        for index, code in enumerate((0, 9, 0))
    ]
    topics = [{**_NAMED, "Partitions": partitions}, {"ErrorCode": 3, "Name": OTHER_TOPIC}]
    return {"ThrottleTimeMs": 17, "Brokers": [_BROKER] * 2, "ClusterId": "the-cluster", "Topics": topics}


def _committed(version: int) -> Tree:
    topics = [{**_NAMED, "Partitions": [{"PartitionIndex": 4, "CommittedOffset": 77, "Metadata": SKIPPED}]}]
    return {
        **_error(16),
        "Topics": topics,
        "Groups": [{"GroupId": GROUP, "Topics": topics, "ErrorCode": 16}] * (version >= 8),
    }


def _ask_committed(_version: int) -> Tree:
    topics = [{**_NAMED, "PartitionIndexes": [4, 5]}]
    groups = [{**_MEMBER, "Topics": topics}, {"GroupId": "audit", "Topics": None}]
    return {"GroupId": GROUP, "Topics": topics, "Groups": groups}


def _by_partition(array: str, inner: str, *partitions: Tree) -> Callable[[int], Tree]:
    return lambda _version: {"ThrottleTimeMs": 17, **_MEMBER, array: [{**_NAMED, inner: list(partitions)}]}


def _error(code: int) -> Tree:
    return {"ThrottleTimeMs": 17, "ErrorCode": code, "ErrorMessage": SKIPPED}


_SENT: dict[str, tuple[Callable[[int], Tree], Callable[[int], Tree]]] = {
    "Produce": (
        _produce,
        lambda version: {
            **_by_partition(
                "Responses",
                "PartitionResponses",
                {"Index": 0, "BaseOffset": 1234, "ErrorMessage": SKIPPED},
                {"Index": 7, "ErrorCode": 6, "BaseOffset": -1, "CurrentLeader": _LEADER},
            )(version),
            "NodeEndpoints": [_BROKER],
        },
    ),
    "Fetch": (_fetch, _fetched),
    "ListOffsets": (
        _by_partition("Topics", "Partitions", {"PartitionIndex": 2, "Timestamp": -1}),
        _by_partition(
            "Topics",
            "Partitions",
            {"PartitionIndex": 2, "Offset": 500, "OldStyleOffsets": [1, 2]},
            {"PartitionIndex": 3, "ErrorCode": 6, "Offset": -1},
        ),
    ),
    "Metadata": (
        lambda version: {"Topics": [_NAMED, {"Name": OTHER_TOPIC}] if version else [_NAMED]},
        _described,
    ),
    "OffsetCommit": (
        _by_partition(
            "Topics", "Partitions", {"PartitionIndex": 2, "CommittedOffset": 77, "CommittedMetadata": SKIPPED}
        ),
        _by_partition(
            "Topics", "Partitions", {"PartitionIndex": 2, "ErrorCode": 25}, {"PartitionIndex": 3, "ErrorCode": 25}
        ),
    ),
    "OffsetFetch": (_ask_committed, _committed),
    "FindCoordinator": (
        lambda _: {"Key": GROUP, "KeyType": 0, "CoordinatorKeys": [GROUP]},
        lambda _: {**_error(15), **_BROKER, "Coordinators": [{"Key": GROUP, **_BROKER, **_error(15)}]},
    ),
    "JoinGroup": (
        lambda _: {**_MEMBER, "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": b"~skip~"}]},
        lambda _: {**_error(79), "Leader": MEMBER, "Members": [{"MemberId": MEMBER, "Metadata": b"~skip~"}]},
    ),
    "Heartbeat": (lambda _: {**_MEMBER, "GenerationId": 4}, lambda _: _error(27)),
    "LeaveGroup": (
        lambda _: {**_MEMBER, "Members": [{"MemberId": MEMBER, "Reason": SKIPPED}]},
        lambda _: {**_error(25), "Members": [{"MemberId": MEMBER, "ErrorCode": 25}]},
    ),
    "SyncGroup": (
        lambda _: {**_MEMBER, "Assignments": [{"MemberId": MEMBER, "Assignment": b"~skip~"}]},
        lambda _: {**_error(27), "Assignment": b"~skip~"},
    ),
    "SaslHandshake": (
        lambda _: {"Mechanism": "SCRAM-SHA-256"},
        lambda _: {"ErrorCode": 33, "Mechanisms": ["PLAIN", "SCRAM-SHA-256"]},
    ),
    "ApiVersions": (
        lambda _: {"ClientSoftwareName": "librdkafka", "ClientSoftwareVersion": "2.16.1"},
        lambda _: {
            "ApiKeys": [{"ApiKey": key, "MinVersion": 0, "MaxVersion": 9} for key in range(60)],
            "ThrottleTimeMs": 17,
            "SupportedFeatures": [{"Name": SKIPPED, "MaxVersion": 3}],
        },
    ),
    "ConsumerGroupHeartbeat": (
        lambda _: {
            **_MEMBER,
            "MemberEpoch": 4,
            "RackId": SKIPPED,
            "SubscribedTopicNames": [TOPIC, OTHER_TOPIC],
            "ServerAssignor": "uniform",
            "TopicPartitions": [{**_NAMED, "Partitions": [0, 5]}],
        },
        lambda _: {
            **_error(110),
            **_MEMBER,
            "MemberEpoch": 4,
            "Assignment": {"TopicPartitions": [{**_NAMED, "Partitions": [0, 5]}]},
        },
    ),
}

CASES = [
    _case(message_of(api.name, response, version, _SENT[api.name][response](version)))
    for api in apis().values()
    if api.name in _SENT
    for response in (False, True)
    for version in api.versions
]
