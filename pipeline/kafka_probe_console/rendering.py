"""Renders frames as lines of text, rows of values, and conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice

from kafka_probe_console import conversations, selection
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.frames import ArchivedFrame
from kafka_probe_console.selection import ConnectionEnd
from kafka_probe_console.tables import OpenTables
from kafka_probe_console.wording import words

COLUMNS = (
    *("ts", "node", "side", "client", "local", "peer", "flow_id", "api", "api_version", "correlation_id"),
    *("direction", "frame_bytes", "latency_us", "contents"),
)
"""The values of a row."""
_BATCH = 512  # frames whose ends are looked up at once
_INDENT = " " * 17


def rows(tables: OpenTables, frames: Iterable[ArchivedFrame]) -> Iterator[dict[str, object]]:
    """Yield each frame as its values of COLUMNS."""
    for frame, end in _with_ends(tables, frames):
        first = frame.first
        values = (
            datetime.fromtimestamp(first.ts_us / 1e6, UTC).isoformat(timespec="microseconds"),
            *(first.node, first.side),
            *((end.client_id, end.local, end.peer) if end else (None, None, None)),
            *(first.flow_id, frame.api, first.api_version, first.correlation_id),
            "response" if frame.response else "request",
            *(first.frame_bytes, first.latency_us if frame.response else None),
            words(frame, verbose=True),
        )
        yield dict(zip(COLUMNS, values, strict=True))


def lines(tables: OpenTables, frames: Iterable[ArchivedFrame], *, verbose: bool) -> Iterator[str]:
    """Yield a line per frame."""
    for frame, end in _with_ends(tables, frames):
        client = (end and end.client_id) or frame.first.flow_id or frame.first.conn_id
        answer = f"answer after {conversations.milliseconds(frame.first.latency_us)} to " if frame.response else ""
        what = f"{answer}{conversations.title(frame)}: {words(frame, verbose=verbose)}"
        yield f"{conversations.clock(frame)}  {client}  {what}"


def of_connections(tables: OpenTables, found: Sequence[ConnectionEnd], limit: int, *, verbose: bool) -> Iterator[str]:
    """Yield the lines of the conversations at these ends, each with its end. limit: most of them, without empty ones.

    Raises:
        NothingFoundError: the archive has no frames of them.
    """
    shown = 0
    for end in found:
        if shown == limit:
            return
        frames = selection.conversation(tables, end)
        if first := next(frames, None):
            shown += 1
            software = f" ({end.software})" if end.software else ""
            seen = f"seen at the {first.first.side}'s end on {first.first.node}, flow {end.flow_id}"
            yield f"{end.client_id or 'A client without id'}{software}, {end.owner or 'an unknown process'}"
            yield f"{end.local or 'unknown'} to {end.peer or 'unknown'}, {seen}"
            yield from conversations.lines(chain([first], frames), verbose=verbose)
            yield from _end_of(tables, end)
    if not shown:
        raise NothingFoundError("The archive has no frames of these connections.")


def _with_ends(
    tables: OpenTables, frames: Iterable[ArchivedFrame]
) -> Iterator[tuple[ArchivedFrame, ConnectionEnd | None]]:
    every = iter(frames)
    while batch := [*islice(every, _BATCH)]:
        ends = selection.ends_of(tables, batch)
        for frame in batch:
            yield frame, ends.get((frame.first.agent_id, frame.first.conn_id))


def _end_of(tables: OpenTables, end: ConnectionEnd) -> Iterator[str]:
    """Yield how a connection ended, if it did."""
    if tables.add("closes"):
        ask = "SELECT closed_by, how, idle_us, evicted FROM closes WHERE agent_id = ? AND conn_id = ? LIMIT 1"
        for closed_by, how, idle_us, evicted in tables.rows(ask, [end.agent_id, end.conn_id]):
            idle = f" after {conversations.milliseconds(idle_us)} of silence" if idle_us is not None else ""
            lost = "; its last frames were evicted" if evicted else ""
            yield f"{_INDENT}closed by {closed_by} ({how}){idle}{lost}"
    if end.flow_id and tables.add("verdicts"):
        ask = "SELECT cause, evidence FROM verdicts WHERE flow_id = ? LIMIT 1"
        for cause, evidence in tables.rows(ask, [end.flow_id]):
            yield f"{_INDENT}{cause}: {evidence}"
