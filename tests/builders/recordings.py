"""Reads and writes recorded conversations: every frame as on the wire, in the order in which frames ended.

A file is base64 of xz of entries: number of the connection (2 bytes), 1 for a response and 0 for a request, the frame
with its length before it. Addresses, times and TCP itself are left out.
"""

from __future__ import annotations

import base64
import lzma
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "recorded" / "recordings"
_ENTRY = struct.Struct(">HBi")
_REQUEST_HEADER = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; `data` begins behind the length."""

    connection: int
    response: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its header read, and its response: None with acks=0, or when the connection ended before it."""

    frame: Frame
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    response: Frame | None


def names() -> list[str]:
    """Return the names of the recorded conversations."""
    return sorted(path.stem for path in DIRECTORY.glob("*.b64"))


def write(name: str, frames: Iterable[Frame]) -> Path:
    """Write a conversation; return its file."""
    entries = (_ENTRY.pack(each.connection, each.response, len(each.data)) + each.data for each in frames)
    path = _path(name)
    path.write_bytes(base64.encodebytes(lzma.compress(b"".join(entries), preset=9 | lzma.PRESET_EXTREME)))
    return path


def read(name: str) -> Iterator[Frame]:
    """Return the frames of a conversation."""
    entries = lzma.decompress(base64.decodebytes(_path(name).read_bytes()))
    at = 0
    while at < len(entries):
        connection, response, size = _ENTRY.unpack_from(entries, at)
        at += _ENTRY.size + size
        yield Frame(connection, bool(response), entries[at - size : at])


def exchanges(frames: Iterable[Frame]) -> list[Request]:
    """Return the requests with their responses: Kafka responds in order and repeats the correlation id."""
    responses: dict[tuple[int, int], Frame] = {}
    requests: list[Frame] = []
    for frame in frames:
        if frame.response:
            key = frame.connection, int.from_bytes(frame.data[:4], "big", signed=True)
            assert key not in responses, f"correlation id {key[1]} comes twice on connection {key[0]}"
            responses[key] = frame
        else:
            requests.append(frame)
    found = [_request(frame, responses) for frame in requests]
    assert not responses, "responses without a request"
    return found


def _path(name: str) -> Path:
    return DIRECTORY / f"{name}.b64"


def _request(frame: Frame, responses: dict[tuple[int, int], Frame]) -> Request:
    key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame.data)
    start = _REQUEST_HEADER.size
    client_id = frame.data[start : start + length].decode() if length >= 0 else None
    return Request(
        frame, key, version, correlation_id, client_id, responses.pop((frame.connection, correlation_id), None)
    )
