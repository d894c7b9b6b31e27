"""Defines which bytes may be copied to user space, per API and version, and which versions exist.

The kernel side turns `copy_rules()` into its map; the decoder expects no more than the rules allow. Records,
credentials and configuration values are never copied. A body is copied only if its API is in LIMITS, and without its
record sets, opaque bytes, HIDDEN and EMPTIED strings, and tagged fields that the version does not have. Every API is in
LIMITS or in HEADER_ONLY.

All other strings of a body in LIMITS are copied. So for a new API or version read its definition, and put into HIDDEN
each string that is a free text, a principal or a credential, or that programs send to each other through the broker,
and into EMPTIED each value of a configuration. tests/unit/protocol/test_kernel_allow_list.py finds the usual names of
these only. Then roles.py lists the fields that the decoder reads, `make schemas` writes the hash of the rules, and
`make docs` the list of what is copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from kafka_probe.protocol.copy_programs import copy_program_of
from kafka_probe.protocol.schemas import Api, apis
from kafka_probe.protocol.wire import STUB_FIELDS

# For bodies without lists that grow with the cluster.
_SMALL = 4096
# Enough for 1,024 partitions. Of all bodies a Fetch response 18 needs most: an id and 42 bytes per partition. Stubs of
# record sets are not counted.
_LISTS = 65536

# Most bytes copied to user space, (request, response): from the client id on, and from behind the correlation id on.
LIMITS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            *("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
            *("ShareFetch", "ShareAcknowledge"),
            *("Metadata", "DescribeTopicPartitions", "DescribeCluster", "DescribeProducers", "DescribeLogDirs"),
            *("CreateTopics", "DeleteTopics", "CreatePartitions", "ElectLeaders"),
            *("AlterPartitionReassignments", "ListPartitionReassignments", "AlterReplicaLogDirs"),
            *("OffsetCommit", "OffsetFetch", "OffsetDelete", "TxnOffsetCommit"),
            *("AddPartitionsToTxn", "WriteTxnMarkers", "DescribeTransactions", "ListTransactions"),
            *("FindCoordinator", "JoinGroup", "SyncGroup", "LeaveGroup"),
            *("ListGroups", "DescribeGroups", "DeleteGroups"),
            *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "ShareGroupHeartbeat", "ShareGroupDescribe"),
            *("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
            *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
            *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState"),
            "ReadShareGroupStateSummary",
            *("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition"),
            *("AssignReplicasToDirs", "DescribeQuorum"),
            *("DescribeAcls", "CreateAcls", "DeleteAcls", "DescribeClientQuotas", "AlterClientQuotas"),
            "ListConfigResources",
        ),
        (_LISTS, _LISTS),
    ),
    **dict.fromkeys(
        (
            *("ApiVersions", "SaslHandshake", "Heartbeat"),
            *("InitProducerId", "AddOffsetsToTxn", "EndTxn", "AllocateProducerIds"),
            *("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "AddRaftVoter", "RemoveRaftVoter", "UpdateRaftVoter"),
            *("BrokerRegistration", "BrokerHeartbeat", "UnregisterBroker", "ControllerRegistration", "UpdateFeatures"),
            "GetTelemetrySubscriptions",
        ),
        (_SMALL, _SMALL),
    ),
}

# ACLs and quotas: error codes are copied, names of users, hosts and resources are not.
_ACL = frozenset({"ResourceName", "Principal", "Host", "ErrorMessage"})
_ACL_FILTER = frozenset({"ResourceNameFilter", "PrincipalFilter", "HostFilter"})
_QUOTA = frozenset({"EntityType", "EntityName", "Key", "ErrorMessage"})
# Strings of these bodies of which only the length is copied, by field name.
HIDDEN: dict[str, frozenset[str]] = {
    "DescribeAcls": _ACL | _ACL_FILTER,
    "CreateAcls": _ACL,
    "DeleteAcls": _ACL | _ACL_FILTER,
    "DescribeClientQuotas": _QUOTA | {"Match"},
    "AlterClientQuotas": _QUOTA,
    "ListConfigResources": frozenset({"ResourceName"}),
    "OffsetCommit": frozenset({"CommittedMetadata"}),
    "TxnOffsetCommit": frozenset({"CommittedMetadata"}),
    "OffsetFetch": frozenset({"Metadata"}),
    "JoinGroup": frozenset({"Reason"}),  # free text
    "LeaveGroup": frozenset({"Reason"}),
}
# Strings of these bodies of which not even the length is copied, by field name: an empty string replaces each.
EMPTIED: dict[str, frozenset[str]] = {
    "CreateTopics": frozenset({"Value", "ErrorMessage"}),  # the message repeats a rejected value
    # Configurations of topics in the topology, tags of clients, and errors of the topics that the broker created.
    "StreamsGroupHeartbeat": frozenset({"Value", "StatusDetail"}),
    "StreamsGroupDescribe": frozenset({"Value"}),
}

# APIs whose bodies are never copied to user space, and why.
HEADER_ONLY: dict[str, str] = {
    "SaslAuthenticate": "credentials",
    "AlterUserScramCredentials": "salted passwords",
    "DescribeUserScramCredentials": "names of users with their credentials' strength",
    "CreateDelegationToken": "the token's secret",
    "RenewDelegationToken": "the token's secret",
    "ExpireDelegationToken": "the token's secret",
    "DescribeDelegationToken": "the token's secret",
    "DescribeConfigs": "configuration values may be secrets",
    "AlterConfigs": "configuration values may be secrets",
    "IncrementalAlterConfigs": "configuration values may be secrets",
    "PushTelemetry": "the client's metrics, opaque to us",
    "Envelope": "any other request, with the principal it is sent for",
    "FetchSnapshot": "records of the metadata log, credentials among them",
}


@dataclass(frozen=True, slots=True)
class CopyRule:
    """The kernel's rule for one version of one API. Limits are in bytes.

    A limit of 0 means header only: of a request the client id, of a response nothing behind the correlation id.
    Programs are ops of copy_programs.py; an empty program copies the body unchanged.
    """

    api_key: int
    api_version: int
    flexible: bool  # lengths and counts in its bodies are varints
    request_limit_bytes: int
    response_limit_bytes: int
    request_program: tuple[int, ...]
    response_program: tuple[int, ...]


class KeptBack(NamedTuple):
    """The strings that are not copied, as HIDDEN and EMPTIED: by default those of this release."""

    hidden: Mapping[str, frozenset[str]] = HIDDEN
    emptied: Mapping[str, frozenset[str]] = EMPTIED


_OF_THIS_RELEASE = KeptBack()


def copy_rules(kept_back: KeptBack = _OF_THIS_RELEASE) -> list[CopyRule]:
    """Return a rule for every existing version. A frame without a rule is not Kafka, or newer than the schemas."""
    return [
        CopyRule(
            api.key,
            version,
            api.flexible(version),
            *LIMITS.get(api.name, (0, 0)),
            *(_copy_program(api, version, kept_back, response=response) for response in (False, True)),
        )
        for api in apis().values()
        for version in api.versions
    ]


@cache
def rules_hash() -> str:
    """Return 16 hexadecimal digits that are the same only for the same rules and summaries of record sets.

    They are the same in each process.
    """
    return hashlib.sha256(repr((copy_rules(), STUB_FIELDS)).encode()).hexdigest()[:16]


def _copy_program(api: Api, version: int, kept_back: KeptBack, *, response: bool) -> tuple[int, ...]:
    if not LIMITS.get(api.name, (0, 0))[response]:
        return ()
    return copy_program_of(
        api,
        response=response,
        version=version,
        hidden=kept_back.hidden.get(api.name, frozenset()),
        emptied=kept_back.emptied.get(api.name, frozenset()),
    )
