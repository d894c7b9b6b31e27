"""Writes followed connections as packets for `kafka-probe follow --pcapng`, while they pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from kafka_probe.conversations.capture_file import CaptureFile
from kafka_probe.conversations.connection_packets import ConnectionPackets

if TYPE_CHECKING:
    from kafka_probe.conversations.conversation import ConnectionEnd
    from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample
    from kafka_probe.conversations.packets import Packet
    from kafka_probe.events import CloseEvent, OpenEvent

_MOST_OPENED = 4096  # opens whose first frame may follow


class PacketStream:
    """A capture file of at most about `most_bytes`, in parts."""

    def __init__(self, most_bytes: int) -> None:
        self._stream = BytesIO()
        self._file = CaptureFile(self._stream, most_bytes)
        self._opened_us: OrderedDict[str | None, int] = OrderedDict()
        self._connections: dict[str | None, ConnectionPackets | None] = {}

    @property
    def full(self) -> bool:
        """Return True if a packet did not fit."""
        return self._file.full

    def summary(self) -> str:
        """Return what the file contains, and how to read it, as a text."""
        return self._file.summary()

    def beginning(self) -> bytes:
        """Return the first bytes of the file, before those of any packet."""
        return self._written()

    def note_open(self, event: OpenEvent) -> None:
        """Keep the time at which a connection was opened."""
        if event["found"] == "start":
            self._opened_us[event["conn_id"]] = event["ts"]
            if len(self._opened_us) > _MOST_OPENED:
                self._opened_us.popitem(last=False)

    def forget(self, conn_id: str | None) -> None:
        """Drop the state of a connection."""
        self._connections.pop(conn_id, None)

    def packets(
        self, end: ConnectionEnd, first: CopiedSample, frames: Iterable[CopiedFrame], closed: CloseEvent | None
    ) -> Iterator[bytes]:
        """Yield the further bytes of the file, of which each part has whole packets."""
        begins = end.conn_id not in self._connections
        if begins:
            self._connections[end.conn_id] = ConnectionPackets.of(end, first)
        connection = self._connections[end.conn_id]
        if connection is None:
            return
        if begins:
            self._file.announce(connection)
        for packet in self._of(connection, end, begins, frames, closed):
            if not self._file.write(packet, server_side=connection.server_side):
                return
            yield self._written()

    def _of(
        self,
        connection: ConnectionPackets,
        end: ConnectionEnd,
        begins: bool,
        frames: Iterable[CopiedFrame],
        closed: CloseEvent | None,
    ) -> Iterator[Packet]:
        opened_us = self._opened_us.pop(end.conn_id, None)
        if begins and opened_us is not None:
            yield from connection.opened(opened_us)
        for frame in frames:
            yield from connection.frame(frame)
        if closed:
            self.forget(end.conn_id)
            yield from connection.closed(closed["how"], closed["closed_by"], closed["closing_ts"], closed["ts"])

    def _written(self) -> bytes:
        written = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return written
