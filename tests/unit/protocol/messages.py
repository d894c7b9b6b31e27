"""Real messages of every decoded API in every version, encoded by others' libraries, and what we must find in them.

kafka-python encodes all but ConsumerGroupHeartbeat, which kio does. Strings that the decoder must pass over are
SKIPPED. Record sets are replaced by the stub that the kernel leaves for them.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32, i32Timedelta

from kafka_probe.protocol.facts import Facts, Kind, Status, TopicFacts

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib.resources.read_text
    from kafka.protocol.consumer import (
        FetchRequest,
        FetchResponse,
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import ProduceRequest, ProduceResponse
    from kafka.protocol.sasl import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLIENT_ID = "billing-1"
GROUP = "billing"
TOPIC = "orders"
OTHER_TOPIC = "payments"
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")
SKIPPED = "~skip~"

Values = list[tuple[Kind, int, int, int]]


@dataclass(frozen=True)
class Case:
    """A frame's data, and the facts and measured values (kind, topic, partition, value) that are in it."""

    data: bytes
    facts: Facts
    values: Values

    @property
    def name(self) -> str:
        direction = "response" if self.facts.response else "request"
        return f"{self.facts.api_key} {direction} {self.facts.api_version}"


def record_stub(records: int, status: int) -> bytes:
    """What stands for a record set of one batch of magic 2, compressed with lz4."""
    return records.to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes([2, 3, status]) + bytes(13)


def all_cases() -> Iterator[Case]:
    """Every decoded API, in both directions and all versions."""
    for message_class, build in _KAFKA_PYTHON.items():
        for version in range(message_class.max_version + 1):
            message, facts, values = build(version)
            yield _case(message_class, version, _container(message_class, message), facts, values)
    for version in (0, 1):
        yield _consumer_group_heartbeat_request(version)
        yield _consumer_group_heartbeat_response(version)


def case(api_key: int, version: int, *, response: bool) -> Case:
    wanted = (api_key, version, response)
    return next(c for c in CASES if (c.facts.api_key, c.facts.api_version, c.facts.response) == wanted)


Built = tuple[dict[str, Any], dict[str, Any], Values]


def _produce_request(version: int) -> Built:
    partitions = [
        {"index": 0, "records": b"\xa1" * 5000},
        {"index": 7, "records": b"\xa2" * 70},
        {"index": 8, "records": b""},
        {"index": 9, "records": None},
    ]
    topics = [
        {"name": TOPIC, "topic_id": TOPIC_ID, "partition_data": partitions},
        {"name": TOPIC, "topic_id": TOPIC_ID, "partition_data": [{"index": 1, "records": b"\xa3" * 200}]},
    ]
    message = {"transactional_id": SKIPPED, "acks": -1, "timeout_ms": 30_000, "topic_data": topics}
    found = (_topic(version < 13, 0, 7, 8, 9), _topic(version < 13, 1))
    values = [
        (Kind.RECORD_BYTES, 0, 0, 5000),
        (Kind.RECORDS, 0, 0, 40),
        (Kind.RECORD_BYTES, 0, 7, 70),
        (Kind.UNCOUNTED_BYTES, 0, 7, 70),
        (Kind.RECORD_BYTES, 1, 1, 200),
        (Kind.RECORDS, 1, 1, 3),
    ]
    return message, {"acks": -1, "topics": found, "has_records": True}, values


def _produce_response(version: int) -> Built:
    partitions = [
        {"index": 0, "error_code": 0, "base_offset": 1234, "error_message": SKIPPED},
        {
            "index": 7,
            "error_code": 6,
            "base_offset": -1,
            "record_errors": [{"batch_index": 1, "batch_index_error_message": SKIPPED}],
            "current_leader": {"leader_id": 3, "leader_epoch": 9},
        },
    ]
    message = {
        "responses": [{"name": TOPIC, "topic_id": TOPIC_ID, "partition_responses": partitions}],
        "throttle_time_ms": 17,
        "node_endpoints": [{"node_id": 3, "host": SKIPPED, "port": 9092, "rack": None}],
    }
    found = replace(_topic(version < 13, 0, 7), errors=((7, 6),))
    values = [(Kind.OFFSET, 0, 0, 1234), (Kind.OFFSET, 0, 7, -1), *_throttle(version >= 1)]
    return message, {"topics": (found,), "errors": ((6, 1),)}, values


def _fetch_request(version: int) -> Built:
    partition = {"partition": 3, "fetch_offset": 1 << 40, "replica_directory_id": TOPIC_ID}
    message = {
        "cluster_id": SKIPPED,
        "session_id": 99,
        "topics": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": [partition]}],
        "forgotten_topics_data": [{"topic": SKIPPED, "topic_id": TOPIC_ID, "partitions": [5]}],
        "rack_id": SKIPPED,
    }
    return message, {"topics": (_topic(version < 13, 3),)}, [(Kind.OFFSET, 0, 3, 1 << 40)]


def _fetch_response(version: int) -> Built:
    partitions = [
        {
            "partition_index": 3,
            "error_code": 0,
            "aborted_transactions": [{"producer_id": 5, "first_offset": 6}],
            "records": b"\xa1" * 100_000,
            "current_leader": {"leader_id": 1, "leader_epoch": 2},
        },
        {"partition_index": 4, "error_code": 1, "aborted_transactions": None, "records": None},
        {"partition_index": 5, "error_code": 0, "aborted_transactions": None, "records": b"\xa2" * 64},
    ]
    message = {
        "throttle_time_ms": 17,
        "error_code": 71,
        "responses": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": partitions}],
        "node_endpoints": [{"node_id": 1, "host": SKIPPED, "port": 9092, "rack": SKIPPED}],
    }
    found = replace(_topic(version < 13, 3, 4, 5), errors=((4, 1),))
    errors = ((1, 1), (71, 1)) if version >= 7 else ((1, 1),)
    values = [
        *_throttle(version >= 1),
        (Kind.RECORD_BYTES, 0, 3, 100_000),
        (Kind.RECORDS, 0, 3, 40),
        (Kind.RECORD_BYTES, 0, 5, 64),
        (Kind.UNCOUNTED_BYTES, 0, 5, 64),
    ]
    return message, {"topics": (found,), "errors": errors, "has_records": True}, values


def _list_offsets_request(_version: int) -> Built:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 2, "timestamp": -1, "max_num_offsets": 1}]}]
    return {"topics": topics}, {"topics": (_topic(True, 2),)}, []


def _list_offsets_response(version: int) -> Built:
    partitions = [
        {"partition_index": 2, "error_code": 0, "offset": 500, "old_style_offsets": [1, 2]},
        {"partition_index": 3, "error_code": 6, "offset": -1, "old_style_offsets": []},
    ]
    found = replace(_topic(True, 2, 3), errors=((3, 6),))
    offsets = [(Kind.OFFSET, 0, 2, 500), (Kind.OFFSET, 0, 3, -1)] if version >= 1 else []
    message = {"throttle_time_ms": 17, "topics": [{"name": TOPIC, "partitions": partitions}]}
    return message, {"topics": (found,), "errors": ((6, 1),)}, [*_throttle(version >= 2), *offsets]


def _metadata_request(version: int) -> Built:
    topics = [{"name": TOPIC, "topic_id": TOPIC_ID}, {"name": OTHER_TOPIC, "topic_id": None}]
    found = (
        TopicFacts(TOPIC, TOPIC_ID.hex if version >= 10 else None, (), ()),
        TopicFacts(OTHER_TOPIC, None, (), ()),
    )
    return {"topics": topics}, {"topics": found}, []


def _metadata_response(version: int) -> Built:
    partition = {"leader_id": 1, "replica_nodes": [1, 2], "isr_nodes": [1], "offline_replicas": [2]}
    topics = [
        {
            "error_code": 0,
            "name": TOPIC,
            "topic_id": TOPIC_ID,
            "partitions": [
                {"error_code": 0, "partition_index": 0, **partition},
                {"error_code": 9, "partition_index": 1, **partition},
                {"error_code": 0, "partition_index": 2, **partition},
            ],
        },
        {"error_code": 3, "name": OTHER_TOPIC, "topic_id": None, "partitions": []},
    ]
    message = {
        "throttle_time_ms": 17,
        "brokers": [{"node_id": 1, "host": SKIPPED, "port": 9092, "rack": SKIPPED}],
        "cluster_id": "the-cluster",
        "topics": topics,
        "error_code": 0,
    }
    found = (
        TopicFacts(TOPIC, TOPIC_ID.hex if version >= 10 else None, (0, 1, 2), ((1, 9),)),
        TopicFacts(OTHER_TOPIC, None, (), ((-1, 3),)),
    )
    cluster_id = "the-cluster" if version >= 2 else None
    return message, {"topics": found, "errors": ((3, 1), (9, 1)), "cluster_id": cluster_id}, _throttle(version >= 3)


def _offset_commit_request(version: int) -> Built:
    partition = {"partition_index": 2, "committed_offset": 77, "commit_timestamp": 5, "committed_metadata": SKIPPED}
    topics = [{"name": TOPIC, "topic_id": TOPIC_ID, "partitions": [partition]}]
    message = {"group_id": GROUP, "member_id": SKIPPED, "group_instance_id": SKIPPED, "topics": topics}
    return message, {"groups": (GROUP,), "topics": (_topic(version < 10, 2),)}, [(Kind.OFFSET, 0, 2, 77)]


def _offset_commit_response(version: int) -> Built:
    partitions = [{"partition_index": 2, "error_code": 25}, {"partition_index": 3, "error_code": 25}]
    found = replace(_topic(version < 10, 2, 3), errors=((2, 25), (3, 25)))
    message = {
        "throttle_time_ms": 17,
        "topics": [{"name": TOPIC, "topic_id": TOPIC_ID, "partitions": partitions}],
    }
    return message, {"topics": (found,), "errors": ((25, 2),)}, _throttle(version >= 3)


def _offset_fetch_request(version: int) -> Built:
    topic = {"name": TOPIC, "partition_indexes": [4, 5]}
    groups = [
        {"group_id": GROUP, "member_id": SKIPPED, "topics": [{**topic, "topic_id": TOPIC_ID}]},
        {"group_id": "audit", "member_id": None, "topics": None},
    ]
    message = {"group_id": GROUP, "topics": [topic], "groups": groups}
    named = (GROUP, "audit") if version >= 8 else (GROUP,)
    return message, {"groups": named, "topics": (_topic(version < 10, 4, 5),)}, []


def _offset_fetch_response(version: int) -> Built:
    partition = {"partition_index": 4, "committed_offset": 77, "metadata": SKIPPED, "error_code": 0}
    topic = {"name": TOPIC, "partitions": [partition]}
    message = {
        "throttle_time_ms": 17,
        "topics": [topic],
        "error_code": 16,
        "groups": [{"group_id": GROUP, "topics": [{**topic, "topic_id": TOPIC_ID}], "error_code": 16}],
    }
    facts = {
        "groups": (GROUP,) if version >= 8 else (),
        "topics": (_topic(version < 10, 4),),
        "errors": ((16, 1),) if version >= 2 else (),
    }
    return message, facts, [*_throttle(version >= 3), (Kind.OFFSET, 0, 4, 77)]


def _find_coordinator_request(_version: int) -> Built:
    return {"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP]}, {"groups": (GROUP,)}, []


def _find_coordinator_response(version: int) -> Built:
    coordinator = {"node_id": 1, "host": SKIPPED, "port": 9092, "error_code": 15, "error_message": SKIPPED}
    message = {"throttle_time_ms": 17, **coordinator, "coordinators": [{"key": GROUP, **coordinator}]}
    return message, {"errors": ((15, 1),)}, _throttle(version >= 1)


def _join_group_request(_version: int) -> Built:
    protocols = [{"name": SKIPPED, "metadata": SKIPPED.encode()}]
    message = {"group_id": GROUP, "member_id": SKIPPED, "protocol_type": SKIPPED, "protocols": protocols}
    return message, {"groups": (GROUP,)}, []


def _join_group_response(version: int) -> Built:
    members = [{"member_id": SKIPPED, "group_instance_id": None, "metadata": SKIPPED.encode()}]
    message = {
        "throttle_time_ms": 17,
        "error_code": 79,
        "protocol_type": SKIPPED,
        "protocol_name": SKIPPED,
        "leader": SKIPPED,
        "member_id": SKIPPED,
        "members": members,
    }
    return message, {"errors": ((79, 1),)}, _throttle(version >= 2)


def _sync_group_request(_version: int) -> Built:
    assignments = [{"member_id": SKIPPED, "assignment": SKIPPED.encode()}]
    return {"group_id": GROUP, "member_id": SKIPPED, "assignments": assignments}, {"groups": (GROUP,)}, []


def _sync_group_response(version: int) -> Built:
    message = {"throttle_time_ms": 17, "error_code": 27, "assignment": SKIPPED.encode()}
    return message, {"errors": ((27, 1),)}, _throttle(version >= 1)


def _heartbeat_request(_version: int) -> Built:
    return {"group_id": GROUP, "generation_id": 4, "member_id": SKIPPED}, {"groups": (GROUP,)}, []


def _heartbeat_response(version: int) -> Built:
    return {"throttle_time_ms": 17, "error_code": 27}, {"errors": ((27, 1),)}, _throttle(version >= 1)


def _leave_group_request(_version: int) -> Built:
    members = [{"member_id": SKIPPED, "group_instance_id": None, "reason": SKIPPED}]
    return {"group_id": GROUP, "member_id": SKIPPED, "members": members}, {"groups": (GROUP,)}, []


def _leave_group_response(version: int) -> Built:
    members = [{"member_id": SKIPPED, "group_instance_id": None, "error_code": 25}]
    errors = ((25, 2),) if version >= 3 else ((25, 1),)
    message = {"throttle_time_ms": 17, "error_code": 25, "members": members}
    return message, {"errors": errors}, _throttle(version >= 1)


def _api_versions_request(version: int) -> Built:
    message = {"client_software_name": "librdkafka", "client_software_version": "2.16.1"}
    facts = {"software_name": "librdkafka", "software_version": "2.16.1"} if version >= 3 else {}
    return message, facts, []


def _api_versions_response(version: int) -> Built:
    keys = [{"api_key": key, "min_version": 0, "max_version": 9} for key in range(60)]
    features = [{"name": SKIPPED, "min_version": 0, "max_version": 3}]
    message = {"error_code": 0, "api_keys": keys, "throttle_time_ms": 17, "supported_features": features}
    return message, {}, _throttle(version >= 1)


def _sasl_handshake_request(_version: int) -> Built:
    return {"mechanism": "SCRAM-SHA-256"}, {"mechanism": "SCRAM-SHA-256"}, []


def _sasl_handshake_response(_version: int) -> Built:
    return {"error_code": 33, "mechanisms": [SKIPPED]}, {"errors": ((33, 1),)}, []


_KAFKA_PYTHON: dict[Any, Callable[[int], Built]] = {
    ProduceRequest: _produce_request,
    ProduceResponse: _produce_response,
    FetchRequest: _fetch_request,
    FetchResponse: _fetch_response,
    ListOffsetsRequest: _list_offsets_request,
    ListOffsetsResponse: _list_offsets_response,
    MetadataRequest: _metadata_request,
    MetadataResponse: _metadata_response,
    OffsetCommitRequest: _offset_commit_request,
    OffsetCommitResponse: _offset_commit_response,
    OffsetFetchRequest: _offset_fetch_request,
    OffsetFetchResponse: _offset_fetch_response,
    FindCoordinatorRequest: _find_coordinator_request,
    FindCoordinatorResponse: _find_coordinator_response,
    JoinGroupRequest: _join_group_request,
    JoinGroupResponse: _join_group_response,
    SyncGroupRequest: _sync_group_request,
    SyncGroupResponse: _sync_group_response,
    HeartbeatRequest: _heartbeat_request,
    HeartbeatResponse: _heartbeat_response,
    LeaveGroupRequest: _leave_group_request,
    LeaveGroupResponse: _leave_group_response,
    ApiVersionsRequest: _api_versions_request,
    ApiVersionsResponse: _api_versions_response,
    SaslHandshakeRequest: _sasl_handshake_request,
    SaslHandshakeResponse: _sasl_handshake_response,
}

# The record sets in the messages above, by the byte they are filled with, and what the kernel says of them.
_STUBS = {b"\xa1": record_stub(40, 0), b"\xa2": record_stub(0, 1), b"\xa3": record_stub(3, 2)}


def _topic(named: bool, *partitions: int) -> TopicFacts:
    return TopicFacts(TOPIC if named else None, None if named else TOPIC_ID.hex, partitions, ())


def _throttle(present: bool) -> Values:
    return [(Kind.THROTTLE_MS, -1, -1, 17)] if present else []


def _container(container: Any, values: dict[str, Any]) -> Any:
    """An instance of a kafka-python message class, with dictionaries and lists of them made instances too."""
    built = {}
    for name, value in values.items():
        field = container.fields.get(name)
        if field is not None and field.is_struct_array() and value is not None:
            value = [_container(field.data_class, member) for member in value]
        elif field is not None and field.is_struct() and value is not None:
            value = _container(field.data_class, value)
        built[name] = value
    return container(**built)


def _case(message_class: Any, version: int, message: Any, facts: dict[str, Any], values: Values) -> Case:
    request = message_class.is_request()
    message.API_VERSION = version
    if request:
        message.with_header(1, CLIENT_ID)
    else:
        message.with_header(1)
    frame = bytes(message.encode(header=True, framed=True))
    for filling, stub in _STUBS.items():
        for records in re.findall(filling + b"{20,}", frame):
            frame = frame.replace(records, stub)
    if request:
        facts = {"client_id": CLIENT_ID, **facts}
    found = Facts(not request, message_class.API_KEY, version, Status.COMPLETE, **facts)
    return Case(frame[12 if request else 8 :], found, values)


def _consumer_group_heartbeat_request(version: int) -> Case:
    schema: Any = load_payload_module(68, version, EntityType.request)
    message = schema.ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=SKIPPED,
        member_epoch=i32(4),
        rack_id=SKIPPED,
        subscribed_topic_names=(TOPIC, OTHER_TOPIC),
        server_assignor=SKIPPED,
        topic_partitions=(schema.TopicPartitions(topic_id=TOPIC_ID, partitions=(i32(0), i32(5))),),
    )
    client_id = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
    named = (TopicFacts(TOPIC, None, (), ()), TopicFacts(OTHER_TOPIC, None, (), ()), _topic(False, 0, 5))
    found = Facts(False, 68, version, Status.COMPLETE, client_id=CLIENT_ID, groups=(GROUP,), topics=named)
    return Case(client_id + b"\0" + _written(message), found, [])


def _consumer_group_heartbeat_response(version: int) -> Case:
    schema: Any = load_payload_module(68, version, EntityType.response)
    owned = schema.TopicPartitions(topic_id=TOPIC_ID, partitions=(i32(0), i32(5)))
    message = schema.ConsumerGroupHeartbeatResponse(
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=17)),
        error_code=ErrorCode.fenced_member_epoch,
        error_message=SKIPPED,
        member_id=SKIPPED,
        member_epoch=i32(4),
        heartbeat_interval=i32Timedelta.parse(timedelta(seconds=5)),
        assignment=schema.Assignment(topic_partitions=(owned,)),
    )
    found = Facts(True, 68, version, Status.COMPLETE, errors=((110, 1),), topics=(_topic(False, 0, 5),))
    return Case(b"\0" + _written(message), found, _throttle(True))


def _written(message: Any) -> bytes:
    body = io.BytesIO()
    entity_writer(type(message))(body, message)
    return body.getvalue()


CASES = list(all_cases())
