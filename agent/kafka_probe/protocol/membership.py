"""Defines which exchanges change the members of a group, and how, for groups of all protocols of Kafka.

Classic groups have JoinGroup, SyncGroup and LeaveGroup. Members of consumer (KIP-848), share (KIP-932) and streams
groups (KIP-1071) join and leave by heartbeats, by their epoch in the request.
"""

from __future__ import annotations

from typing import NamedTuple

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.protocol.facts import Fact, Facts, Status

GROUP_CHANGES = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP})
"""APIs of which each exchange may change the members of a group."""
HEARTBEATS = frozenset(
    {
        *(ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT),
        *(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT),
    }
)
"""APIs of which few exchanges change the members of a group."""
NAME_MEMBER = HEARTBEATS | {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""APIs whose requests name the one member that sends them."""
_JOINING_EPOCH = 0  # below it: the member leaves
_NEW = ERROR_CODES["MEMBER_ID_REQUIRED"]
_REMOVED = ERROR_CODES["UNKNOWN_MEMBER_ID"]
_FENCED = {ERROR_CODES[name] for name in ("FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH")}
# Errors after which a member joins again.
_AGAIN = {
    ERROR_CODES[name]
    for name in (
        *("REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "NOT_COORDINATOR"),
        *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"),
    )
}
_READ = Status.COMPLETE, Status.TRUNCATED  # the error code comes first in a response
# Reasons for joining and leaving (KIP-800) by their length in bytes. Those of consumers are in AbstractCoordinator,
# ConsumerCoordinator and ClassicKafkaConsumer of Kafka 3.9 and 4.3, that of the admin client in KafkaAdminClient.
_JAVA_REASONS = {
    ApiKey.LEAVE_GROUP: {34: "poll_timeout", 28: "close", 41: "unsubscribe", 30: "admin"},
    ApiKey.JOIN_GROUP: {27: "metadata_change"},
}
_WITH_ID = len("need to re-join with the given member-id: ")  # of the first reason to join, before the member's id
_JAVA, _STREAMS = "apache-kafka-java", "stream"  # the only assignor of Kafka Streams, which has reasons of its own


class Member(NamedTuple):
    """A member of a group as a request names it: empty texts are not known."""

    member_id: str
    instance_id: str


def joins_or_leaves(facts: Facts) -> bool:
    """Return True if a frame is a heartbeat by which a member joins or leaves its group."""
    epoch = facts.number(Fact.MEMBER_EPOCH)
    return facts.api_key in HEARTBEATS and not facts.response and epoch is not None and epoch <= _JOINING_EPOCH


def changes_member(facts: Facts) -> bool:
    """Return True if the response to a heartbeat changes its member: it refuses the member, or assigns partitions."""
    return change_by_response(facts) is not None


def change_by_response(answered: Facts) -> str | None:
    """Return what a response to a heartbeat changed for its member, whatever the request was; None: nothing."""
    codes = {code for code, _ in answered.errors}
    if _REMOVED in codes:
        return "removed"
    if codes & _FENCED:
        return "fenced"
    return "assigned" if _assigns(answered) else None


def change_of_member(asked: Facts, answered: Facts | None) -> str | None:
    """Return what an exchange changed for a member, as `membership` of the `request` event; None: nothing."""
    if asked.api_key not in GROUP_CHANGES and asked.api_key not in HEARTBEATS:
        return None
    if answered and answered.status not in _READ:
        answered = None
    codes = {code for code, _ in answered.errors} if answered else set()
    if asked.api_key == ApiKey.LEAVE_GROUP:
        if codes - _FENCED - {_REMOVED}:
            return None
        failed = sum(count for _, count in answered.errors) if answered else 0
        if failed < max(len(members_of(asked)), 1):
            return "left"  # also without a response, for which a client that ends does not wait
        return "removed" if _REMOVED in codes else None
    epoch = asked.number(Fact.MEMBER_EPOCH)
    joins = asked.api_key == ApiKey.JOIN_GROUP or epoch == _JOINING_EPOCH
    if _NEW in codes:
        return "new"
    if answered and (change := change_by_response(answered)) in ("removed", "fenced"):
        return change
    if codes:
        return "refused" if joins and not codes & _AGAIN else None
    if epoch is not None and epoch < _JOINING_EPOCH:
        return "left"
    if answered is None:
        return None
    if joins:
        known = asked.api_key == ApiKey.JOIN_GROUP and asked.text(Fact.MEMBER_ID)
        return "rejoined" if known else "joined"
    return "assigned" if asked.api_key == ApiKey.SYNC_GROUP or _assigns(answered) else None


def members_of(asked: Facts) -> list[Member]:
    """Return the members that a request names: LeaveGroup may name several, by member id, instance id or both."""
    found = list[Member]()
    for fact, value in asked.values:
        if fact is Fact.MEMBER_ID:
            found.append(Member(str(value), ""))
        elif fact is Fact.INSTANCE_ID and found:
            found[-1] = Member(found[-1].member_id, str(value))
    return found


def partitions_of(answered: Facts) -> int:
    """Return how many partitions the response to a heartbeat assigns."""
    return sum(len(topic.partitions) for topic in answered.topics) if _assigns(answered) else 0


def reason_of(asked: Facts, software_name: str | None, length: int) -> str | None:
    """Return why a member joins or leaves (KIP-800), by the length of the text, which stays in the kernel.

    length: in bytes, negative for none. Texts of other clients than Java's consumers are `other`.
    """
    member_id = asked.text(Fact.MEMBER_ID) or ""
    if length <= 0 or (asked.api_key == ApiKey.JOIN_GROUP and length == _WITH_ID + len(member_id.encode())):
        return None
    is_known = software_name == _JAVA and _STREAMS not in asked.texts(Fact.ASSIGNOR)
    return _JAVA_REASONS.get(ApiKey(asked.api_key), {}).get(length, "other") if is_known else "other"


def _assigns(answered: Facts) -> bool:
    # Responses to members of streams groups name the endpoints of all others, with their partitions.
    return bool(answered.topics) and answered.api_key != ApiKey.STREAMS_GROUP_HEARTBEAT
