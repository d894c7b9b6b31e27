"""Writes packets with comments and names of hosts as a capture file (pcapng)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from ipaddress import IPv4Address, IPv6Address
from typing import IO

from pcapng import FileWriter, blocks

from kafka_probe.text import printable
from kafka_probe_console.packets import Packet

_RAW_IP = 101  # LINKTYPE_RAW
_IPV4, _IPV6 = 1, 2  # types of records of a name resolution block
_COMMENT_CHARACTERS = 1000
_NAME_CHARACTERS = 255
_BLOCK_BYTES = 100  # of a packet in the file besides its data and comments, about
_COMMENTS = 20  # of a packet: a frame may have thousands of record sets


class CaptureFile:
    """A capture file with one interface and at most about `most_bytes`, written to a stream as packets come."""

    def __init__(self, stream: IO[bytes], most_bytes: int) -> None:
        self._left_bytes = most_bytes
        self._section = blocks.SectionHeader(
            options={"shb_userappl": f"kafka-probe {version('kafka-probe')}", "opt_comment": _ABOUT}
        )
        self._interface = self._section.new_member(
            blocks.InterfaceDescription, link_type=_RAW_IP, snaplen=0, options={"if_name": "kafka-probe"}
        )
        self._writer = FileWriter(stream, self._section)
        self._named: set[IPv4Address | IPv6Address] = set()

    def name(self, address: IPv4Address | IPv6Address, name: str) -> None:
        """Add the name of a host if it fits."""
        if address in self._named or not self._take([name]):
            return
        self._named.add(address)
        kind = _IPV4 if address.version == 4 else _IPV6
        record = {"type": kind, "address": str(address), "names": [printable(name, _NAME_CHARACTERS)]}
        self._writer.write_block(self._section.new_member(blocks.NameResolution, records=[record]))

    def write(self, packet: Packet) -> bool:
        """Add a packet with its first comments; return False if it does not fit."""
        comments = [printable(comment, _COMMENT_CHARACTERS) for comment in packet.comments[:_COMMENTS]]
        if further := len(packet.comments) - len(comments):
            comments.append(f"{further} more comments on this frame are left out")
        if not self._take([*comments, packet.captured]):
            return False
        self._writer.write_block(
            self._section.new_member(
                blocks.EnhancedPacket,
                interface_id=self._interface.interface_id,
                timestamp_high=packet.ts_us >> 32,
                timestamp_low=packet.ts_us & 0xFFFFFFFF,
                captured_len=len(packet.captured),
                packet_len=packet.size,
                packet_data=packet.captured,
                options={"opt_comment": comments} if comments else {},
            )
        )
        return True

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
