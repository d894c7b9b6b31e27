"""Writes packets with comments and names of hosts as a capture file (pcapng)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import IO

from pcapng import FileWriter, blocks

from kafka_probe.conversations.connection_packets import ConnectionPackets
from kafka_probe.conversations.packets import Packet
from kafka_probe.setting_types import KAFKA_PORT
from kafka_probe.text import printable

_RAW_IP = 101  # LINKTYPE_RAW
_IPV4, _IPV6 = 1, 2  # types of records of a name resolution block
_COMMENT_CHARACTERS = 1000
_NAME_CHARACTERS = 255
_BLOCK_BYTES = 100  # approximate size of a block without its data and comments
_COMMENTS = 20  # of a packet: a frame may have thousands of record sets
_MOST_PORTS = 10  # in the summary


class CaptureFile:
    """A capture file of at most about `most_bytes`, written as packets come.

    It has an interface for each side, so that packets of one connection seen at both ends are distinct. Zeros for
    withheld bytes take at most half of the file, and `zeros_at_once` between two calls of `allow_zeros`. full: a packet
    did not fit, and no further one is written.
    """

    def __init__(self, file: IO[bytes], most_bytes: int, zeros_at_once: int | None = None) -> None:
        self._left_bytes = most_bytes - _BLOCK_BYTES - len(_ENDS_EARLY)
        self._zeros_left = most_bytes // 2
        self._zeros_at_once = self._zeros_now = most_bytes if zeros_at_once is None else zeros_at_once
        self._ports: dict[int, None] = {}
        self._ends = self._packets = 0
        self.full = False
        self._section = blocks.SectionHeader(
            options={"shb_userappl": f"kafka-probe {version('kafka-probe')}", "opt_comment": _ABOUT}
        )
        for side in ("client", "server"):
            self._section.new_member(
                blocks.InterfaceDescription, link_type=_RAW_IP, snaplen=0, options={"if_name": f"{side}'s end"}
            )
        self._writer = FileWriter(file, self._section)
        self._named: set[IPv4Address | IPv6Address] = set()

    def announce(self, connection: ConnectionPackets) -> None:
        """Count the end of a connection, and add the name of its host, if that fits."""
        self._ends += 1
        self._ports[connection.server_port] = None
        address = connection.own.address
        name = _host_name(connection.node or "")
        if not name or address.is_loopback or address in self._named or not self._take([name]):
            return
        self._named.add(address)
        kind = _IPV4 if address.version == 4 else _IPV6
        record = {"type": kind, "address": str(address), "names": [name]}
        self._writer.write_block(self._section.new_member(blocks.NameResolution, records=[record]))

    def may_fill(self, zeros: int) -> bool:
        """Return True if so many zeros may be written, and count them."""
        fits = zeros <= min(self._zeros_left, self._zeros_now)
        self._zeros_left -= zeros * fits
        self._zeros_now -= zeros * fits
        return fits

    def allow_zeros(self) -> None:
        """Allow `zeros_at_once` again."""
        self._zeros_now = self._zeros_at_once

    def write(self, packet: Packet, *, server_side: bool = False) -> bool:
        """Add a packet, seen at either end, with its first comments; return False if it does not fit."""
        comments = [printable(comment, _COMMENT_CHARACTERS) for comment in packet.comments[:_COMMENTS]]
        if further := len(packet.comments) - len(comments):
            comments.append(f"{further} more comments on this frame are left out")
        if self.full or not self._take([*comments, packet.captured]):
            self._end(packet.ts_us)
            return False
        self._packets += 1
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
        ended = f" {_ENDS_EARLY}" if self.full else ""
        options = decode_as([*self._ports][:_MOST_PORTS])
        read = f" Wireshark and tshark need {options}" if options else ""
        return f"{self._packets:,} packets. Ends of connections: {self._ends:,}.{ended}{read}"

    def _end(self, ts_us: int) -> None:
        """Add a comment that the file ends early, once."""
        if not self.full:
            self.full = True
            time = {"timestamp_high": ts_us >> 32, "timestamp_low": ts_us & 0xFFFFFFFF}
            statistics = self._section.new_member(
                blocks.InterfaceStatistics, interface_id=0, **time, options={"opt_comment": _ENDS_EARLY}
            )
            self._writer.write_block(statistics)

    def _take(self, contents: Iterable[str | bytes]) -> bool:
        """Return True if a block with these contents fits, and count its bytes."""
        size = _BLOCK_BYTES + sum(len(part if isinstance(part, bytes) else part.encode()) for part in contents)
        if size > self._left_bytes:
            return False
        self._left_bytes -= size
        return True


def decode_as(ports: Iterable[int]) -> str:
    """Return the options that make Wireshark and tshark decode Kafka on these ports. Port 9092 needs none."""
    return " ".join(f"-d tcp.port=={port},kafka" for port in ports if port != KAFKA_PORT)


def _host_name(node: str) -> str:
    """Return a node's name as that of a host; an empty text if it would pass for an address."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", node)[:_NAME_CHARACTERS]
    with suppress(ValueError):
        ip_address(name)
        return ""
    return name


_ENDS_EARLY = "The file has as many bytes as --pcapng-bytes allows, and ends early."
_ABOUT = (
    "Rebuilt by kafka-probe from frames that its agents copied: contents of records and withheld fields are zeros, "
    "packets without frames are left out, checksums are zero."
)
