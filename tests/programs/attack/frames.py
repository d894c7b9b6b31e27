"""Builds the requests of floods byte by byte: nothing is checked, so names may contain any bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kafka_probe.protocol.api_keys import ApiKey

_PRODUCE_VERSION, _METADATA_VERSION, _HEARTBEAT_VERSION = 7, 4, 1


def framed(data: bytes) -> bytes:
    """Return `data` with its length in front."""
    return struct.pack(">i", len(data)) + data


def text(value: bytes) -> bytes:
    """Return a string of the versions before the compact ones."""
    return struct.pack(">h", len(value)) + value


def request(key: int, version: int, correlation_id: int, client_id: bytes, body: bytes) -> bytes:
    """Return a frame with request header 1."""
    return framed(struct.pack(">hhi", key, version, correlation_id) + text(client_id) + body)


def metadata(correlation_id: int, client_id: bytes, topics: Iterable[bytes]) -> bytes:
    """Return a Metadata request for these topics."""
    names = [text(topic) for topic in topics]
    body = struct.pack(">i", len(names)) + b"".join(names) + b"\0"
    return request(ApiKey.METADATA, _METADATA_VERSION, correlation_id, client_id, body)


def produce(
    correlation_id: int, client_id: bytes, topics: Iterable[bytes], records: bytes = b"", *, acks: int = 1
) -> bytes:
    """Return a Produce request for partition 0 of these topics, each with these records."""
    each = struct.pack(">iii", 1, 0, len(records)) + records
    named = [text(topic) + each for topic in topics]
    body = struct.pack(">hhii", -1, acks, 1000, len(named)) + b"".join(named)
    return request(ApiKey.PRODUCE, _PRODUCE_VERSION, correlation_id, client_id, body)


def heartbeat(correlation_id: int, client_id: bytes, group: bytes) -> bytes:
    """Return a Heartbeat of a member of this group."""
    body = text(group) + struct.pack(">i", 1) + text(b"member")
    return request(ApiKey.HEARTBEAT, _HEARTBEAT_VERSION, correlation_id, client_id, body)


# Without brokers, partitions or topics: the least that each API may answer.
_ANSWERS = {
    ApiKey.PRODUCE: struct.pack(">ii", 0, 0),
    ApiKey.METADATA: struct.pack(">iihii", 0, 0, -1, 0, 0),
    ApiKey.HEARTBEAT: struct.pack(">ih", 0, 0),
}


def answer(asked: bytes) -> bytes:
    """Return the answer to a request of this module, found by its key and correlation id."""
    key, _, correlation_id = struct.unpack_from(">hhi", asked, 4)
    return framed(struct.pack(">i", correlation_id) + _ANSWERS[key])
