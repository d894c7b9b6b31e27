"""Contract: what may leave the kernel, per API and version, and which versions exist at all.

The kernel side turns `copy_rules()` into its map; the decoder expects no more than it allows. Never a record, never a
credential: an API leaves with its body only if it stands in LIMITS, everything else by its header.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_probe.protocol.schemas import Api, apis
from kafka_probe.protocol.walks import walk_of

_SMALL = 4096
# Enough for 1 024 partitions with their record sets elided, the least that contract 3.2 asks for.
_PARTITIONED = 65536
# The group and the error stand at the start; what members tell each other (subscriptions, assignments) stays behind.
_GROUP_ONLY = 1024

# Bytes of data that at most leave, (request, response): from the client id on, and from behind the correlation id on.
LIMITS: dict[str, tuple[int, int]] = {
    "Produce": (_PARTITIONED, _PARTITIONED),
    "Fetch": (_PARTITIONED, _PARTITIONED),
    "ShareFetch": (_PARTITIONED, _PARTITIONED),
    "ListOffsets": (_PARTITIONED, _PARTITIONED),
    "Metadata": (_PARTITIONED, _PARTITIONED),
    "OffsetCommit": (_PARTITIONED, _PARTITIONED),
    "OffsetFetch": (_PARTITIONED, _PARTITIONED),
    "FindCoordinator": (_SMALL, _SMALL),
    "JoinGroup": (_GROUP_ONLY, 64),
    "Heartbeat": (_GROUP_ONLY, 64),
    "LeaveGroup": (_GROUP_ONLY, _SMALL),
    "SyncGroup": (_GROUP_ONLY, 64),
    "SaslHandshake": (_GROUP_ONLY, 64),
    "ApiVersions": (_GROUP_ONLY, _SMALL),
    "ConsumerGroupHeartbeat": (_SMALL, _PARTITIONED),
}

# Record sets stand between the fields: the kernel walks over them and leaves a stub in their place.
WALKED_REQUESTS = frozenset({"Produce"})
WALKED_RESPONSES = frozenset({"Fetch", "ShareFetch"})

# Bodies that must never be added to LIMITS as they are. Whatever is in neither table has no facts we report.
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
    """What the kernel needs to know about one version of one API. A limit of 0 means header only: of a request the
    client id, of a response nothing behind the correlation id."""

    api_key: int
    api_version: int
    request_header_flexible: bool
    response_header_flexible: bool
    request_limit_bytes: int
    response_limit_bytes: int
    walk_request: bool
    walk_response: bool
    walk: bytes  # of the direction that is walked, see walks.py


def copy_rules() -> list[CopyRule]:
    """A rule for every version that exists: what has no rule is not Kafka, or newer than we know."""
    return [
        CopyRule(
            api.key,
            version,
            api.flexible(version),
            api.flexible_response_header(version),
            *LIMITS.get(api.name, (0, 0)),
            api.name in WALKED_REQUESTS,
            api.name in WALKED_RESPONSES,
            _walk(api, version),
        )
        for api in apis().values()
        for version in api.versions
    ]


def _walk(api: Api, version: int) -> bytes:
    if api.name not in WALKED_REQUESTS | WALKED_RESPONSES:
        return b""
    return walk_of(api, response=api.name in WALKED_RESPONSES, version=version)
