"""Makes the packets of one end of a connection from its facts and frames, as far as these are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Self

from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample
from kafka_probe.conversations.packets import Endpoint, MayFill, Packet, PacketMaker
from kafka_probe.conversations.wire_frames import LEAST_FRAME_BYTES, MOST_FRAME_BYTES, wire_frame

_FLOW_ID = re.compile("([0-9a-f]{8})([0-9a-f]{8})")  # sequence numbers of the first payload of client and server


class ConnectionPackets:
    """The packets of one connection in the order of its life. The first one has comments on the connection.

    own: the endpoint at which the frames were seen; node: its host; server_side: they were seen at the
    server's end; server_port: the port of the broker.
    """

    def __init__(
        self, own: Endpoint, other: Endpoint, end: ConnectionEnd, first: CopiedSample, comments: Iterable[str]
    ) -> None:
        self.server_side = first.side == "server"
        client, server = (other, own) if self.server_side else (own, other)
        known = _FLOW_ID.fullmatch(end.flow_id or "")
        bases = (int(known[1], 16), int(known[2], 16)) if known else (None, None)
        self._maker = PacketMaker(client, server, *bases)
        self._first_us = self._last_us = first.ts_us
        self._comments: tuple[str, ...] = (
            f"client {end.client_id or 'without id'}",
            end.software or "unknown library",
            end.owner or "unknown process",
            *comments,
        )
        self.own = own
        self.node = first.node
        self.server_port = server.port

    @classmethod
    def of(cls, end: ConnectionEnd, first: CopiedSample, comments: Iterable[str] = ()) -> Self | None:
        """Return the packets of an end with this first sample; None if no packet can have its addresses."""
        own, other = Endpoint.of(end.local), Endpoint.of(end.peer)
        if own is None or other is None or own.address.version != other.address.version:
            return None
        return cls(own, other, end, first, comments)

    def opened(self, ts_us: int) -> Iterator[Packet]:
        """Yield the handshake; nothing if the sequence numbers are not known."""
        yield from self._commented(self._maker.handshake(min(ts_us, self._first_us)))

    def frame(self, frame: CopiedFrame, may_fill: MayFill) -> Iterator[Packet]:
        """Yield the packets of a frame; none if it has a size that no frame can have."""
        first = frame.first
        if not LEAST_FRAME_BYTES <= first.frame_bytes <= MOST_FRAME_BYTES:
            return
        self._last_us = max(self._last_us, first.ts_us)
        wire, size = wire_frame(frame), first.frame_bytes
        packets = self._maker.frame(first.ts_us, first.tcp_seq, wire, size, may_fill, response=frame.response)
        yield from self._commented(packets)

    def closed(self, how: str, closed_by: str, closing_us: int, closed_us: int) -> Iterator[Packet]:
        """Yield the packets of the end of the connection, from fields of `close`; times are µs since epoch."""
        if closed_by not in ("local", "peer") or how not in ("fin", "rst_sent", "rst_received"):
            return
        closing_us, closed_us = max(closing_us, self._last_us), max(closed_us, self._last_us)
        first_is_server = (closed_by == "local") == self.server_side
        reset_is_server = (how == "rst_sent") == self.server_side
        if how == "fin":
            yield self._maker.fin(closing_us, of_server=first_is_server)
            yield self._maker.fin(closed_us, of_server=not first_is_server)
        elif first_is_server == reset_is_server:
            yield self._maker.reset(closing_us, of_server=reset_is_server)
        else:  # one end closed in order, and the other one answered with a reset
            yield self._maker.fin(closing_us, of_server=first_is_server)
            yield self._maker.reset(closed_us, of_server=reset_is_server)

    def _commented(self, packets: Iterable[Packet]) -> Iterator[Packet]:
        for packet in packets:
            comments, self._comments = (*self._comments, *packet.comments), ()
            yield packet._replace(comments=comments)
