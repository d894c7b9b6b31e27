"""The queue between the capture loop and a sink's thread: encoded events, bounded in bytes.

If there is a spool, its thread moves batches to disk that have waited longer than normal delivery takes. When no space
is left, the newest events are dropped, because the beginning of an outage explains it. `agent` events contain totals
since the start, so the first one after the gap shows it. Above half of the bound, peers share the rest. The last
quarter is for opens, resets and closes, which are few and explain most, the last eighth for events that are not about
one connection, such as `agent`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING

import orjson

from kafka_probe.memory import SPOOL_FILES
from kafka_probe.peer_limits import Shares
from kafka_probe.sinks.batch import EVENT_BYTES, Batch, batches
from kafka_probe.text import as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kafka_probe.sinks.spool import Segment, Spool

_LIFECYCLE = ("open", "close", "reset")
SPOOL_AFTER_S = 2.0
RETRY_S = 1.0
EXIT_S = 10.0

LOSSES = {
    "sink_buffer_full": "events beyond the buffer, or beyond the share of their peer, while the sink was slow or "
    "unreachable: see `--spool-dir`, `--sink-buffer-bytes`",
    "sink_event_too_large": "events of more than 4 MiB, such as requests for very many partitions with long names",
    "sink_refused": "events that the brokers refused, such as those too large for the topic: see the log",
    "sink_send_failed": "events that could not be sent, or whose reader closed the pipe",
    "sink_unsent_at_exit": "events not delivered when the agent stopped: see `--spool-dir`, `--flush-timeout-s`",
    "sink_spool_damaged": "events on disk that could not be read back: the log names the damaged or removed file",
}


def encode(event: Mapping[str, object]) -> bytes:
    """Return the event as one line of JSON."""
    return as_json(event, orjson.OPT_APPEND_NEWLINE)


class Outbox:
    """A queue of batches for one consumer: first those on disk, then those in memory, in the order of arrival.

    The batch being delivered counts towards the bounds until it is finished. Only the consumer and the spool's thread
    access the disk, never `put`.
    """

    def __init__(self, limit_bytes: int, spool: Spool | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._shares = Shares(limit_bytes)
        self._removed_bytes = 0  # total removed from memory
        self._spool = spool
        self._on_disk: deque[Segment] = spool.undelivered if spool else deque()
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._abandoned = False
        self._writer: threading.Thread | None = None
        self.waiting_bytes = 0
        self.spooled_bytes = sum(segment.size_bytes for segment in self._on_disk)
        self.events_delivered = 0
        self.bytes_delivered = 0
        self.lost = dict.fromkeys(LOSSES, 0)

    def put(
        self,
        events: Sequence[bytes],
        key: str = "",
        peers: Iterable[str | None] = repeat(None),
        kinds: Iterable[str] = repeat(""),
    ) -> None:
        """Queue the encoded events that fit, and count the others as lost.

        peers: the peer of each event, or None; kinds: the kind of each event.
        """
        if self._spool and not self._writer:
            self._writer = threading.Thread(target=self._write, args=(self._spool,), name="spool", daemon=True)
            self._writer.start()
        with self._changed:
            if self._closed:
                self.lost["sink_unsent_at_exit"] += len(events)
                return
            owned = zip(events, peers, kinds, strict=False)
            accepted = [event for event, peer, kind in owned if self._take(len(event), peer, kind)]
            self._waiting += batches(accepted, key=key)
            self._changed.notify_all()

    def _take(self, size: int, peer: str | None, kind: str) -> bool:
        """Count an event's bytes as waiting and return True, or count the event as lost if it does not fit."""
        if size > EVENT_BYTES:
            self.lost["sink_event_too_large"] += 1
            return False
        lifecycle = kind in _LIFECYCLE
        free_bytes = self._limit_bytes * (8 if peer is None else 7 if lifecycle else 6) // 8
        share = f"lifecycle of {peer}" if lifecycle and peer else peer  # flows of a peer do not displace its closes
        fits = self.waiting_bytes + size <= free_bytes and (
            share is None or self._shares.take(share, size, self.waiting_bytes, self._removed_bytes)
        )
        self.waiting_bytes += size * fits
        self.lost["sink_buffer_full"] += not fits
        return fits

    def head(self) -> Batch | None:
        """Wait for the oldest batch and return it, queued until `finish`; None if closed and empty, or abandoned."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._on_disk or self._waiting or self._closed)
                if self._abandoned:
                    return None
                if not self._spool or not self._on_disk:
                    return self._waiting[0] if self._waiting else None
                segment = self._on_disk[0]
            batch = self._spool.read(segment)
            if batch.events:
                return batch
            self.finish(batch)

    def finish(self, batch: Batch, lost: Sequence[tuple[Batch, str]] = ()) -> None:
        """Remove the oldest batch, which `head` returned. lost: its parts not delivered, each with the reason."""
        with self._changed:
            segment = self._on_disk.popleft() if self._on_disk else None
            if segment:
                self.spooled_bytes -= segment.size_bytes
                self.lost["sink_spool_damaged"] += segment.events - batch.events
            elif self._waiting:
                self._take_out()
            else:  # abandoned meanwhile
                return
            self.events_delivered += batch.events - sum(part.events for part, _ in lost)
            self.bytes_delivered += len(batch.lines) - sum(len(part.lines) for part, _ in lost)
            for part, reason in lost:
                self.lost[reason] += part.events
        if segment and self._spool:
            self._spool.remove(segment)

    def close(self) -> None:
        """Take no more events; `head` returns the remaining batches, then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Move the remaining batches to the spool within EXIT_S, and count those not moved as lost."""
        with self._changed:
            self._closed = self._abandoned = True
            self._changed.notify_all()
        if self._writer:
            self._writer.join(EXIT_S)
        with self._changed:
            self.lost["sink_unsent_at_exit"] += sum(batch.events for batch in self._waiting)
            self._waiting.clear()
            self.waiting_bytes = 0

    def _write(self, spool: Spool) -> None:
        """Move overdue batches to disk, and all remaining ones after `abandon`. Runs in the spool's thread."""
        while (batch := self._overdue()) is not None:
            free_bytes = spool.limit_bytes - self.spooled_bytes if len(self._on_disk) < SPOOL_FILES else 0
            segment = spool.write(batch, free_bytes)
            if segment is None:
                with self._changed:
                    if self._changed.wait_for(lambda: self._abandoned, RETRY_S):
                        return
            elif not self._moved(batch, segment):
                spool.remove(segment)

    def _overdue(self) -> Batch | None:
        """Wait until the oldest batch in memory has to go to disk, and return it; None if abandoned and empty."""
        with self._changed:
            while self._waiting or not self._abandoned:
                remaining_s = None
                if self._waiting:
                    oldest = self._waiting[0]
                    remaining_s = oldest.since_s + SPOOL_AFTER_S - time.monotonic()
                    if remaining_s <= 0 or self.waiting_bytes > self._limit_bytes // 2 or self._abandoned:
                        return oldest
                self._changed.wait(remaining_s)
            return None

    def _moved(self, batch: Batch, segment: Segment) -> bool:
        """Replace the batch by its segment and return True; False if the batch was finished during the write."""
        with self._changed:
            if not self._waiting or self._waiting[0] is not batch:
                return False
            self._take_out()
            self._on_disk.append(segment)
            self.spooled_bytes += segment.size_bytes
            return True

    def _take_out(self) -> None:
        batch = self._waiting.popleft()
        self.waiting_bytes -= len(batch.lines)
        self._removed_bytes += len(batch.lines)


class Worker:
    """The thread that empties an outbox; `deliver` gets each batch and finishes it.

    Like the spool's thread it starts with the first event, because a thread inherits the capabilities of its starter.
    """

    def __init__(self, name: str, outbox: Outbox, deliver: Callable[[Batch], None]) -> None:
        self._outbox = outbox
        self._deliver = deliver
        # A daemon thread: a peer that never answers must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def _run(self) -> None:
        while (batch := self._outbox.head()) is not None:
            self._deliver(batch)

    def stop(self, timeout_s: float) -> None:
        """Deliver queued batches for at most `timeout_s` seconds; spool the rest or count it as lost."""
        self._outbox.close()
        self.join(timeout_s)
        self._outbox.abandon()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, for at most `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
