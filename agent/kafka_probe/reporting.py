"""The report of an interval: all events of the interval, and the `agent` event with losses, counters and costs."""

from __future__ import annotations

import math
import platform
import resource
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import psutil

import kafka_probe
from kafka_probe.capture.programs import LOSSES, Programs
from kafka_probe.capture.sample import COUNTERS
from kafka_probe.connections.offsets import GroupLag
from kafka_probe.connections.silences import HeadsOf, no_heads
from kafka_probe.events import AgentEvent, Event, Interval, NamedTopic, OpenCountFacts, TopicsEvent, WallClock
from kafka_probe.processing import Processor
from kafka_probe.sending import Sender
from kafka_probe.time_limit import TimeLimit
from kafka_probe.workloads.kubernetes import PodWatch

_TOPICS_PER_EVENT = 1000
_LAG_INTERVALS = 3  # a lag of which nothing was seen for so long is not shown
# Losses of the kernel and of the tracker that hide closes or resets; events that the destination lost hide them, too.
_HIDDEN_BY_KERNEL = ("ring_full", "peer_limited", "program_skipped")
_HIDDEN_BY_TRACKER = ("open_incomplete", "close_limit", "reset_limit")


class _ConnectionCounts(NamedTuple):
    """Counts at the end of an interval, as in the `agent` event."""

    connections: int
    open: list[OpenCountFacts]
    other: dict[str, int]


class Reporter:
    """Reports what the processor has collected. `backend` is the name of the capture backend, None before capture.

    lags: how far groups were behind at the end of the last interval, if it `shows_lags`; replaced as a whole.
    """

    def __init__(self, processor: Processor, pod_watch: PodWatch, sender: Sender, *, shows_lags: bool) -> None:
        self.backend: str | None = None
        self._processor = processor
        self._pod_watch = pod_watch
        self._sender = sender
        self._shows_lags = shows_lags
        self._kernel: dict[str, int] = dict.fromkeys((*COUNTERS, *LOSSES), 0)
        self._kernel_us: int | None = None
        self._heads_of: HeadsOf = no_heads
        self.lags: list[GroupLag] = []
        self._began_ns = deque[int](maxlen=_LAG_INTERVALS)  # of the last intervals
        self._spent_s = time.thread_time(), time.monotonic()
        self._hidden = 0
        # Times of CLOCK_MONOTONIC: converted for each report, they follow a step of the wall clock.
        self._complete_since_ns: int | None = None
        self._complete_until_ns = 0

    def read_kernel(self, programs: Programs) -> None:
        """Read the kernel's counters and the programs' run time."""
        self._kernel = programs.counters()
        self._heads_of = programs.heads_of
        run_time_ns = programs.run_time_ns()
        self._kernel_us = None if run_time_ns is None else run_time_ns // 1000

    @property
    def hidden_samples(self) -> int:
        """Return how many samples were lost that may have been closes or resets."""
        return sum(self._kernel[name] for name in _HIDDEN_BY_KERNEL)

    def hand_on(self) -> None:
        """Send the `request` and `frames` events that the processor has queued."""
        self._sender.send(self._processor.take_requests())
        self._sender.send_frames(self._processor.take_frames())

    def report(self, since_ns: int, now_ns: int, settled_ns: int, limit_s: float = math.inf) -> Iterator[None]:
        """End the interval, hand on what is queued, and return an iterator that sends the interval's events in parts.

        Resets, opens, flows and closes have `limit_s`, which begins with the first part; at least some closes are sent
        in any case. The order is: resets; opens; topic names; offsets; flows; repeated opens; closes, which contain the
        sums of the flows; and the `agent` event, after the sinks got all of these, so that its losses and
        `complete_until` are true. The latter is before the first close or reset that is left to the next report. Losses
        and costs are those of the moment when it is sent, opens and resets those until the first part; all else is of
        the interval. Times are of CLOCK_MONOTONIC, so that a step of the wall clock moves both ends of an interval.
        settled_ns: closes up to this time are settled, see pending_closes.py.
        """
        processor, tracker, clock = self._processor, self._processor.tracker, WallClock.now()
        interval = Interval(clock.epoch_us(since_ns), clock.epoch_us(now_ns))
        limit = TimeLimit(limit_s)
        processor.settle(settled_ns)  # before flows, which have what was refused
        self.hand_on()
        flows = processor.dispatcher.report(interval, with_topics=processor.load_shedding.topics, limit=limit)
        processor.adapt(self._cpu_share())
        opens, closes = tracker.report_opens(clock, limit), tracker.report_closes(clock, limit)
        repeated = tracker.repeat(settled_ns, clock, self._heads_of)
        offsets = processor.offsets.report(now_ns, interval.until_us, clock)
        self._began_ns.append(since_ns)
        if self._shows_lags:
            self.lags = processor.offsets.lags(now_ns, self._began_ns[0])
        topics = list(_named_topics(processor.names.report(), interval))
        counts = _ConnectionCounts(len(tracker), tracker.open_now(), tracker.other())

        def last() -> Iterator[AgentEvent]:
            # The time of now: closes that were lost meanwhile may be later than the end of the interval.
            self._note_hidden(time.monotonic_ns())
            self._complete_until_ns = max(self._complete_until_ns, tracker.sent_until(settled_ns))
            yield self._agent_event(interval, counts, clock)

        events = chain[Event | None](opens, topics, offsets, flows, repeated, closes)
        return chain(self._sender.parts(events), self._sender.parts(last()))

    def losses(self) -> dict[str, int]:
        """Return all losses since the start, by reason."""
        kernel = {name: self._kernel[name] for name in LOSSES}
        return {**kernel, **self._pod_watch.losses, **self._processor.losses(), **self._sender.losses()}

    def counters(self) -> dict[str, int]:
        """Return all counters since the start, by name."""
        kernel = {name: self._kernel[name] for name in COUNTERS}
        return {**kernel, **self._processor.counters(), **self._sender.counters()}

    def _note_hidden(self, now_ns: int) -> None:
        hidden = self.hidden_samples + self._sender.lost()
        hidden += sum(self._processor.tracker.losses[name] for name in _HIDDEN_BY_TRACKER)
        if hidden > self._hidden:
            self._hidden, self._complete_since_ns = hidden, now_ns

    def _agent_event(self, interval: Interval, counts: _ConnectionCounts, clock: WallClock) -> AgentEvent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        since_ns = self._complete_since_ns
        return {
            "kind": "agent",
            "since": interval.since_us,
            "complete_since": None if since_ns is None else clock.epoch_us(since_ns),
            "complete_until": clock.epoch_us(self._complete_until_ns),
            "other": counts.other,
            "connections": counts.connections,
            "open": counts.open,
            "losses": self.losses(),
            "counters": self.counters(),
            "shed": self._processor.load_shedding.shed,
            "cpu_us": int((usage.ru_utime + usage.ru_stime) * 1e6),
            "kernel_us": self._kernel_us,
            "rss_bytes": _resident_bytes(),
            "backend": self.backend,
            "kernel": platform.release(),
            "version": kafka_probe.__version__,
            "ts": interval.until_us,
        }

    def _cpu_share(self) -> float:
        """Return the share of one core that the capture thread, which calls this, took since the last call."""
        before, self._spent_s = self._spent_s, (time.thread_time(), time.monotonic())
        cpu_s, wall_s = (now - then for now, then in zip(self._spent_s, before, strict=True))
        return cpu_s / wall_s if wall_s else 0.0


def _named_topics(pairs: Iterable[tuple[str, str]], interval: Interval) -> Iterator[TopicsEvent]:
    topics: list[NamedTopic] = [{"topic": name, "topic_id": topic_id} for topic_id, name in pairs]
    for start in range(0, len(topics), _TOPICS_PER_EVENT):
        yield {"kind": "topics", "topics": topics[start : start + _TOPICS_PER_EVENT], "ts": interval.until_us}


def _resident_bytes() -> int:
    rss: int = psutil.Process().memory_info().rss
    return rss
