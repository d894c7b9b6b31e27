"""Captures one TCP port on loopback with tcpdump, and reassembles its byte streams.

A capture of `lo` has every packet once. Streams are reassembled by sequence number, so bytes that TCP sent twice count
once.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.lab.processes import LabError, start, stop, tail, wait_until

Address = tuple[str, int]
_FIN, _SYN, _RST = 0x01, 0x02, 0x04
_FILE_HEADER_BYTES = 24
_DROPPED = re.compile(r"(\d+) packets? dropped by kernel")


class Segment(NamedTuple):
    """One TCP segment of a capture file.

    restarts: it is a SYN, and its payload starts at `sequence`. ends: it is a FIN or an RST. time_us: when it was
    captured, since epoch.
    """

    source: Address
    target: Address
    sequence: int
    restarts: bool
    ends: bool
    payload: bytes
    time_us: int


class Capture:
    """`with Capture(file, port):` captures every packet of the port from before the body to after its last one.

    host: where the port listens; interface: the one that leads there, with Ethernet's headers.

    Raises:
        LabError: tcpdump could not start, or dropped packets.
    """

    def __init__(self, file: Path, port: int, host: str = "127.0.0.1", interface: str = "lo") -> None:
        self.file = file
        self._host = host
        self._interface = interface
        self._port = port
        self._log = file.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the capture when all that went over the port until now is in the file. The port must still listen."""
        if self._process is None:
            return
        with _Packets(self.file) as packets:
            deque(packets, maxlen=0)  # those that cannot be of the last connection
            with socket.create_connection((self._host, self._port)) as last:
                mark: Address = last.getsockname()

            def has_ended() -> bool:
                return any(one.source == mark and one.ends for one in (_segment(*each) for each in packets))

            wait_until(has_ended, "tcpdump to catch up")
        self._end()
        dropped = _DROPPED.search(self._log.read_text())
        if dropped is None or int(dropped[1]):
            raise LabError(f"tcpdump lost packets:\n{tail(self._log)}")

    def __enter__(self) -> Self:
        self._log.unlink(missing_ok=True)
        settings = ("-s", "0", "-U", "-n", "-B", "65536", "-Z", "root", "-w", str(self.file))
        command = ["tcpdump", "-i", self._interface, *settings, f"tcp port {self._port}"]
        self._process = start(command, log=self._log)
        try:
            wait_until(lambda: "listening on" in self._log.read_text(), "tcpdump to listen", timeout_s=10)
        except LabError as error:
            self._end()
            raise LabError(f"{error}:\n{tail(self._log)}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            stop(self._process, by=signal.SIGINT)
            self._process = None


def segments(pcap: Path) -> Iterator[Segment]:
    """Yield the TCP segments of a capture file in order, up to the first incomplete packet."""
    with _Packets(pcap) as packets:
        yield from (_segment(*each) for each in packets)


class _Packets:
    """Time and bytes of the packets of a capture file; each iteration continues behind the last."""

    def __init__(self, pcap: Path) -> None:
        self._file = pcap.open("rb")
        self._file.seek(_FILE_HEADER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while True:
            at = self._file.tell()
            header = self._file.read(16)
            seconds, us, captured, original = struct.unpack("<IIII", header) if len(header) == 16 else (0, 0, 1, 1)
            packet = self._file.read(captured)
            if len(packet) < captured:
                self._file.seek(at)
                return
            if captured < original:
                raise LabError(f"{self._file.name}: a packet of {original} bytes was cut to {captured}")
            yield seconds * 1_000_000 + us, packet[14:]  # after the Ethernet header that lo pretends to have


def _segment(time_us: int, packet: bytes) -> Segment:
    if packet[0] >> 4 == 4:
        header_bytes, end = (packet[0] & 15) * 4, struct.unpack_from(">H", packet, 2)[0]
        source, target = (socket.inet_ntop(socket.AF_INET, packet[at : at + 4]) for at in (12, 16))
    else:
        header_bytes, end = 40, 40 + struct.unpack_from(">H", packet, 4)[0]
        source, target = (socket.inet_ntop(socket.AF_INET6, packet[at : at + 16]) for at in (8, 24))
    tcp = packet[header_bytes:end]
    source_port, target_port, sequence, _, size, flags = struct.unpack_from(">HHIIBB", tcp)
    restarts, ends = bool(flags & _SYN), bool(flags & (_FIN | _RST))
    payload = tcp[(size >> 4) * 4 :]
    return Segment((source, source_port), (target, target_port), sequence + restarts, restarts, ends, payload, time_us)


@dataclass(slots=True)
class Stream:
    """One direction of a connection: takes segments, gives the bytes in order."""

    _next: int | None = None
    _early: dict[int, bytes] = field(default_factory=dict)

    def feed(self, segment: Segment) -> bytes:
        """Return the bytes that this segment makes available, each byte of the stream once."""
        if self._next is None:
            self._next = segment.sequence
        self._early[segment.sequence] = max(self._early.get(segment.sequence, b""), segment.payload, key=len)
        ready = bytearray()
        while due := [at for at in self._early if self._ahead(at) <= 0]:
            at = min(due, key=self._ahead)
            fresh = self._early.pop(at)[-self._ahead(at) :]
            ready += fresh
            self._next = (self._next + len(fresh)) & 0xFFFFFFFF
        return bytes(ready)

    def _ahead(self, sequence: int) -> int:
        """Return the distance from the next expected byte, as a signed 32-bit difference."""
        assert self._next is not None
        return ((sequence - self._next + 0x80000000) & 0xFFFFFFFF) - 0x80000000
