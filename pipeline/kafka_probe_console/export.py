"""Exports archived connections as packets: each with its handshake, frames and end, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import IO

from kafka_probe.conversations.capture_file import CaptureFile
from kafka_probe.conversations.connection_packets import ConnectionPackets
from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.conversations.packets import Packet
from kafka_probe_console import selection
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.tables import OpenTables

SIDES = ("client", "server")
BOTH = "both"


def write(
    tables: OpenTables, found: Sequence[ConnectionEnd], stream: IO[bytes], side: str, limit: int, most_bytes: int
) -> str:
    """Write connections, at most `limit`, to a capture file of at most about `most_bytes`; return a summary.

    side: of a connection with frames of both ends, the end that is written; BOTH: both, one after the other.

    Raises:
        NothingFoundError: the archive has no frames of them, or their addresses are not known.
    """
    output: CaptureFile | None = None
    for end, connection, frames in islice(_connections(tables, found, side), limit):
        output = output or CaptureFile(stream, most_bytes)
        output.announce(connection)
        connection.comment(_verdict(tables, end))
        write_packet = partial(output.write, server_side=connection.server_side)
        if not all(map(write_packet, _packets(tables, end, connection, frames))):
            break
    if output is None:
        raise NothingFoundError("The archive has no frames of these connections with known addresses.")
    return output.summary()


def _connections(
    tables: OpenTables, found: Sequence[ConnectionEnd], side: str
) -> Iterator[tuple[ConnectionEnd, ConnectionPackets, Iterable[CopiedFrame]]]:
    """Yield the chosen ends with their packets and frames, as far as their addresses are known."""
    by_flow: dict[object, list[ConnectionEnd]] = {}
    for end in found:
        by_flow.setdefault(end.flow_id or (end.agent_id, end.conn_id), []).append(end)
    for ends in by_flow.values():
        chosen: dict[str | None, tuple[ConnectionEnd, CopiedFrame, Iterator[CopiedFrame]]] = {}
        for end in ends:  # forged events may give one flow to any number of ends
            frames = selection.conversation(tables, end)
            if first := next(frames, None):
                chosen.setdefault(first.first.side, (end, first, frames))
            if side in chosen or len(chosen) == len(SIDES):
                break
        both = [chosen[each] for each in SIDES if each in chosen]
        for end, first, others in both if side == BOTH else [chosen[side]] if side in chosen else both:
            if connection := ConnectionPackets.of(end, first.first):
                yield end, connection, chain([first], others)


def _packets(
    tables: OpenTables, end: ConnectionEnd, connection: ConnectionPackets, frames: Iterable[CopiedFrame]
) -> Iterator[Packet]:
    ids = [end.agent_id, end.conn_id]
    if tables.add("opens"):
        ask = "SELECT min(epoch_us(ts)) FROM opens WHERE agent_id = ? AND conn_id = ? AND found = 'start'"
        for (opened_us,) in tables.rows(ask, ids):
            if opened_us is not None:
                yield from connection.opened(opened_us)
    for frame in frames:
        yield from connection.frame(frame)
    if tables.add("closes"):
        columns = "how, closed_by, epoch_us(coalesce(closing_ts, ts)), epoch_us(ts)"
        ask = f"SELECT {columns} FROM closes WHERE agent_id = ? AND conn_id = ? ORDER BY ts LIMIT 1"
        for close in tables.rows(ask, ids):
            yield from connection.closed(*close)


def _verdict(tables: OpenTables, end: ConnectionEnd) -> Iterator[str]:
    if end.flow_id and tables.add("verdicts"):
        ask = "SELECT cause, evidence FROM verdicts WHERE flow_id = ? LIMIT 1"
        yield from (f"closed by {cause}: {evidence}" for cause, evidence in tables.rows(ask, [end.flow_id]))
