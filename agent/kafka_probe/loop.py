"""The loop of the agent: each turn reads samples, then sends a bounded part of the reports that are due.

It reads samples in batches, and processes each in portions. The `request` and `frames` events of a portion are handed
on before the next portion is processed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from kafka_probe.capture.perfbuf import PerfBuffers
from kafka_probe.capture.programs import Programs
from kafka_probe.capture.ringbuf import RingBuffer
from kafka_probe.capture.sample import SLOT, Samples
from kafka_probe.connections.listing import Listing
from kafka_probe.connections.pending_closes import SETTLED_NS
from kafka_probe.processing import Processor
from kafka_probe.reporting import Reporter

Buffer = RingBuffer | PerfBuffers

# Samples wait in the ring this long, so that batches are large enough for array operations. The kernel wakes the agent
# earlier when the ring is a quarter full.
_BATCH_S = 1.0
_BATCH_SAMPLES = 1 << 14
_LISTED_AT_ONCE = 4096
# Pause between turns that send a report, so that the sinks keep up; none if samples or a list are unread.
_PAUSE_S = 0.05
_TURN_S = 0.25  # most time to read samples per turn while a report is sent; the report gets as much time
_REPORTS = 2  # most reports that are sent at the same time
_LEAST_REPORT_S = 5.0  # time of a report, if intervals are shorter
_DONE = object()


@dataclass(frozen=True, slots=True)
class _Suspects:
    """State of connections that the kernel no longer followed at `since_ns`.

    Their closes are lost, except those whose samples the buffer still held at that time.
    """

    since_ns: int
    conns: set[int]  # known connections that the kernel no longer followed
    streams: set[int]  # streams with unfinished frames
    followed: set[int]  # connections that the kernel followed
    orphans: list[tuple[int, str, str]]  # listed connections without a sample whose process had ended


class Loop:
    """Reads samples from the programs' buffer, and begins a report at the end of each interval.

    Samples are read in the order of the buffer. Frames that arrive while a report is sent belong to the next interval.
    listing: the older connections, used once it is complete; None: there is no list of them.
    """

    def __init__(
        self,
        programs: Programs,
        listing: Listing | None,
        processor: Processor,
        reporter: Reporter,
        interval_s: float,
        ring_bytes: int,
    ) -> None:
        self._programs = programs
        self._listing = listing
        self._listed_ready = False  # the list is complete, and not all of it is taken over
        self._processor = processor
        self._reporter = reporter
        self._interval_s = interval_s
        self._ring_samples = ring_bytes // SLOT.itemsize
        self._since_ns = time.monotonic_ns()
        self._due_s = time.monotonic() + interval_s
        self._reports: deque[Iterator[None]] = deque()
        # _unread: how many samples written before _marked_ns may be unread; all written before _read_ns are read.
        self._unread, self._marked_ns, self._read_ns = 0, 0, self._since_ns
        self._searched_at = 0  # lost samples at the last search for connections whose closes are lost
        self._suspects: _Suspects | None = None
        if listing is None:
            processor.tracker.end_list()

    def start(self) -> None:
        """Send the first report, which announces the agent. A sink that cannot deliver it logs that at once."""
        _finish(self._reporter.report(self._since_ns, self._since_ns, self._since_ns))

    def turn(self) -> None:
        """Wait at most a second for samples, read them, and send reports for as long as reading took.

        An interval does not end while _REPORTS reports are unfinished.
        """
        due_s = math.inf if len(self._reports) == _REPORTS else self._due_s
        pause_s = 0.0 if self._unread or self._listed_ready else _PAUSE_S if self._reports else _BATCH_S
        self._programs.buffer.wait(max(0.0, min(pause_s, due_s - time.monotonic())))
        began_s = time.monotonic()
        self._drain(min(due_s, began_s + _TURN_S) if self._reports else due_s)
        took_s = time.monotonic() - began_s
        self._forget_suspects()
        self._processor.settle(self._read_ns - SETTLED_NS)
        self._reporter.hand_on()
        if self._listing:
            self._take_listed(self._listing)
        self._send_reports(took_s)
        if time.monotonic() >= self._due_s and len(self._reports) < _REPORTS:
            self._end_interval()

    def set_interval(self, interval_s: float) -> None:
        """Use another length of intervals from now on."""
        self._interval_s = interval_s
        self._due_s = min(self._due_s, time.monotonic() + interval_s)

    def finish(self) -> None:
        """Detach the programs, read all samples, and send all reports and that of the last interval."""
        self._programs.detach()
        now_ns = time.monotonic_ns()
        self._reporter.read_kernel(self._programs)
        while len(samples := self._programs.buffer.take(_BATCH_SAMPLES)):
            self._process(samples)
        self._processor.finish()
        self._reporter.hand_on()
        while self._listing and self._listed_ready:
            self._take_listed(self._listing)
        _finish(chain(*self._reports))
        _finish(self._reporter.report(self._since_ns, now_ns, now_ns))

    def _drain(self, due_s: float) -> None:
        """Read the samples that the buffer holds, or the rest of them after an interrupted call.

        Stops at `due_s`, by time.monotonic, at a batch that is not full, so that batches do not shrink to few samples,
        or after as many samples as fit in the ring, which may fill as fast as it is read.
        """
        if not self._unread:
            self._unread, self._marked_ns = self._ring_samples, time.monotonic_ns()
        while self._unread:
            samples = self._programs.buffer.take(_BATCH_SAMPLES)
            if len(samples):
                self._process(samples)
            self._unread = max(0, self._unread - len(samples)) if len(samples) == _BATCH_SAMPLES else 0
            if time.monotonic() >= due_s:
                break
        if not self._unread:
            self._read_ns = self._marked_ns

    def _process(self, samples: Samples) -> None:
        """Process a batch; after each portion, hand on the events that it queued."""
        self._processor.record(samples)
        for portion in self._processor.split(samples):
            self._processor.consume(portion)
            self._reporter.hand_on()

    def _suspect_lost(self) -> None:
        """Note the known connections that the kernel no longer follows, if closes were lost or the table is full."""
        lost_samples, tracker = self._reporter.hidden_samples, self._processor.tracker
        if self._suspects or (lost_samples == self._searched_at and not tracker.full):
            return
        self._searched_at = lost_samples
        # Ask the kernel last: connections that open from now on are not suspected.
        known, streams, orphans = tracker.known(), self._processor.reader.unfinished(), tracker.orphans()
        followed = self._programs.followed()
        self._suspects = _Suspects(time.monotonic_ns(), known - followed, streams, followed, orphans)

    def _forget_suspects(self) -> None:
        """Forget the suspects once all samples that the buffer held then are read.

        By then, closes that were not lost have been processed.
        """
        suspects = self._suspects
        if suspects is None or self._read_ns < suspects.since_ns:
            return
        self._suspects = None
        for conn in suspects.conns:
            self._processor.forget(conn)
        self._processor.reader.keep(suspects.streams, suspects.followed)
        self._processor.tracker.forget_listed(suspects.orphans)

    def _end_interval(self) -> None:
        """Begin the report of the interval that ends."""
        self._reporter.read_kernel(self._programs)
        self._suspect_lost()
        now_ns = time.monotonic_ns()
        limit_s = max(self._interval_s, _LEAST_REPORT_S)
        self._reports.append(self._reporter.report(self._since_ns, now_ns, self._read_ns - SETTLED_NS, limit_s))
        self._since_ns = now_ns
        # Do not make up for a stall by a burst of short intervals.
        self._due_s = max(self._due_s, time.monotonic() - self._interval_s / 2) + self._interval_s

    def _take_listed(self, listing: Listing) -> None:
        """Take over the next part of the list of older connections, once it is complete."""
        listed = listing.take(_LISTED_AT_ONCE)
        if listed is None:
            return
        self._processor.tracker.add_listed(listed, time.monotonic_ns())
        self._listed_ready = len(listed) == _LISTED_AT_ONCE
        if not self._listed_ready:
            self._processor.tracker.end_list()
            self._listing, self._due_s = None, time.monotonic()  # report the listed connections at once

    def _send_reports(self, seconds: float) -> None:
        """Send parts of the reports, the oldest first, for the given time, but at least one part."""
        until_s = time.monotonic() + seconds
        while self._reports:
            if next(self._reports[0], _DONE) is _DONE:
                self._reports.popleft()
            if time.monotonic() >= until_s:
                return


def _finish(parts: Iterator[None]) -> None:
    for _ in parts:
        pass
