"""ShareFetch as it stands on the wire, responses encoded by kio, with what the capture must say of it."""

from __future__ import annotations

import io
import struct
from datetime import timedelta
from typing import Any

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import Records, i16, i32, i32Timedelta, i64

from kafka_probe.protocol.facts import Facts, Kind, Status, TopicFacts
from tests.golden.wire import Frame, Seen, Topics, framed, topic_id, values_of
from tests.unit.protocol.messages import CLIENT_ID

SHARE_FETCH = 78
GROUP = "tills"
VERSIONS = range(3)
_LOCK_TIMEOUT = slice(7, 11)  # behind throttle time, error and null message; not in version 0, which kio does not know
_LIMITS = {0: 16, 1: 24, 2: 26}  # bytes from the session epoch to the topics
_REFUSED = 29


def share_fetch(version: int, correlation_id: int = 1) -> Frame:
    """A request of an open session for whatever it is about, with no acknowledgements."""
    group = bytes([len(GROUP) + 1]) + GROUP.encode()
    client_id = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode() + b"\0"
    body = group + b"\x03me" + bytes(_LIMITS[version]) + b"\x01\x01\0"
    wire = framed(struct.pack(">hhi", SHARE_FETCH, version, correlation_id) + client_id + body)
    facts = Facts(False, SHARE_FETCH, version, Status.COMPLETE, client_id=CLIENT_ID, groups=(GROUP,))
    return Frame(wire, Seen(facts, correlation_id, len(wire)))


def shared(version: int, topics: Topics, *, correlation_id: int = 1, acquired: int = 1) -> Frame:
    """A response by topic and partition, every partition with so many acquired ranges; those without a set refused."""
    schema: Any = load_payload_module(SHARE_FETCH, max(version, 1), EntityType.response)
    ranges = tuple(
        schema.AcquiredRecords(first_offset=i64(n), last_offset=i64(n + 5), delivery_count=i16(1))
        for n in range(acquired)
    )
    responses = tuple(
        schema.ShareFetchableTopicResponse(
            topic_id=topic_id(name),
            partitions=tuple(
                schema.PartitionData(
                    partition_index=i32(index),
                    error_code=ErrorCode.none if records else ErrorCode(_REFUSED),
                    error_message=None if records else "not yours",
                    acknowledge_error_code=i16(0),
                    acknowledge_error_message="a message that is longer than one step of the cursor copies, by far",
                    current_leader=schema.LeaderIdAndEpoch(leader_id=i32(1), leader_epoch=i32(2)),
                    records=Records(records.data if records else b""),
                    acquired_records=ranges,
                )
                for index, records in partitions.items()
            ),
        )
        for name, partitions in topics.items()
    )
    message = schema.ShareFetchResponse(
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=17)),
        error_code=ErrorCode.none,
        acquisition_lock_timeout=i32Timedelta.parse(timedelta(seconds=30)),
        responses=responses,
        node_endpoints=(),
    )
    encoded = io.BytesIO()
    entity_writer(type(message))(encoded, message)
    body = bytearray(encoded.getvalue())
    if version == 0:
        del body[_LOCK_TIMEOUT]
    wire = framed(struct.pack(">i", correlation_id) + b"\0" + body)
    return Frame(wire, Seen(_facts(version, topics), correlation_id, len(wire), _values(topics)))


def _facts(version: int, topics: Topics) -> Facts:
    refused = {name: [index for index, records in topics[name].items() if not records] for name in topics}
    named = tuple(
        TopicFacts(None, topic_id(name).hex, tuple(partitions), tuple((index, _REFUSED) for index in refused[name]))
        for name, partitions in topics.items()
    )
    errors = sum(map(len, refused.values()))
    filled = any(records and records.data for partitions in topics.values() for records in partitions.values())
    return Facts(
        True,
        SHARE_FETCH,
        version,
        Status.COMPLETE,
        errors=((_REFUSED, errors),) if errors else (),
        topics=named,
        has_records=filled,
    )


def _values(topics: Topics) -> tuple[tuple[Kind, int, int, int], ...]:
    return ((Kind.THROTTLE_MS, -1, -1, 17), *values_of(topics))
