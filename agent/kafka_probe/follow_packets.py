"""Writes followed connections as packets for `kafka-probe follow --pcapng`, while they pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import IO, TYPE_CHECKING

from kafka_probe.conversations.capture_file import CaptureFile
from kafka_probe.conversations.capture_flags import emptied
from kafka_probe.conversations.connection_packets import ConnectionPackets

if TYPE_CHECKING:
    from kafka_probe.conversations.packets import Packet
    from kafka_probe.events import OpenEvent
    from kafka_probe.follow_outputs import Followed

_MOST_OPENED = 4096  # opens whose first frame may follow
_MOST_FLOWS = 8192  # whose end was chosen: the frames of the other end may come later
_ZEROS_PER_INTERVAL = 2 << 20  # half of what may wait for a slow reader of the output


class PacketOutput:
    """The output of `follow --pcapng`: a capture file of about `most_bytes` at most, which replaces what `file` has.

    Of a connection with both ends on this node the file has the end whose frames came first, because Wireshark takes
    the second of two equal packets for a retransmission.
    """

    def __init__(self, file: IO[bytes], most_bytes: int) -> None:
        self._file = file
        self._begun = False
        self._buffer = BytesIO()
        self._capture = CaptureFile(self._buffer, most_bytes, _ZEROS_PER_INTERVAL)
        self._without_addresses = 0  # frames
        self._opened_us: OrderedDict[str | None, int] = OrderedDict()
        self._connections: dict[str | None, ConnectionPackets] = {}
        self._conn_ids: OrderedDict[str, str | None] = OrderedDict()  # by flow_id: the end that is written

    @property
    def full(self) -> bool:
        return self._capture.full

    def note_open(self, event: OpenEvent) -> None:
        if event["found"] == "start":
            self._opened_us[event["conn_id"]] = event["ts"]
            if len(self._opened_us) > _MOST_OPENED:
                self._opened_us.popitem(last=False)

    def connection(self, followed: Followed) -> Iterator[bytes]:
        conn_id = followed.end.conn_id
        known = self._connections.get(conn_id)
        connection = known or ConnectionPackets.of(followed.end, followed.first)
        if connection is None:
            self._without_addresses += sum(1 for _ in followed.frames)
            return
        if not self._is_chosen(followed):
            for _ in followed.frames:  # those of the other end are in the file
                pass
            return
        if not known:
            self._connections[conn_id] = connection
            self._capture.announce(connection)
            opened_us = self._opened_us.pop(conn_id, None)
            yield from self._written(connection, () if opened_us is None else connection.opened(opened_us))
        for frame in followed.frames:
            yield from self._written(connection, connection.frame(frame, self._capture.may_fill))
        if close := followed.close:
            packets = connection.closed(close["how"], close["closed_by"], close["closing_ts"], close["ts"])
            yield from self._written(connection, packets)
        if followed.over:
            self.forget(conn_id)

    def end_interval(self) -> Iterator[bytes]:
        self._capture.allow_zeros()
        yield from self._taken()

    def forget(self, conn_id: str | None) -> int:
        self._connections.pop(conn_id, None)
        return 0

    def summary(self) -> str:
        left_out = self._without_addresses
        text = f" {left_out} frames are left out: the addresses of their connections are not known." if left_out else ""
        return f"{self._capture.summary()}{text}"

    def _is_chosen(self, followed: Followed) -> bool:
        flow_id, conn_id = followed.end.flow_id, followed.end.conn_id
        if flow_id is None:
            return True
        chosen = self._conn_ids.setdefault(flow_id, conn_id)
        self._conn_ids.move_to_end(flow_id)
        if len(self._conn_ids) > _MOST_FLOWS:
            self._conn_ids.popitem(last=False)
        return chosen == conn_id

    def _written(self, connection: ConnectionPackets, packets: Iterable[Packet]) -> Iterator[bytes]:
        """Write the packets of a frame; yield their bytes as one part."""
        for packet in packets:
            if not self._capture.write(packet, server_side=connection.server_side):
                break
        yield from self._taken()

    def _taken(self) -> Iterator[bytes]:
        """Yield what was added to the file since the last call, if anything was."""
        if not self._begun:
            emptied(self._file)
            self._begun = True
        if written := self._buffer.getvalue():
            self._buffer.seek(0)
            self._buffer.truncate()
            yield written
