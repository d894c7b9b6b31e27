"""Writes packets with comments and names of hosts as a capture file (pcapng)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from ipaddress import IPv4Address, IPv6Address
from typing import IO

from pcapng import FileWriter, blocks

from kafka_probe.conversations.connection_packets import ConnectionPackets
from kafka_probe.conversations.packets import Packet
from kafka_probe.text import printable

_KAFKA_PORT = 9092  # which Wireshark knows
_RAW_IP = 101  # LINKTYPE_RAW
_IPV4, _IPV6 = 1, 2  # types of records of a name resolution block
_COMMENT_CHARACTERS = 1000
_NAME_CHARACTERS = 255
_BLOCK_BYTES = 100  # of a packet in the file besides its data and comments, about
_COMMENTS = 20  # of a packet: a frame may have thousands of record sets


class CaptureFile:
    """A capture file of at most about `most_bytes`, written to a stream as packets come.

    It has an interface for each side, so that packets of one connection seen at both ends are distinct.
    packets: how many it has; full: one did not fit, and no further one is written.
    """

    def __init__(self, stream: IO[bytes], most_bytes: int) -> None:
        self._left_bytes = most_bytes
        self._ports: dict[int, None] = {}
        self.packets = 0
        self.full = False
        self._section = blocks.SectionHeader(
            options={"shb_userappl": f"kafka-probe {version('kafka-probe')}", "opt_comment": _ABOUT}
        )
        for side in ("client", "server"):
            self._section.new_member(
                blocks.InterfaceDescription, link_type=_RAW_IP, snaplen=0, options={"if_name": f"{side}'s end"}
            )
        self._writer = FileWriter(stream, self._section)
        self._named: set[IPv4Address | IPv6Address] = set()

    def announce(self, connection: ConnectionPackets) -> None:
        """Add the name of the host at which a connection was seen, if it fits."""
        self._ports[connection.server_port] = None
        address = connection.own.address
        node = printable(connection.node or "", _NAME_CHARACTERS)
        if not node or address.is_loopback or address in self._named or not self._take([node]):
            return
        self._named.add(address)
        kind = _IPV4 if address.version == 4 else _IPV6
        record = {"type": kind, "address": str(address), "names": [node]}
        self._writer.write_block(self._section.new_member(blocks.NameResolution, records=[record]))

    def write(self, packet: Packet, *, server_side: bool = False) -> bool:
        """Add a packet, seen at either end, with its first comments; return False if it does not fit."""
        comments = [printable(comment, _COMMENT_CHARACTERS) for comment in packet.comments[:_COMMENTS]]
        if further := len(packet.comments) - len(comments):
            comments.append(f"{further} more comments on this frame are left out")
        self.full = self.full or not self._take([*comments, packet.captured])
        if self.full:
            return False
        self.packets += 1
        self._writer.write_block(
            self._section.new_member(
                blocks.EnhancedPacket,
                interface_id=int(server_side),
                timestamp_high=packet.ts_us >> 32,
                timestamp_low=packet.ts_us & 0xFFFFFFFF,
                captured_len=len(packet.captured),
                packet_len=packet.size,
                packet_data=packet.captured,
                options={"opt_comment": comments} if comments else {},
            )
        )
        return True

    def summary(self) -> str:
        """Return what the file contains, and how to read it, as a text."""
        decode_as = " ".join(f"-d tcp.port=={port},kafka" for port in self._ports if port != _KAFKA_PORT)
        ended = " The file has as many bytes as --pcapng-bytes allows, and ends early." if self.full else ""
        read = f" Read them with {decode_as}" if decode_as else ""
        return f"{self.packets:,} packets.{ended}{read}"

    def _take(self, contents: Iterable[str | bytes]) -> bool:
        """Return True if a block with these contents fits, and count its bytes."""
        size = _BLOCK_BYTES + sum(len(part if isinstance(part, bytes) else part.encode()) for part in contents)
        if size > self._left_bytes:
            return False
        self._left_bytes -= size
        return True


_ABOUT = (
    "Rebuilt by kafka-probe from frames that its agents copied: contents of records and withheld fields are zeros, "
    "packets without frames are left out, checksums are zero."
)
