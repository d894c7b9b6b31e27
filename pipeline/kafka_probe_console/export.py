"""Exports archived connections as packets: each with its handshake, frames and end, as far as they are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, NamedTuple

from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.conversations.wire_frames import wire_frame
from kafka_probe_console import selection
from kafka_probe_console.capture_file import CaptureFile
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.packets import Endpoint, Packet, PacketMaker
from kafka_probe_console.tables import OpenTables

_FLOW_ID = re.compile("([0-9a-f]{8})([0-9a-f]{8})")  # sequence numbers of the first payload of client and server


class Written(NamedTuple):
    """The contents of a capture file. ports: of the servers; complete: all that was found fits into it."""

    packets: int
    ports: tuple[int, ...]
    complete: bool


def write(
    tables: OpenTables, found: Sequence[ConnectionEnd], stream: IO[bytes], limit: int, most_bytes: int
) -> Written:
    """Write connections, at most `limit`, to a capture file of at most about `most_bytes`.

    Of a connection with frames of both ends the client's end is written: it has counted all records.

    Raises:
        NothingFoundError: the archive has no frames of them, or their addresses are not known.
    """
    output: CaptureFile | None = None
    ports: dict[int, None] = {}
    packets = connections = 0
    for end, first, frames in _one_end_each(tables, found):
        own, other = Endpoint.of(end.local), Endpoint.of(end.peer)
        if own is None or other is None:
            continue
        if connections == limit:
            break
        connections += 1
        output = output or CaptureFile(stream, most_bytes)
        client, server = (other, own) if first.first.side == "server" else (own, other)
        ports[server.port] = None
        if first.first.node and not own.address.is_loopback:
            output.name(own.address, first.first.node)
        for packet in _commented(_packets(tables, end, client, server, first, frames), _about(tables, end)):
            if not output.write(packet):
                return Written(packets, tuple(ports), complete=False)
            packets += 1
    if not packets:
        raise NothingFoundError("The archive has no frames of these connections with known addresses.")
    return Written(packets, tuple(ports), complete=True)


def _one_end_each(
    tables: OpenTables, found: Sequence[ConnectionEnd]
) -> Iterator[tuple[ConnectionEnd, CopiedFrame, Iterator[CopiedFrame]]]:
    """Yield one end of each connection with its first frame and the others, the client's if possible."""
    by_flow: dict[object, list[ConnectionEnd]] = {}
    for end in found:
        by_flow.setdefault(end.flow_id or (end.agent_id, end.conn_id), []).append(end)
    for ends in by_flow.values():
        chosen = None
        for end in ends:  # forged events may give one flow to any number of ends
            frames = selection.conversation(tables, end)
            first = next(frames, None)
            if first and (chosen is None or first.first.side == "client"):
                chosen = end, first, frames
            if first and first.first.side == "client":
                break
        if chosen:
            yield chosen


def _packets(
    tables: OpenTables,
    end: ConnectionEnd,
    client: Endpoint,
    server: Endpoint,
    first: CopiedFrame,
    others: Iterable[CopiedFrame],
) -> Iterator[Packet]:
    """Yield the packets of one end of a connection."""
    known = _FLOW_ID.fullmatch(end.flow_id or "")
    bases = (int(known[1], 16), int(known[2], 16)) if known else (None, None)
    connection = PacketMaker(client, server, *bases)
    opened_us, closed = _life(tables, end)
    if opened_us is not None:
        yield from connection.handshake(min(opened_us, first.first.ts_us))
    last_us = first.first.ts_us
    for frame in chain([first], others):
        sample = frame.first
        last_us = max(last_us, sample.ts_us)
        wire = wire_frame(frame)
        yield from connection.frame(sample.ts_us, sample.tcp_seq, wire, sample.frame_bytes, response=frame.response)
    if closed:
        how, by_server, closing_us, closed_us = closed
        yield from _end(connection, how, max(closing_us, last_us), max(closed_us, last_us), by_server=by_server)


def _end(connection: PacketMaker, how: str, closing_us: int, closed_us: int, *, by_server: bool) -> Iterator[Packet]:
    if how == "fin":
        yield connection.fin(closing_us, of_server=by_server)
        yield connection.fin(closed_us, of_server=not by_server)
    elif how in ("rst_sent", "rst_received"):
        yield connection.reset(closing_us, of_server=by_server)


def _life(tables: OpenTables, end: ConnectionEnd) -> tuple[int | None, tuple[str, bool, int, int] | None]:
    """Return when a connection was opened, if its start was seen, and how it ended, by whom, and when."""
    ids = [end.agent_id, end.conn_id]
    opened_us, closed = None, None
    if tables.add("opens"):
        ask = "SELECT min(epoch_us(ts)) FROM opens WHERE agent_id = ? AND conn_id = ? AND found = 'start'"
        ((opened_us,),) = tables.rows(ask, ids)
    if tables.add("closes"):
        ask = (
            "SELECT how, closed_by, side, epoch_us(coalesce(closing_ts, ts)), epoch_us(ts) FROM closes "
            "WHERE agent_id = ? AND conn_id = ? ORDER BY ts LIMIT 1"
        )
        for how, closed_by, side, closing_us, closed_us in tables.rows(ask, ids):
            closed = how, (closed_by == "local") == (side == "server"), int(closing_us), int(closed_us)
    return opened_us, closed


def _about(tables: OpenTables, end: ConnectionEnd) -> Iterator[str]:
    """Yield comments on a connection."""
    yield f"client {end.client_id or 'without id'}"
    yield end.software or "unknown library"
    yield end.owner or "unknown process"
    if end.flow_id and tables.add("verdicts"):
        ask = "SELECT cause, evidence FROM verdicts WHERE flow_id = ? LIMIT 1"
        yield from (f"closed by {cause}: {evidence}" for cause, evidence in tables.rows(ask, [end.flow_id]))


def _commented(packets: Iterable[Packet], comments: Iterable[str]) -> Iterator[Packet]:
    """Yield the packets, with more comments on the first."""
    for number, packet in enumerate(packets):
        yield packet if number else packet._replace(comments=(*comments, *packet.comments))
