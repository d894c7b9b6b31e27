"""Renders frames as lines of text, rows of values, and conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from kafka_probe.conversations import conversation
from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.conversations.wording import with_contents, words
from kafka_probe_console import archived_ends, archived_frames
from kafka_probe_console.archived_ends import EndIds
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.period import Period
from kafka_probe_console.tables import OpenTables

LAST_FRAMES = 8
_BATCH = 512  # frames whose ends are looked up at once


def rows(tables: OpenTables, frames: Iterable[CopiedFrame]) -> Iterator[dict[str, object]]:
    """Yield each frame as its values of COLUMNS."""
    for frame, end in _with_ends(tables, frames):
        yield conversation.row(frame, end)


def lines(tables: OpenTables, frames: Iterable[CopiedFrame], *, verbose: bool) -> Iterator[str]:
    """Yield a line per frame."""
    for frame, end in _with_ends(tables, frames):
        client = (end and end.client_id) or frame.first.flow_id or frame.first.conn_id
        described = with_contents(conversation.title(frame), words(frame, verbose=verbose))
        yield f"{conversation.clock(frame)}  {client}  {described}"


def of_connections(tables: OpenTables, found: Iterable[ConnectionEnd], *, verbose: bool) -> Iterator[str]:
    """Yield the lines of the conversations at these ends, each with its end.

    Raises:
        NothingFoundError: the archive has no frames of them.
    """
    shown = False
    for end in found:
        frames = archived_frames.conversation(tables, end)
        if first := next(frames, None):
            shown = True
            yield from conversation.heading(end, first.first.side, first.first.node)
            yield from conversation.lines(chain([first], frames), verbose=verbose)
            yield from _end_of(tables, end)
    if not shown:
        raise NothingFoundError("The archive has no frames of these connections.")


def last_lines(tables: OpenTables, ends: Iterable[EndIds], flow_id: str | None, received: Period) -> list[str]:
    """Return the lines of the last frames of a connection, at the first of the ends that has some."""
    if not tables.add("frames"):
        return []
    every = (archived_frames.last_frames(tables, end, flow_id, received, LAST_FRAMES) for end in ends)
    return next(([*conversation.lines(frames)] for frames in every if frames), [])


def _with_ends(tables: OpenTables, frames: Iterable[CopiedFrame]) -> Iterator[tuple[CopiedFrame, ConnectionEnd | None]]:
    every = iter(frames)
    while batch := [*islice(every, _BATCH)]:
        ends = archived_ends.ends_of(tables, batch)
        for frame in batch:
            yield frame, ends.get((frame.first.agent_id, frame.first.conn_id))


def _end_of(tables: OpenTables, end: ConnectionEnd) -> Iterator[str]:
    """Yield how a connection ended, if it did."""
    if tables.add("closes"):
        columns = "side, closed_by, how, idle_us, evicted"
        ask = f"SELECT {columns} FROM closes WHERE agent_id = ? AND conn_id = ? ORDER BY ts LIMIT 1"
        for *close, evicted in tables.rows(ask, [end.agent_id, end.conn_id]):
            yield conversation.closing(*close) + ("; its last frames were evicted" if evicted else "")
    if end.flow_id and tables.add("verdicts"):
        ask = "SELECT cause, evidence FROM verdicts WHERE flow_id = ? LIMIT 1"
        for cause, evidence in tables.rows(ask, [end.flow_id]):
            yield f"{conversation.INDENT}{cause}: {evidence}"
