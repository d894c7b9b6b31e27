"""What waits between the capture loop and a sink's own thread: encoded events, bounded in bytes.

When the sink's far end is away and the bound is reached, the newest events are dropped: the beginning of an outage is
what explains it, and the `agent` events carry totals since the start, so the gap shows in the first one that follows.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kafka_probe.sinks import Event

BATCH_BYTES = 256 << 10

LOSSES = {
    "sink_buffer_full": "events that found no room while the sink was away: see `--sink-buffer-bytes`",
    "sink_refused": "events that the brokers refused; the log says why",
    "sink_send_failed": "events that could not be sent, or whose reader went away",
    "sink_unsent_at_exit": "events that waited when the agent stopped: raise `--flush-timeout-s`",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded events, one per line, each ended by a newline, and how many there are."""

    lines: bytes
    events: int


def encode(event: Event) -> bytes:
    """The event as one line of JSON. Numbers that are keys (error codes, buckets) become strings."""
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def batches(lines: Iterable[bytes], limit_bytes: int = BATCH_BYTES) -> Iterator[Batch]:
    """Join lines into batches of at most `limit_bytes`; a longer line stands alone."""
    joined: list[bytes] = []
    size = 0
    for line in lines:
        if joined and size + len(line) > limit_bytes:
            yield Batch(b"".join(joined), len(joined))
            joined, size = [], 0
        joined.append(line)
        size += len(line)
    if joined:
        yield Batch(b"".join(joined), len(joined))


class Outbox:
    """A queue of batches for one consumer. The batch being delivered counts towards the bound until it is settled."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.events_delivered = 0
        self.bytes_delivered = 0
        self.lost = dict.fromkeys(LOSSES, 0)

    def put(self, events: Sequence[bytes]) -> None:
        """Queue encoded events as far as they fit; the rest is counted as `sink_buffer_full`."""
        with self._changed:
            for batch in batches(events):
                if self._closed:
                    self.lost["sink_unsent_at_exit"] += batch.events
                elif self._size_bytes + len(batch.lines) > self._limit_bytes:
                    self.lost["sink_buffer_full"] += batch.events
                else:
                    self._size_bytes += len(batch.lines)
                    self._waiting.append(batch)
            self._changed.notify_all()

    def head(self) -> Batch | None:
        """The oldest batch, which stays until it is settled; waits for one; None when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return self._waiting[0] if self._waiting else None

    def settle(self, lost: str | None = None) -> None:
        """Remove the oldest batch: delivered, or lost for the given reason."""
        with self._changed:
            if not self._waiting:  # abandoned meanwhile
                return
            batch = self._waiting.popleft()
            self._size_bytes -= len(batch.lines)
            if lost is None:
                self.events_delivered += batch.events
                self.bytes_delivered += len(batch.lines)
            else:
                self.lost[lost] += batch.events

    def close(self) -> None:
        """Take no more; `head` returns what is left, then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Count what is left as lost."""
        with self._changed:
            self._closed = True
            self.lost["sink_unsent_at_exit"] += sum(batch.events for batch in self._waiting)
            self._waiting.clear()
            self._size_bytes = 0
            self._changed.notify_all()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait, the batch being delivered included."""
        return self._size_bytes


class Worker:
    """The thread that empties an outbox; `deliver` gets each batch and settles it."""

    def __init__(self, name: str, outbox: Outbox, deliver: Callable[[Batch], None]) -> None:
        self._outbox = outbox
        self._deliver = deliver
        # A daemon: a far end that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (batch := self._outbox.head()) is not None:
            self._deliver(batch)

    def stop(self, timeout_s: float) -> None:
        """Deliver what waits, for at most `timeout_s` seconds; the rest is counted as lost."""
        self._outbox.close()
        self._thread.join(timeout_s)
        self._outbox.abandon()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)
