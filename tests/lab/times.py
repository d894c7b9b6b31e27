"""Extracts the times of exchanges and closes on the wire, by flow id, which is the same on both hosts."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.lab.tcpdump import Address, Segment

_Way = tuple[Address, Address]


@dataclass(slots=True)
class Times:
    """The times of exchanges and closes by flow id, µs since epoch.

    exchanges: of a request and of its response or None, also by correlation id. ends: of the first and the last FIN or
    RST. asked: API key and version of the requests. broken_off: of the last bytes of incomplete frames, such as
    responses to a client that has closed.
    """

    exchanges: dict[tuple[str, int], tuple[int, int | None]] = field(default_factory=dict)
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    asked: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    broken_off: list[int] = field(default_factory=list)
    _firsts: dict[_Way, int] = field(default_factory=dict)

    def see(self, segment: Segment, *, asks: bool) -> None:
        """Take a segment, in the order of the capture; asks: it goes to the broker."""
        if segment.restarts:
            self._firsts[segment.source, segment.target] = segment.sequence % (1 << 32)
        if segment.ends:
            flow_id = self._flow_id(segment, asks)
            self.ends[flow_id] = (self.ends.get(flow_id, (segment.time_us, 0))[0], segment.time_us)

    def add(self, segment: Segment, frame: bytes, *, asks: bool) -> None:
        """Add a frame that a segment completed."""
        (correlation_id,) = struct.unpack_from(">i", frame, 4 if asks else 0)
        key = self._flow_id(segment, asks), correlation_id
        if asks:
            api_key, api_version = struct.unpack_from(">hh", frame)
            self.asked[key] = api_key, api_version
        asked_us = segment.time_us if asks else self.exchanges[key][0]
        self.exchanges[key] = asked_us, None if asks else segment.time_us

    def _flow_id(self, segment: Segment, asks: bool) -> str:
        way = segment.source, segment.target
        ways = (way, way[::-1]) if asks else (way[::-1], way)
        return "".join(f"{self._firsts.get(each, 0):08x}" for each in ways)
