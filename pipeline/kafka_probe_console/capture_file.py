"""Writes packets with comments and names of hosts as a capture file (pcapng)."""

from __future__ import annotations

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


class CaptureFile:
    """A capture file with one interface, written to a stream as packets come."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._section = blocks.SectionHeader(
            options={"shb_userappl": f"kafka-probe {version('kafka-probe')}", "opt_comment": _ABOUT}
        )
        self._interface = self._section.new_member(
            blocks.InterfaceDescription, link_type=_RAW_IP, snaplen=0, options={"if_name": "kafka-probe"}
        )
        self._writer = FileWriter(stream, self._section)
        self._named: set[IPv4Address | IPv6Address] = set()

    def name(self, address: IPv4Address | IPv6Address, name: str) -> None:
        """Add the name of a host."""
        if address in self._named:
            return
        self._named.add(address)
        kind = _IPV4 if address.version == 4 else _IPV6
        record = {"type": kind, "address": str(address), "names": [printable(name, _NAME_CHARACTERS)]}
        self._writer.write_block(self._section.new_member(blocks.NameResolution, records=[record]))

    def write(self, packet: Packet) -> None:
        comments = [printable(comment, _COMMENT_CHARACTERS) for comment in packet.comments]
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


_ABOUT = (
    "Rebuilt by kafka-probe from frames that its agents copied: contents of records and withheld fields are zeros, "
    "packets without frames are left out, checksums are zero."
)
