"""Writes a recording as a capture file for other programs: one loopback segment per frame, none acknowledged."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.builders.recordings import Frame, names, read

PORT = 9092
_FILE_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1)  # Ethernet
_ETHERNET = bytes(12) + b"\x08\x00"
_LOOPBACK = socket.inet_aton("127.0.0.1")
FIRST_CLIENT_PORT = 20_000
_PSH_ACK, _TCP = 0x18, 6


def recorded() -> list[Frame]:
    """Return all recordings as one, with their connections numbered on."""
    frames: list[Frame] = []
    for name in names():
        first = max((frame.connection + 1 for frame in frames), default=0)
        frames += [replace(frame, connection=first + frame.connection) for frame in read(name)]
    return frames


def write_pcap(file: Path, frames: Iterable[Frame]) -> None:
    """Write a capture file with a port per connection, counted up, and a segment per frame, in the given order."""
    sent: dict[tuple[int, bool], int] = {}
    with file.open("wb") as output:
        output.write(_FILE_HEADER)
        for number, frame in enumerate(frames):
            payload = struct.pack(">i", len(frame.data)) + frame.data
            own, other = (frame.connection, frame.response), (frame.connection, not frame.response)
            packet = _packet(frame, sent.get(own, 1), sent.get(other, 1), payload)
            sent[own] = sent.get(own, 1) + len(payload)
            output.write(struct.pack("<IIII", number // 1000, number % 1000 * 1000, len(packet), len(packet)) + packet)


def _packet(frame: Frame, sequence: int, acknowledged: int, payload: bytes) -> bytes:
    client = FIRST_CLIENT_PORT + frame.connection
    ports = (PORT, client) if frame.response else (client, PORT)
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence, acknowledged, 5 << 4, _PSH_ACK, 0xFFFF, 0, 0)
    size = 20 + len(tcp) + len(payload)
    ip = struct.pack(">BBHIBBH4s4s", 0x45, 0, size, 0, 64, _TCP, 0, _LOOPBACK, _LOOPBACK)
    return _ETHERNET + ip + tcp + payload
