"""Makes TCP packets of a connection's frames, as they could have been captured on a wire without losses."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from kafka_probe.conversations.wire_frames import WireFrame, Zeros

SEGMENT_BYTES = 65_000
"""Payload of one packet."""
MOST_SEGMENTED_BYTES = 128 << 20
"""Size of the longest frame whose packets are all written. Brokers refuse requests above 100 MiB by default."""
MOST_FILLED_BYTES = (1 << 20) + (64 << 10)
"""Size of the longest request that is captured whole. Producers send at most 1 MiB by default."""
MayFill = Callable[[int], bool]
"""Returns True if so many withheld bytes may be captured as zeros, and counts them."""
_WINDOW, _HOPS, _TCP, _TCP_BYTES = 0xFFFF, 64, 6, 20
_MODULUS = 1 << 32
_ENDPOINT = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([0-9]{1,5})")


class Bit(IntFlag):
    """The flags of a TCP header (RFC 9293, 3.1)."""

    FIN = 1
    SYN = 2
    RST = 4
    PSH = 8
    ACK = 16


class Packet(NamedTuple):
    """An IP packet: its time in µs since epoch, what is captured of it, its true size, and comments."""

    ts_us: int
    captured: bytes
    size: int
    comments: Sequence[str] = ()


class Endpoint(NamedTuple):
    """An address and a port."""

    address: IPv4Address | IPv6Address
    port: int

    @classmethod
    def of(cls, text: str | None) -> Endpoint | None:
        """Return the endpoint of a text such as `10.0.0.1:9092` or `[::1]:9092`; None of any other text.

        An IPv4 address in IPv6 notation becomes IPv4. A scope, as in `[fe80::1%eth0]:9092`, is in no packet.
        """
        found = _ENDPOINT.fullmatch(text or "")
        try:
            address = ip_address(found[1] or found[2]) if found else None
        except ValueError:
            return None
        if found is None or address is None or int(found[3]) >= 1 << 16:
            return None
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return cls(mapped or address, int(found[3]))


@dataclass(slots=True)
class _Direction:
    source: Endpoint
    target: Endpoint
    next: int | None  # sequence number behind the last byte; None before the first


class PacketMaker:
    """Makes the packets of one connection. client_base, server_base: sequence number of the first payload, if known."""

    def __init__(self, client: Endpoint, server: Endpoint, client_base: int | None, server_base: int | None) -> None:
        self._directions = {
            False: _Direction(client, server, client_base),
            True: _Direction(server, client, server_base),
        }

    def sequence(self, *, response: bool) -> int:
        """Return the sequence number of a direction's next byte, as far as it is known."""
        return self._directions[response].next or 0

    def handshake(self, ts_us: int) -> Iterator[Packet]:
        """Yield the three packets that open the connection; none if the sequence numbers are not known."""
        client, server = self._directions[False].next, self._directions[True].next
        if client is None or server is None:
            return
        yield self._packet(ts_us, False, Bit.SYN, (client - 1) % _MODULUS, 0)
        yield self._packet(ts_us, True, Bit.SYN | Bit.ACK, (server - 1) % _MODULUS, client)
        yield self._packet(ts_us, False, Bit.ACK, client, server)

    def frame(
        self, ts_us: int, tcp_seq: int, wire: WireFrame, size: int, may_fill: MayFill, *, response: bool
    ) -> Iterator[Packet]:
        """Yield the packets of a frame; only the first if it exceeds MOST_SEGMENTED_BYTES.

        size: bytes on the wire, of which `wire` may know less.
        """
        # tshark matches a request with its response only if all of it is captured. Of a long response it waits for the
        # other packets unless the first one is cut.
        whole = not response and size <= MOST_FILLED_BYTES and may_fill(wire.zeros)
        if not response and not whole:
            wire.comments.append("captured up to withheld bytes: Wireshark does not match it with its response")
        if size > MOST_SEGMENTED_BYTES:
            wire.comments.append("packets after the first one of this frame are left out")
        captured = _segments(wire) if whole else iter([_beginning(wire, min(size, SEGMENT_BYTES - 1), may_fill)])
        for start in range(0, size if size <= MOST_SEGMENTED_BYTES else SEGMENT_BYTES, SEGMENT_BYTES):
            payload = min(size - start, SEGMENT_BYTES)
            yield self._packet(
                ts_us,
                response,
                Bit.PSH | Bit.ACK,
                (tcp_seq + start) % _MODULUS,
                self.sequence(response=not response),
                next(captured, b"")[:payload],
                payload,
                () if start else wire.comments,
            )
        self._directions[response].next = (tcp_seq + size) % _MODULUS

    def fin(self, ts_us: int, *, of_server: bool) -> Packet:
        """Return the packet by which a side ends its direction."""
        packet = self._end(ts_us, Bit.FIN | Bit.ACK, of_server)
        direction = self._directions[of_server]
        direction.next = ((direction.next or 0) + 1) % _MODULUS
        return packet

    def reset(self, ts_us: int, *, of_server: bool) -> Packet:
        """Return the packet by which a side resets the connection."""
        return self._end(ts_us, Bit.RST | Bit.ACK, of_server)

    def _end(self, ts_us: int, flags: Bit, of_server: bool) -> Packet:
        return self._packet(
            ts_us, of_server, flags, self._directions[of_server].next or 0, self._directions[not of_server].next or 0
        )

    def _packet(
        self,
        ts_us: int,
        response: bool,
        flags: Bit,
        sequence: int,
        acknowledged: int,
        captured: bytes = b"",
        payload: int = 0,
        comments: Sequence[str] = (),
    ) -> Packet:
        direction = self._directions[response]
        head = _headers(direction.source, direction.target, flags, sequence, acknowledged, payload)
        return Packet(max(ts_us, 0), head + captured, len(head) + payload, comments)


def _headers(source: Endpoint, target: Endpoint, flags: Bit, sequence: int, acknowledged: int, payload: int) -> bytes:
    """Return the headers of IP and TCP. Checksums are 0: none was captured."""
    tcp = struct.pack(
        ">HHIIBBHHH", source.port, target.port, sequence, acknowledged, _TCP_BYTES << 2, flags, _WINDOW, 0, 0
    )
    addresses = source.address.packed + target.address.packed
    if source.address.version == 4:
        return struct.pack(">BBHIBBH", 0x45, 0, 40 + payload, 0, _HOPS, _TCP, 0) + addresses + tcp
    return struct.pack(">IHBB", 6 << 28, _TCP_BYTES + payload, _TCP, _HOPS) + addresses + tcp


def _segments(wire: WireFrame) -> Iterator[bytes]:
    """Yield the bytes of a frame by packets."""
    segment = bytearray()
    for part in wire.parts:
        left = part.size if isinstance(part, Zeros) else len(part)
        while left:
            size = min(left, SEGMENT_BYTES - len(segment))
            segment += bytes(size) if isinstance(part, Zeros) else part[len(part) - left :][:size]
            left -= size
            if len(segment) == SEGMENT_BYTES:
                yield bytes(segment)
                segment.clear()
    yield bytes(segment)


def _beginning(wire: WireFrame, limit: int, may_fill: MayFill) -> bytes:
    """Return the first bytes of a frame, at most `limit`.

    They end before zeros that reach to the limit, or that may not be filled.
    """
    beginning = bytearray()
    zeros = 0  # since the last known byte
    for part in wire.parts:
        left = limit - len(beginning) - zeros
        if isinstance(part, Zeros):
            zeros += min(part.size, left)
        elif part[:left]:
            if zeros and not may_fill(zeros):
                break
            beginning += bytes(zeros) + part[:left]
            zeros = 0
    return bytes(beginning)
