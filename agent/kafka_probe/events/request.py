"""Declares the `request` event: one request with its response."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.codecs import CODEC_NAMES
from kafka_probe.events.shared_fields import ACKS, ERRORS, KIND, TOPIC_ID, ApiFacts, ConnectionFacts, Stamped


class RequestPartition(TypedDict):
    """A partition in a `request` event, or a topic that is named without partitions."""

    topic: Annotated[str | None, "topic name"]
    topic_id: Annotated[str | None, TOPIC_ID]
    partition: Annotated[int | None, "partition index"]
    error: Annotated[int, "error code of the partition"]


class RequestTopic(RequestPartition, total=False):
    """A partition with the values that only some APIs have; a value that was not seen is absent."""

    offset: Annotated[int, "requested offset (Fetch), committed offset (OffsetCommit) or assigned offset (Produce)"]
    high_watermark: Annotated[int, "Fetch: end of the replicated records; higher than offset: the consumer lags"]
    records: Annotated[int, "records in the batches of the partition"]
    batches: Annotated[int, "record batches of the partition"]
    bytes: Annotated[int, "size of the record set"]
    codec: Annotated[str, f"compression codec of the last batch: {CODEC_NAMES}"]
    transactional: Annotated[bool, "true: a batch belongs to a transaction"]
    producer_id: Annotated[int, "producer id of the first batch, if it has one"]


class ExchangeFacts(TypedDict):
    """The sizes and times of an exchange."""

    correlation_id: Annotated[int, "correlation id"]
    request_bytes: Annotated[
        int | None,
        "size of the request with its length prefix; null: the event has only the response, as for most heartbeats",
    ]
    response_bytes: Annotated[
        int | None, "size of the response with its length prefix; null: none was sent (acks=0), or none was seen"
    ]
    latency_us: Annotated[int | None, "time from request to response, µs"]
    throttle_ms: Annotated[int | None, "throttle time in the response"]
    group: Annotated[str | None, "consumer group, as in flow"]


class RequestParameters(TypedDict, total=False):
    """Values of the request, or of the response where the broker chooses them; absent if there are several or none."""

    group_protocol: Annotated[str, "protocol type of the group: consumer, connect or share"]
    assignor: Annotated[str, "partition assignor"]
    member_id: Annotated[str, "id of the group's member"]
    instance_id: Annotated[str, "id of a static member (KIP-345)"]
    generation: Annotated[int, "generation of the group"]
    member_epoch: Annotated[int, "epoch of the member (KIP-848)"]
    transactional_id: Annotated[str, "transactional id"]
    producer_id: Annotated[int, "producer id"]
    producer_epoch: Annotated[int, "producer epoch"]
    acks: Annotated[int, ACKS]
    isolation_level: Annotated[int, "0: also records of open transactions; 1: committed records only"]
    replica_id: Annotated[int, "broker that fetches as a replica; -1: a consumer"]
    session_id: Annotated[int, "fetch session (KIP-227); 0: none"]
    session_epoch: Annotated[int, "number of the request in its session; 0: a new session; -1: no session"]
    max_wait_ms: Annotated[int, "longest time that the broker may wait for min_bytes"]
    min_bytes: Annotated[int, "least bytes of a response to Fetch before max_wait_ms is over"]
    max_bytes: Annotated[int, "most bytes of a response to Fetch"]
    timeout_ms: Annotated[int, "longest time that the broker may take"]
    session_timeout_ms: Annotated[int, "time without heartbeats after which the broker removes a member from its group"]
    rebalance_timeout_ms: Annotated[int, "longest time that a member may take to join a rebalance"]
    heartbeat_interval_ms: Annotated[int, "interval at which a member has to send heartbeats"]
    transaction_timeout_ms: Annotated[int, "longest time that a transaction may stay open"]
    mechanism: Annotated[str, "SASL mechanism"]


class GroupMember(TypedDict):
    """A member of a group that a request names."""

    member_id: Annotated[str, "id of the member; empty: named by instance_id"]
    instance_id: Annotated[str, "id of a static member (KIP-345), or empty"]


class MembershipFacts(TypedDict, total=False):
    """The change that the exchange made for a member of a group. Fields are absent if they are not known."""

    membership: Annotated[
        str,
        "joined: a member without a member id joined; rejoined: a member with a member id joined, also a new one after "
        "`new`; new: the broker assigned a member id, with which the client joins next; assigned: the member got "
        "partitions; left: the member left; removed: the broker does not know the member; fenced: another member uses "
        "its instance id, or its epoch is old; refused: the broker rejected the join; absent: no change",
    ]
    members: Annotated[list[GroupMember], "the members of a request that names several, at most 512"]
    partitions: Annotated[int, "number of partitions that the response to a heartbeat assigns"]
    reason: Annotated[
        str,
        "why a member of a classic group joins or leaves (KIP-800): poll_timeout, close, unsubscribe, admin, "
        "metadata_change or other; known by the length of the Java client's text, which stays in the kernel; absent: "
        "none was given",
    ]


class RequestEvent(ConnectionFacts, ApiFacts, ExchangeFacts, RequestParameters, MembershipFacts, Stamped):
    """One request with its response."""

    kind: Annotated[Literal["request"], KIND]
    status: Annotated[str, "complete, or why the frames were not decoded in full"]
    stopped_at: Annotated[str | None, "path of the field at which decoding ended early"]
    errors: Annotated[dict[str, int], ERRORS]
    error_names: Annotated[dict[str, int], "Kafka's name of the error code to count, without NONE"]
    topics: Annotated[list[RequestTopic], "one entry per topic and partition"]
