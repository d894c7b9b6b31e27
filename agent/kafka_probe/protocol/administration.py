"""Lists the APIs that change a cluster: its topics, ACLs, quotas, configurations, groups and offsets.

OffsetCommit and DeleteRecords are not among them: consumers and Kafka Streams send them all the time.
"""

from __future__ import annotations

from kafka_probe.protocol.api_keys import ApiKey

ADMINISTRATION = frozenset(
    {
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
        *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CLIENT_QUOTAS),
        *(ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
        *(ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),
        *(ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE),
        *(ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS),
        *(ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ALTER_REPLICA_LOG_DIRS),
        *(ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER),
    }
)
"""Without OffsetCommit, because consumers that are no members of a group commit as tools do, and without DeleteRecords,
by which Kafka Streams empties its repartition topics every half minute."""
