"""Writes events as lines to standard output, for use without a broker and for `trace`.

A closed pipe (`| head`) is not an error: the sink asks the agent to stop, and drops and counts later events.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kafka_probe.sinks.batch import Batch
from kafka_probe.sinks.outbox import Outbox, Worker, encode
from kafka_probe.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafka_probe.events import Event

BUFFER_BYTES = 16 << 20
STDOUT = 1


class StdoutSink:
    """A `Sink` that writes the line that `render` returns for an event, with its newline; None means no line.

    buffer_bytes: most bytes queued. The sink's thread calls `on_closed` when a write fails.
    """

    def __init__(
        self,
        render: Callable[[Event], bytes | None] = encode,
        descriptor: int = STDOUT,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.on_closed: Callable[[], None] = lambda: None
        self._render = render
        self._descriptor = descriptor
        self.failure: str | None = None
        self._broken = False
        self._outbox = Outbox(buffer_bytes)
        self._worker = Worker("stdout-sink", self._outbox, self._deliver)

    def send(self, events: Sequence[Event]) -> None:
        self.write([line for event in events if (line := self._render(event)) is not None])

    def write(self, lines: Sequence[bytes]) -> None:
        """Queue lines unchanged."""
        self._worker.start()
        self._outbox.put(lines)

    def close(self, timeout_s: float) -> None:
        self._worker.stop(timeout_s)

    def losses(self) -> Mapping[str, int]:
        return dict(self._outbox.lost)

    def counters(self) -> Mapping[str, int]:
        return {"sink_events": self._outbox.events_delivered, "sink_bytes": self._outbox.bytes_delivered}

    def trouble(self) -> str | None:
        return (self.failure or "the reader closed the pipe") if self._broken else None

    def _deliver(self, batch: Batch) -> None:
        if not self._broken:
            try:
                _write(self._descriptor, batch.lines)
                self._outbox.finish(batch)
                return
            except OSError as error:
                self._broken = True
                self.failure = None if isinstance(error, BrokenPipeError) else error.strerror
                self.on_closed()
        self._outbox.finish(batch, [(batch, "sink_send_failed")])


def _write(descriptor: int, lines: bytes) -> None:
    rest = memoryview(lines)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def shown(value: object) -> str:
    """Return the value as printable text for a terminal, `-` for None."""
    return "-" if value is None else printable(value)
