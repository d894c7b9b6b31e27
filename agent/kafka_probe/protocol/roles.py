"""Defines the fields of Kafka's messages that are kept, and their roles.

The tables are keyed by field name, since Kafka gives equal things equal names. Where a name alone is ambiguous, the key
includes the name of the enclosing field, or of the API if there is none. Fields in no table are skipped. Error codes
are kept in every scope and need no row.
"""

from __future__ import annotations

from enum import Enum, auto

from kafka_probe.protocol.facts import Fact, MeasureKind

_NO_FAILURE = "TopicConfigErrorCode"
"""The field of a topic that was created, but whose configuration the client may not describe."""


class Part(Enum):
    """The role of a field that is neither a Fact nor a measure. The facts have an attribute for each."""

    ERROR = "errors"
    TOPIC = "topics"  # an element of a list of topic names
    TOPIC_NAME = "topic names"
    TOPIC_ID = "topic ids"
    PARTITION_INDEX = "partitions"
    RECORDS = "record batches"


Role = Fact | MeasureKind | Part


class Scope(Enum):
    """The context of a field, which determines the meaning of its name."""

    FRAME = auto()
    TOPIC = auto()
    FORGOTTEN = auto()  # a topic to remove from a fetch session
    PARTITION = auto()
    ASIDE = auto()  # inside a topic, but outside its partitions


_TOPIC_FIELDS = frozenset({"TopicName", "Topic", "TopicId"})
_PARTITION_FIELDS = frozenset({"PartitionIndex", "Partition", "Index", "PartitionId"})
# Lists whose `Name` is a topic name; in other lists it names configurations, listeners, users and features.
_LISTS_OF_TOPICS = frozenset(
    {
        "ForgottenTopicsData",
        "RepartitionSourceTopics",
        "Responses",
        "Results",
        "ResultsByTopicV3AndBelow",
        "StateChangelogTopics",
        "TopicData",
        "TopicResults",
        "Topics",
        "V3AndBelowTopics",
    }
)


def scopes_inside(name: str, members: frozenset[str], scope: Scope) -> tuple[Scope, ...]:
    """Return the scopes that a struct opens, outermost first. A struct with a topic and a partition opens both."""
    if scope is Scope.FRAME:
        if not (members & _TOPIC_FIELDS or ("Name" in members and name in _LISTS_OF_TOPICS)):
            return ()
        topic = Scope.FORGOTTEN if name == "ForgottenTopicsData" else Scope.TOPIC
        return (topic, Scope.PARTITION) if members & _PARTITION_FIELDS else (topic,)
    if scope in (Scope.PARTITION, Scope.ASIDE):
        return ()
    return (Scope.PARTITION,) if members & _PARTITION_FIELDS else (Scope.ASIDE,)


def role_of(name: str, parent: str, scope: Scope) -> Role | None:
    """Return the role of a field that is not a struct, or None if the field is skipped."""
    if name.endswith("ErrorCode") and name != _NO_FAILURE:
        return Part.ERROR
    table = _ROLES[scope]
    return table.get(f"{parent}.{name}", table.get(name))


_FRAME: dict[str, Role | None] = {
    "ClientSoftwareName": Fact.SOFTWARE_NAME,
    "ClientSoftwareVersion": Fact.SOFTWARE_VERSION,
    "SaslHandshake.Mechanism": Fact.MECHANISM,
    "Mechanisms": Fact.MECHANISM_OFFERED,
    "ClusterId": Fact.CLUSTER_ID,
    "BrokerId": Fact.BROKER_ID,
    "NodeId": Fact.BROKER_ID,
    "LiveBrokers.Id": Fact.BROKER_ID,
    "ControllerId": Fact.CONTROLLER_ID,
    "VoterId": Fact.VOTER_ID,
    "LeaderId": Fact.LEADER_ID,
    "ReplicaId": Fact.REPLICA_ID,
    "Host": Fact.HOST,
    **dict.fromkeys(("Acls.Host", "Creations.Host", "MatchingAcls.Host"), None),  # the host that an ACL applies to
    "HostName": Fact.HOST,
    "V0Host": Fact.HOST,
    "ClientHost": Fact.HOST,
    "Port": Fact.PORT,
    "V0Port": Fact.PORT,
    "ApiKey": Fact.API_KEY,
    "ApiKeys.MinVersion": Fact.MIN_VERSION,
    "ApiKeys.MaxVersion": Fact.MAX_VERSION,
    "FinalizedFeaturesEpoch": Fact.FEATURES_EPOCH,
    "FindCoordinator.KeyType": Fact.KEY_TYPE,
    "FindCoordinator.Key": Fact.KEY,
    "Coordinators.Key": Fact.KEY,
    "CoordinatorKeys": Fact.KEY,
    "GroupId": Fact.GROUP,
    "GroupIds": Fact.GROUP,
    "GroupsNames": Fact.GROUP,
    "DescribeGroups.Groups": Fact.GROUP,
    "GroupType": Fact.GROUP_TYPE,
    "ProtocolType": Fact.GROUP_PROTOCOL,
    "ProtocolName": Fact.ASSIGNOR,
    "ProtocolData": Fact.ASSIGNOR,
    "Protocols.Name": Fact.ASSIGNOR,
    "ServerAssignor": Fact.ASSIGNOR,
    "AssignorName": Fact.ASSIGNOR,
    "MemberId": Fact.MEMBER_ID,
    "JoinGroup.Leader": Fact.LEADING_MEMBER_ID,
    "GroupInstanceId": Fact.INSTANCE_ID,
    "InstanceId": Fact.INSTANCE_ID,
    "ClientInstanceId": Fact.CLIENT_INSTANCE_ID,
    "TransactionalId": Fact.TRANSACTIONAL_ID,
    "TransactionalIds": Fact.TRANSACTIONAL_ID,
    "V3AndBelowTransactionalId": Fact.TRANSACTIONAL_ID,
    "ProducerId": Fact.PRODUCER_ID,
    "V3AndBelowProducerId": Fact.PRODUCER_ID,
    "OngoingTxnProducerId": Fact.PRODUCER_ID,
    "ProducerIdStart": Fact.PRODUCER_ID,
    "ProducerIdFilters": Fact.PRODUCER_ID,
    "ProducerEpoch": Fact.PRODUCER_EPOCH,
    "V3AndBelowProducerEpoch": Fact.PRODUCER_EPOCH,
    "OngoingTxnProducerEpoch": Fact.PRODUCER_EPOCH,
    "GenerationId": Fact.GENERATION,
    "GenerationIdOrMemberEpoch": Fact.GENERATION,
    "MemberEpoch": Fact.MEMBER_EPOCH,
    "GroupEpoch": Fact.GROUP_EPOCH,
    "AssignmentEpoch": Fact.ASSIGNMENT_EPOCH,
    "Topology.Epoch": Fact.TOPOLOGY_EPOCH,
    "TopologyEpoch": Fact.TOPOLOGY_EPOCH,
    "EndpointInformationEpoch": Fact.ENDPOINT_EPOCH,
    "BrokerEpoch": Fact.BROKER_EPOCH,
    "PreviousBrokerEpoch": Fact.BROKER_EPOCH,
    "ControllerEpoch": Fact.CONTROLLER_EPOCH,
    "CoordinatorEpoch": Fact.COORDINATOR_EPOCH,
    "LeaderEpoch": Fact.LEADER_EPOCH,
    "CurrentLeaderEpoch": Fact.LEADER_EPOCH,
    "ReplicaEpoch": Fact.REPLICA_EPOCH,
    "SessionId": Fact.SESSION_ID,
    "SessionEpoch": MeasureKind.SESSION_EPOCH,
    "ShareSessionEpoch": MeasureKind.SESSION_EPOCH,
    "IsolationLevel": Fact.ISOLATION_LEVEL,
    "Acks": Fact.ACKS,
    "TimeoutMs": Fact.TIMEOUT_MS,
    "timeoutMs": Fact.TIMEOUT_MS,
    "SessionTimeoutMs": Fact.SESSION_TIMEOUT_MS,
    "RebalanceTimeoutMs": Fact.REBALANCE_TIMEOUT_MS,
    "TransactionTimeoutMs": Fact.TRANSACTION_TIMEOUT_MS,
    "AcquisitionLockTimeoutMs": Fact.LOCK_TIMEOUT_MS,
    "HeartbeatIntervalMs": Fact.HEARTBEAT_INTERVAL_MS,
    "MaxWaitMs": Fact.MAX_WAIT_MS,
    "MinBytes": Fact.MIN_BYTES,
    "MaxBytes": Fact.MAX_BYTES,
    "MaxRecords": Fact.MAX_RECORDS,
    "CurrentMetadataOffset": MeasureKind.METADATA_OFFSET,
    "TaskOffsets.Offset": MeasureKind.TASK_OFFSET,
    "TaskEndOffsets.Offset": MeasureKind.TASK_OFFSET,
    "ThrottleTimeMs": MeasureKind.THROTTLE_MS,
    "TopicNames": Part.TOPIC,
    "SubscribedTopicNames": Part.TOPIC,
    "Subtopologies.SourceTopics": Part.TOPIC,
    "RepartitionSinkTopics": Part.TOPIC,
}
_TOPIC: dict[str, Role | None] = {
    "StateChangelogTopics.Partitions": None,  # a number of partitions, no index
    "RepartitionSourceTopics.Partitions": None,
    "Name": Part.TOPIC_NAME,
    "Topic": Part.TOPIC_NAME,
    "TopicName": Part.TOPIC_NAME,
    "TopicId": Part.TOPIC_ID,
    "Partitions": Part.PARTITION_INDEX,
    "PartitionIndexes": Part.PARTITION_INDEX,
}
_PARTITION: dict[str, Role | None] = {
    "TopicName": Part.TOPIC_NAME,  # in a struct that names topic and partition
    "PartitionIndex": Part.PARTITION_INDEX,
    "Partition": Part.PARTITION_INDEX,
    "Index": Part.PARTITION_INDEX,
    "PartitionId": Part.PARTITION_INDEX,
    "Records": Part.RECORDS,
    "UnalignedRecords": Part.RECORDS,
    "FetchOffset": MeasureKind.FETCH_OFFSET,
    "BaseOffset": MeasureKind.OFFSET,
    "CommittedOffset": MeasureKind.OFFSET,
    "Offset": MeasureKind.OFFSET,
    "OldStyleOffsets": MeasureKind.OFFSET,
    "Timestamp": MeasureKind.TIMESTAMP,
    "HighWatermark": MeasureKind.HIGH_WATERMARK,
    "LowWatermark": MeasureKind.LOW_WATERMARK,
    "LastStableOffset": MeasureKind.LAST_STABLE_OFFSET,
    "LogStartOffset": MeasureKind.START_OFFSET,
    "StartOffset": MeasureKind.START_OFFSET,
    "CurrentTxnStartOffset": MeasureKind.START_OFFSET,
    "EndOffset": MeasureKind.END_OFFSET,
    "LogEndOffset": MeasureKind.END_OFFSET,
    "FirstOffset": MeasureKind.FIRST_OFFSET,
    "LastOffset": MeasureKind.LAST_OFFSET,
    "Lag": MeasureKind.LAG,
    "OffsetLag": MeasureKind.LAG,
    "Leader": MeasureKind.LEADER_ID,
    "LeaderId": MeasureKind.LEADER_ID,
    "PreferredReadReplica": MeasureKind.READ_REPLICA,
    "ReplicaId": MeasureKind.REPLICA_ID,
    "CandidateId": MeasureKind.REPLICA_ID,
    "BrokerId": MeasureKind.REPLICA_ID,
    "BrokerEpoch": MeasureKind.BROKER_EPOCH,
    "ControllerEpoch": MeasureKind.CONTROLLER_EPOCH,
    "CoordinatorEpoch": MeasureKind.COORDINATOR_EPOCH,
    "LeaderEpoch": MeasureKind.LEADER_EPOCH,
    "CurrentLeaderEpoch": MeasureKind.LEADER_EPOCH,
    "CommittedLeaderEpoch": MeasureKind.OFFSET_EPOCH,
    "LastFetchedEpoch": MeasureKind.OFFSET_EPOCH,
    "LastOffsetEpoch": MeasureKind.OFFSET_EPOCH,
    "Epoch": MeasureKind.OFFSET_EPOCH,
    "PartitionEpoch": MeasureKind.PARTITION_EPOCH,
    "ReplicaEpoch": MeasureKind.REPLICA_EPOCH,
    "StateEpoch": MeasureKind.STATE_EPOCH,
    "ProducerId": MeasureKind.PRODUCER_ID,
    "ProducerEpoch": MeasureKind.PRODUCER_EPOCH,
    "PartitionMaxBytes": MeasureKind.PARTITION_MAX_BYTES,
}
_ROLES: dict[Scope, dict[str, Role | None]] = {
    Scope.FRAME: _FRAME,
    Scope.TOPIC: _TOPIC,
    Scope.FORGOTTEN: _TOPIC,
    Scope.PARTITION: _PARTITION,
    Scope.ASIDE: {},
}
