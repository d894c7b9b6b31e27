"""Exports archived connections as packets: each with its handshake, frames and end, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import IO

from kafka_probe.conversations.capture_file import CaptureFile
from kafka_probe.conversations.capture_flags import emptied
from kafka_probe.conversations.connection_packets import ConnectionPackets
from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.conversations.packets import MayFill, Packet
from kafka_probe_console import archived_frames
from kafka_probe_console.archived_frames import SIDES, EndsBySide
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.tables import OpenTables

BOTH = "both"


def write(tables: OpenTables, found: Sequence[EndsBySide], file: IO[bytes], side: str, most_bytes: int) -> str:
    """Write connections to a capture file of at most about `most_bytes`; return a summary.

    side: the end that is written of a connection with frames of both ends; BOTH: both, one after the other.

    Raises:
        NothingFoundError: the archive has no frames of them, or their addresses are not known.
    """
    output: CaptureFile | None = None
    for end, connection, frames in _chosen(tables, found, side):
        output = output or CaptureFile(emptied(file), most_bytes)
        output.announce(connection)
        packets = _packets(tables, end, connection, frames, output.may_fill)
        if not all(map(partial(output.write, server_side=connection.server_side), packets)):
            break
    if output is None:
        raise NothingFoundError("The archive has no frames of these connections with known addresses.")
    return output.summary()


def _chosen(
    tables: OpenTables, found: Sequence[EndsBySide], side: str
) -> Iterator[tuple[ConnectionEnd, ConnectionPackets, Iterable[CopiedFrame]]]:
    """Yield the chosen ends with their packets and frames; the other end if the chosen one has no known addresses."""
    for by_side in found:
        for each in SIDES if side == BOTH else sorted(SIDES, key=lambda name: name != side):
            any_written = False
            for end in by_side.get(each, ()):
                frames = archived_frames.conversation(tables, end)
                first = next(frames, None)
                if first and (connection := ConnectionPackets.of(end, first.first, _verdict(tables, end))):
                    yield end, connection, chain([first], frames)
                    any_written = True
            if any_written and side != BOTH:
                break


def _packets(
    tables: OpenTables,
    end: ConnectionEnd,
    connection: ConnectionPackets,
    frames: Iterable[CopiedFrame],
    may_fill: MayFill,
) -> Iterator[Packet]:
    ids = [end.agent_id, end.conn_id]
    if tables.add("opens"):
        ask = "SELECT min(epoch_us(ts)) FROM opens WHERE agent_id = ? AND conn_id = ? AND found = 'start'"
        for (opened_us,) in tables.rows(ask, ids):
            if opened_us is not None:
                yield from connection.opened(opened_us)
    for frame in frames:
        yield from connection.frame(frame, may_fill)
    if tables.add("closes"):
        columns = "how, closed_by, epoch_us(coalesce(closing_ts, ts)), epoch_us(ts)"
        ask = f"SELECT {columns} FROM closes WHERE agent_id = ? AND conn_id = ? AND ts IS NOT NULL ORDER BY ts LIMIT 1"
        for close in tables.rows(ask, ids):
            yield from connection.closed(*close)


def _verdict(tables: OpenTables, end: ConnectionEnd) -> Iterator[str]:
    if end.flow_id and tables.add("verdicts"):
        ask = "SELECT cause, evidence FROM verdicts WHERE flow_id = ? LIMIT 1"
        yield from (f"closed by {cause}: {evidence}" for cause, evidence in tables.rows(ask, [end.flow_id]))
