"""Defines which exchanges change the members of a group, and how, for groups of all protocols of Kafka.

Classic groups have JoinGroup, SyncGroup and LeaveGroup. Members of consumer (KIP-848), share (KIP-932) and streams
groups (KIP-1071) join and leave by heartbeats, by their epoch in the request.
"""

from __future__ import annotations

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.protocol.facts import Fact, Facts

GROUP_CHANGES = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP})
"""APIs of which each exchange may change the members of a group."""
HEARTBEATS = frozenset(
    {
        *(ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT),
        *(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT),
    }
)
"""APIs of which few exchanges change the members of a group."""
_JOINING_EPOCH = 0  # below it: the member leaves
_NEW = ERROR_CODES["MEMBER_ID_REQUIRED"]
_REMOVED = ERROR_CODES["UNKNOWN_MEMBER_ID"]
_FENCED = {ERROR_CODES[name] for name in ("FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH")}
_AGAIN = {
    ERROR_CODES[name]
    for name in (
        *("REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "NOT_COORDINATOR"),
        *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"),
    )
}
"""Errors after which a member joins again."""
# Lengths of the reasons that the Java client gives (KIP-800), from AbstractCoordinator, ConsumerCoordinator and
# ClassicKafkaConsumer of 3.9 and 4.3. No other reason of these classes has such a length.
_JAVA_REASONS = {
    ApiKey.LEAVE_GROUP: {34: "poll_timeout", 28: "close", 41: "unsubscribe"},
    ApiKey.JOIN_GROUP: {27: "metadata_change"},
}
_JAVA = "apache-kafka-java"


def joins_or_leaves(facts: Facts) -> bool:
    """Return True if a frame is a heartbeat by which a member joins or leaves its group."""
    epoch = facts.number(Fact.MEMBER_EPOCH)
    return facts.api_key in HEARTBEATS and not facts.response and epoch is not None and epoch <= _JOINING_EPOCH


def may_change_member(facts: Facts) -> bool:
    """Return True if the response to a heartbeat assigns partitions, or refuses the member."""
    return bool(facts.topics) or any(code == _REMOVED or code in _FENCED for code, _ in facts.errors)


def change_of_member(asked: Facts, answered: Facts | None) -> str | None:
    """Return what an exchange changed for a member, as `membership` of the `request` event; None: nothing."""
    if asked.api_key not in GROUP_CHANGES and asked.api_key not in HEARTBEATS:
        return None
    codes = {code for code, _ in answered.errors} if answered else set()
    if _NEW in codes:
        return "new"
    if _REMOVED in codes:
        return "removed"
    if codes & _FENCED:
        return "fenced"
    epoch = asked.number(Fact.MEMBER_EPOCH)
    if codes:
        joins = asked.api_key == ApiKey.JOIN_GROUP or epoch == _JOINING_EPOCH
        return "refused" if joins and not codes & _AGAIN else None
    if asked.api_key == ApiKey.LEAVE_GROUP or (epoch is not None and epoch < _JOINING_EPOCH):
        return "left"  # also without a response, for which a client that ends does not wait
    if answered is None:
        return None
    if asked.api_key == ApiKey.JOIN_GROUP or epoch == _JOINING_EPOCH:
        return "joined"
    return "assigned" if asked.api_key == ApiKey.SYNC_GROUP or answered.topics else None


def reason_of(api_key: int, software_name: str | None, length: int) -> str | None:
    """Return why a member joins or leaves (KIP-800), by the length of the text, which stays in the kernel.

    length: in bytes, negative for none. The texts of other clients than Java's are `other`.
    """
    if length <= 0:
        return None
    known = _JAVA_REASONS.get(ApiKey(api_key), {}) if software_name in (None, _JAVA) else {}
    return known.get(length, "other")
