"""The agent: reads samples, passes them to the other modules, and reports once per interval.

This module is the composition root. It owns the loop, the clock and the numbering of events; it never interprets the
contents of samples, frames or events.
"""

from __future__ import annotations

import logging
import math
import platform
import resource
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy.typing as npt
import psutil

import kafka_probe
from kafka_probe import server
from kafka_probe.capture.perfbuf import PerfBuffers
from kafka_probe.capture.programs import LOSSES, Programs
from kafka_probe.capture.ringbuf import RingBuffer
from kafka_probe.capture.sample import COUNTERS, SLOT, SampleKind
from kafka_probe.config import RELOADED, Config
from kafka_probe.connections import exchange
from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.exchange import Exchanges
from kafka_probe.connections.frames import FrameReader
from kafka_probe.connections.learner import Learner
from kafka_probe.connections.listing import Listing
from kafka_probe.connections.pending_closes import SETTLED_NS
from kafka_probe.connections.reassembly import portions
from kafka_probe.connections.topics import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import SCHEMA_VERSION, AgentEvent, Event, Interval, NamedTopic, Origin, TopicsEvent, WallClock
from kafka_probe.flows import SUMMED, Flows
from kafka_probe.load_shedding import LoadShedding
from kafka_probe.memory import DECODED_AT_ONCE, DEFAULT, IN_HAND_BYTES, Bounds, event_bytes
from kafka_probe.sinks import Sink
from kafka_probe.sinks.outbox import encode
from kafka_probe.workloads import WorkloadResolver
from kafka_probe.workloads.kubernetes import PodWatch
from kafka_probe.workloads.pods import Pods

Samples = npt.NDArray[Any]
Buffer = RingBuffer | PerfBuffers

# Samples wait in the ring this long, so that batches are large enough for array operations. The kernel wakes the agent
# earlier when the ring is a quarter full.
_BATCH_S = 1.0
_BATCH_SAMPLES = 1 << 12
_LISTED_AT_ONCE = 4096
# Pause between the parts of a report, so that the sink keeps up.
_PAUSE_S = 0.05
_TURN_S = 0.25  # most time to read samples per turn while a report is handed on; the report gets as much time
_REPORTS = 2  # most reports that are handed on at the same time
_TOPICS_PER_EVENT = 1000
# Losses that may have been closes or resets; events that the sink lost may have been, too.
_MAY_HIDE_ENDS = ("ring_full", "peer_limited", "program_skipped")
_ENDS_LIMITED = ("close_limit", "reset_limit")
_DONE = object()

log = logging.getLogger("kafka_probe")


@dataclass(frozen=True, slots=True)
class _Suspects:
    """State of connections that the kernel no longer followed at `since_ns`.

    Their ends are lost, except those whose samples the buffer still held at that time.
    """

    since_ns: int
    conns: set[int]  # known connections that the kernel no longer followed
    streams: set[int]  # streams with unfinished frames
    followed: set[int]  # connections that the kernel followed
    orphans: list[tuple[int, str, str]]  # listed connections without a sample whose process had ended


class Agent:
    """One agent on one node. `run` blocks until `stop` is called.

    `listener`, if set, receives the same events as the sink and must not block the loop; it returns how many events it
    dropped. `turned_s` is the time of the loop's last turn by time.monotonic, None before the first. `uncounted_s`
    returns the CPU time of threads that `--cpu-limit` does not count, in s.
    """

    def __init__(self, config: Config, sink: Sink, bounds: Bounds = DEFAULT) -> None:
        self.listener: Callable[[Sequence[Event]], int | None] | None = None
        self._listener_losses = Counter(dict.fromkeys(server.LOSSES, 0))
        self.turned_s: float | None = None
        self.uncounted_s: Callable[[], float] = lambda: 0.0
        self._config = config
        self._sink = sink
        self._id = uuid.uuid4().hex
        self._sent = 0
        self._stopping = False
        self._reloaded: Config | None = None
        self._spent = time.process_time(), time.monotonic()
        self._backend: str | None = None
        self._hidden = 0
        self._complete_since: int | None = None
        pods = Pods()
        self._pod_watch = PodWatch(config.kubernetes, config.node, pods)
        self._bounds = bounds
        self._resolver = resolver = WorkloadResolver(
            pods=pods, command_lines=config.cmdline, limit_bytes=bounds.workloads_bytes
        )
        self._names = TopicNames(bounds.topic_names_bytes)
        self._brokers = BrokerFiles(self._names, resolver)
        self._tracker = Tracker(resolver, Conntrack() if config.conntrack else None, bounds)
        self._flows = Flows(self._tracker, self._names, Learner(self._tracker, self._names, self._brokers), bounds)
        self._load_shedding = LoadShedding(config.requests, config.cpu_limit)
        self._reader = FrameReader(SUMMED, bounds)
        self._request_losses = Counter(dict.fromkeys(exchange.LOSSES, 0))
        self._exchanges: Exchanges | None = None
        self._look_closely()
        self._kernel: dict[str, int] = dict.fromkeys((*COUNTERS, *LOSSES), 0)
        self._kernel_us: int | None = None
        # _unread: how many samples written before _marked_ns may be unread; all written before _read_ns are read.
        self._unread, self._marked_ns, self._read_ns = 0, 0, time.monotonic_ns()
        self._looked_at = 0  # lost samples at the last search for connections whose ends are lost
        self._suspects: _Suspects | None = None

    def run(self, programs: Programs, listing: Listing | None) -> None:
        """Read samples, and the list of older connections once it is complete, until `stop` is called."""
        self._backend = programs.backend
        self._pod_watch.start()
        try:
            self._loop(programs, listing)
        finally:
            self._pod_watch.close()

    def stop(self) -> None:
        """Make `run` return, within about a second. For signal handlers and other threads."""
        self._stopping = True

    def reconfigure(self, config: Config) -> None:
        """Take over those settings that can change while the agent runs; log the names of the others.

        For signal handlers and other threads: the loop takes the settings over.
        """
        self._reloaded = config

    def connections(self) -> tuple[Connection, ...]:
        """Return the open connections of this moment. For other threads; the connections themselves keep changing."""
        return self._tracker.snapshot()

    def summary(self) -> dict[str, dict[str, int]]:
        """Return the losses and the counters since the start, by name."""
        return {"losses": self._losses(), "counters": self._counters()}

    def _loop(self, programs: Programs, listing: Listing | None) -> None:
        since = self._read_ns = time.monotonic_ns()
        due = time.monotonic() + self._config.interval_s
        reports: deque[Iterator[None]] = deque()
        if listing is None:
            self._tracker.end_list()
        # The first report announces the agent, and makes a sink that cannot deliver log that at once.
        _finish(self._report(since, since, since))
        while not self._stopping:
            self.turned_s = time.monotonic()
            pause_s = 0.0 if self._unread else _PAUSE_S if reports else _BATCH_S
            programs.buffer.wait(max(0.0, min(pause_s, due - self.turned_s)))
            began = time.monotonic()
            self._drain(programs.buffer, min(due, began + _TURN_S) if reports else due)
            took_s = time.monotonic() - began
            self._forget_suspects()
            self._tracker.settle(self._read_ns - SETTLED_NS)
            if listing and self._take_listed(listing, programs.buffer):
                listing, due = None, time.monotonic()  # report the listed connections at once
            _hand_on(reports, took_s)
            if time.monotonic() >= due:
                if len(reports) == _REPORTS:
                    _finish(reports.popleft())
                self._look(programs)
                self._suspect_lost(programs)
                now = time.monotonic_ns()
                reports.append(self._report(since, now, self._read_ns - SETTLED_NS))
                since = now
                # Do not make up for a stall by a burst of short intervals.
                due = max(due, time.monotonic() - self._config.interval_s / 2) + self._config.interval_s
            if self._reloaded:
                self._take_over(self._reloaded)
                due = min(due, time.monotonic() + self._config.interval_s)
        programs.detach()
        now = time.monotonic_ns()
        self._look(programs)
        while len(samples := programs.buffer.take(_BATCH_SAMPLES)):
            self._consume(samples)
        _finish(chain(*reports, self._report(since, now, now)))

    def _look(self, programs: Programs) -> None:
        """Read the kernel's counters and the programs' run time."""
        self._kernel = programs.counters()
        run_time_ns = programs.run_time_ns()
        self._kernel_us = None if run_time_ns is None else run_time_ns // 1000

    def _suspect_lost(self, programs: Programs) -> None:
        """If samples of ends were lost, note the known connections that the kernel no longer follows."""
        lost_samples = sum(self._kernel[name] for name in _MAY_HIDE_ENDS)
        if self._suspects or (lost_samples == self._looked_at and not self._tracker.full):
            return
        self._looked_at = lost_samples
        # Ask the kernel last: connections that open from now on are not suspected.
        known, streams, orphans = self._tracker.known(), self._reader.unfinished(), self._tracker.orphans()
        followed = programs.followed()
        self._suspects = _Suspects(time.monotonic_ns(), known - followed, streams, followed, orphans)

    def _forget_suspects(self) -> None:
        """Forget the suspects once all samples that the buffer held then are read.

        By then, ends that were not lost have been processed.
        """
        suspects = self._suspects
        if suspects is None or self._read_ns < suspects.since_ns:
            return
        self._suspects = None
        for conn in suspects.conns:
            self._forget(conn)
        self._reader.keep(suspects.streams, suspects.followed)
        self._tracker.forget_listed(suspects.orphans)

    def _take_listed(self, listing: Listing, buffer: Buffer) -> bool:
        """Take over the list of older connections; return True once it is complete, False if it is not ready.

        Reads samples between parts of the list, so that the ring does not fill meanwhile.
        """
        while (listed := listing.take(_LISTED_AT_ONCE)) is not None:
            self._tracker.add_listed(listed, time.monotonic_ns())
            if len(listed) < _LISTED_AT_ONCE:
                self._tracker.end_list()
                return True
            self._drain(buffer)
        return False

    def _drain(self, buffer: Buffer, due: float = math.inf) -> None:
        """Read the samples that the buffer holds, or the rest of them after an interrupted call.

        Stops at `due`, by time.monotonic. Samples that arrive meanwhile wait for the next call: else batches would
        shrink to few samples. A call reads at most as many samples as fit in the ring, which may fill as fast as it is
        read.
        """
        if not self._unread:
            self._unread, self._marked_ns = self._config.ring_size_bytes // SLOT.itemsize, time.monotonic_ns()
        while self._unread:
            samples = buffer.take(_BATCH_SAMPLES)
            if len(samples):
                self._consume(samples)
            self._unread = max(0, self._unread - len(samples)) if len(samples) == _BATCH_SAMPLES else 0
            if time.monotonic() >= due:
                break
        if not self._unread:
            self._read_ns = self._marked_ns

    def _consume(self, samples: Samples) -> None:
        for portion in portions(samples, DECODED_AT_ONCE):
            self._consume_portion(portion)

    def _consume_portion(self, samples: Samples) -> None:
        """Process frames after samples of other kinds but before ends: a connection's frames never follow its end."""
        kinds = samples["kind"]
        ends = (kinds == SampleKind.CLOSE) | (kinds == SampleKind.GONE)
        others = (kinds != SampleKind.FRAME) & ~ends
        for sample in samples[others]:
            self._tracker.take(sample)
        batch = list(self._reader.read(samples[kinds == SampleKind.FRAME] if (others | ends).any() else samples))
        self._flows.add(batch)
        self._brokers.read_on()
        if self._exchanges:
            self._send(self._load_shedding.wanted(self._exchanges.pair(batch, WallClock.now())))
        else:
            self._load_shedding.skip(batch)
        for sample, kind in zip(samples[ends], kinds[ends].tolist(), strict=True):
            if kind == SampleKind.CLOSE:
                self._tracker.close(sample)
            else:
                self._forget(int(sample["conn"]))

    def _forget(self, conn: int) -> None:
        connection = self._tracker.gone(conn)
        self._reader.forget(conn)
        if connection and self._exchanges:
            self._send(self._load_shedding.wanted(self._exchanges.end(connection, WallClock.now())))

    def _look_closely(self) -> None:
        """Build exchanges only while they become events: that costs more than counting frames."""
        if self._load_shedding.requests and not self._exchanges:
            self._exchanges = Exchanges(self._tracker, self._names, self._bounds.exchanges_bytes)
            self._exchanges.losses = self._request_losses
            self._reader.ask()
        elif self._exchanges and not self._load_shedding.requests:
            self._exchanges = None
            self._reader.ask(SUMMED)

    def _take_over(self, config: Config) -> None:
        self._reloaded = None
        changed = {name for name in Config.model_fields if getattr(config, name) != getattr(self._config, name)}
        if late := changed - RELOADED:
            log.warning("Restart the agent to apply these changed settings: %s.", ", ".join(sorted(late)))
        now = changed & RELOADED
        self._config = self._config.model_copy(update={name: getattr(config, name) for name in now})
        if now & {"requests", "cpu_limit"}:
            self._load_shedding.reconfigure(config.requests, config.cpu_limit)
            self._look_closely()
        log.info("Settings reloaded: %s.", f"{', '.join(sorted(now))} changed" if now else "nothing changed")

    def _report(self, since_ns: int, now_ns: int, settled_ns: int) -> Iterator[None]:
        """End the interval and return an iterator that hands on the interval's events in parts.

        The `agent` event comes last, so that `complete_until` is true when it arrives. Times are of CLOCK_MONOTONIC, so
        that a step of the wall clock moves both ends of an interval. settled_ns: closes up to this time are settled,
        see pending_closes.py.
        """
        clock = WallClock.now()
        interval = Interval(clock.epoch_us(since_ns), clock.epoch_us(now_ns))
        flows = self._flows.report(interval, with_topics=self._load_shedding.topics)
        self._tracker.settle(settled_ns)
        self._load_shedding.spend(self._cpu_share())
        self._look_closely()
        ends, topics = self._tracker.report(clock), list(_named_topics(self._names.report(), interval))
        other = self._tracker.other()

        def last() -> Iterator[AgentEvent]:
            self._note_hidden(interval.until_us)
            yield self._state(interval, clock.epoch_us(settled_ns), other)

        return self._parts(chain[Event](ends, topics, flows, last()))

    def _note_hidden(self, now_us: int) -> None:
        hidden = sum(self._kernel[name] for name in _MAY_HIDE_ENDS) + sum(self._sink.losses().values())
        hidden += sum(self._tracker.losses[name] for name in _ENDS_LIMITED)
        if hidden > self._hidden:
            self._hidden, self._complete_since = hidden, now_us

    def _state(self, interval: Interval, complete_until: int, other: dict[str, int]) -> AgentEvent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "kind": "agent",
            "since": interval.since_us,
            "complete_since": self._complete_since,
            "complete_until": complete_until,
            "other": other,
            "connections": len(self._tracker),
            "open": self._tracker.open_now(),
            "losses": self._losses(),
            "counters": self._counters(),
            "shed": self._load_shedding.shed,
            "cpu_us": int((usage.ru_utime + usage.ru_stime) * 1e6),
            "kernel_us": self._kernel_us,
            "rss_bytes": _resident_bytes(),
            "backend": self._backend,
            "kernel": platform.release(),
            "version": kafka_probe.__version__,
            "ts": interval.until_us,
        }

    def _cpu_share(self) -> float:
        """Return the share of one core that the agent took since the last call, without the HTTP server's threads."""
        before, self._spent = self._spent, (time.process_time() - self.uncounted_s(), time.monotonic())
        cpu_s, wall_s = (now - then for now, then in zip(self._spent, before, strict=True))
        return cpu_s / wall_s if wall_s else 0.0

    def _losses(self) -> dict[str, int]:
        kernel = {name: self._kernel[name] for name in LOSSES}
        modules = (
            self._resolver,
            self._pod_watch,
            self._reader,
            self._tracker,
            self._flows,
            self._load_shedding,
            self._names,
        )
        counted = (
            {reason: n for module in modules for reason, n in module.losses.items()}
            | self._request_losses
            | self._listener_losses
        )
        return {**kernel, **counted, **self._sink.losses()}

    def _counters(self) -> dict[str, int]:
        kernel = {name: self._kernel[name] for name in COUNTERS}
        modules = {**self._reader.counters, **self._brokers.counters}
        return {**kernel, **modules, "events": self._sent, **self._sink.counters()}

    def _send(self, events: Iterable[Event]) -> None:
        _finish(self._parts(events))

    def _parts(self, events: Iterable[Event]) -> Iterator[None]:
        """Hand on events in parts and yield between parts."""
        batch: list[Event] = []
        in_hand = 0
        for event in events:
            size = event_bytes(event) + len(encode(event))  # escapes may make names six times as long in JSON
            if batch and in_hand + size > IN_HAND_BYTES:
                self._hand_over(batch)
                batch, in_hand = [], 0
                yield
            batch.append(event)
            in_hand += size
        if batch:
            self._hand_over(batch)

    def _hand_over(self, events: list[Event]) -> None:
        """Number events and pass them to the sink and the listener."""
        origin: Origin = {"v": SCHEMA_VERSION, "node": self._config.node, "agent_id": self._id}
        batch = [cast("Event", {**origin, "seq": seq, **event}) for seq, event in enumerate(events, self._sent)]
        self._sent += len(batch)
        self._sink.send(batch)
        if self.listener:
            self._listener_losses["server_behind"] += self.listener(batch) or 0


def _hand_on(reports: deque[Iterator[None]], seconds: float) -> None:
    """Hand on parts of the reports, the oldest first, for the given time, but at least one part."""
    until = time.monotonic() + seconds
    while reports:
        if next(reports[0], _DONE) is _DONE:
            reports.popleft()
        if time.monotonic() >= until:
            return


def _finish(parts: Iterable[None]) -> None:
    for _ in parts:
        pass


def _named_topics(pairs: Iterable[tuple[str, str]], interval: Interval) -> Iterator[TopicsEvent]:
    topics: list[NamedTopic] = [{"topic": name, "topic_id": topic_id} for topic_id, name in pairs]
    for start in range(0, len(topics), _TOPICS_PER_EVENT):
        yield {"kind": "topics", "topics": topics[start : start + _TOPICS_PER_EVENT], "ts": interval.until_us}


def _resident_bytes() -> int:
    rss: int = psutil.Process().memory_info().rss
    return rss
