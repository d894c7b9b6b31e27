"""The forms in which `kafka-probe follow` writes frames, and two of them: lines for people and lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import orjson

from kafka_probe.conversations.conversation import (
    SILENCE_NS,
    ConnectionEnd,
    Conversation,
    closing,
    heading,
    reminder,
    row,
)
from kafka_probe.conversations.terminal import LINE_LIMIT, Terminal
from kafka_probe.text import as_json, printable

if TYPE_CHECKING:
    from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample
    from kafka_probe.events import CloseEvent, OpenEvent


@dataclass(slots=True)
class Followed:
    """A connection: its first sample, its end as far as it is known, and what came in this interval.

    over: no further frame of it follows.
    """

    first: CopiedSample
    end: ConnectionEnd
    frames: Iterable[CopiedFrame]
    close: CloseEvent | None
    over: bool


class Output(Protocol):
    """A form of output. Each part that it yields is written whole or not at all."""

    @property
    def full(self) -> bool:
        """Return True if nothing more can be written."""

    def note_open(self, event: OpenEvent) -> None:
        """Take the open of any connection."""

    def connection(self, followed: Followed) -> Iterator[bytes]:
        """Yield the output of a connection for this interval. A connection that is over is forgotten."""

    def end_interval(self) -> Iterator[bytes]:
        """Yield the output that belongs to no connection, after that of the connections."""

    def forget(self, conn_id: str | None) -> int:
        """Drop the state of a connection; return how many of its frames were not written."""

    def summary(self) -> str | None:
        """Return a sentence on all that was written, if one is useful."""


class _Lines:
    """The base of forms of output with lines, which end with their last line."""

    full = False

    def note_open(self, event: OpenEvent) -> None:
        """Ignore it: frames show that a connection was opened."""

    def end_interval(self) -> Iterator[bytes]:
        return iter(())

    def summary(self) -> None:
        return None


class JsonOutput(_Lines):
    """Writes a line of JSON per frame."""

    def connection(self, followed: Followed) -> Iterator[bytes]:
        for frame in followed.frames:
            yield as_json(row(frame, followed.end), orjson.OPT_APPEND_NEWLINE)

    def forget(self, conn_id: str | None) -> int:  # noqa: ARG002  # it holds nothing
        return 0


@dataclass(slots=True)
class _TextState:
    """The state of a connection: requests that wait for responses, and whether its heading was written."""

    conversation: Conversation
    has_heading: bool = False


class TextOutput(_Lines):
    """Writes conversations for people. descriptor: that of the output, whose lines are fitted if it is a terminal."""

    def __init__(self, descriptor: int, *, verbose: bool) -> None:
        self._terminal = Terminal(descriptor)
        self._verbose = verbose
        self._shown: dict[str | None, _TextState] = {}
        self._last: str | None = None  # the connection whose lines were written last

    def connection(self, followed: Followed) -> Iterator[bytes]:
        for line in self._block(followed):
            yield f"{self._terminal.fitted(printable(line, LINE_LIMIT))}\n".encode()
        if followed.over:
            self.forget(followed.end.conn_id)

    def forget(self, conn_id: str | None) -> int:
        shown = self._shown.pop(conn_id, None)
        return shown.conversation.waiting if shown else 0

    def _block(self, followed: Followed) -> Iterator[str]:
        """Yield the lines below the name of their connection, unless the line before is one of it."""
        end, first = followed.end, followed.first
        if end.conn_id not in self._shown:
            self._shown[end.conn_id] = _TextState(Conversation(verbose=self._verbose))
        shown = self._shown[end.conn_id]
        for line in _lines(shown.conversation, followed):
            if not shown.has_heading:
                yield from heading(end, first.side, first.node)
            elif self._last != end.conn_id:
                yield reminder(end, first.side)
            shown.has_heading, self._last = True, end.conn_id
            yield line


def _lines(conversation: Conversation, followed: Followed) -> Iterator[str]:
    for frame in followed.frames:
        yield from conversation.add(frame)
    if followed.over:
        yield from conversation.rest()
    else:
        yield from conversation.waiting_since(time.monotonic_ns() - SILENCE_NS)
    if close := followed.close:
        yield closing(close["side"], close["closed_by"], close["how"], close["idle_us"])
