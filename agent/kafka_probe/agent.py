"""The agent: reads samples, hands them from module to module, and reports once per interval.

A composition root: it owns the loop, the clock and the numbering of events; what things mean is decided in the modules.
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
from typing import Any

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
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.exchange import Exchanges
from kafka_probe.connections.frames import FrameReader
from kafka_probe.connections.listing import Listing
from kafka_probe.connections.pending_closes import SETTLED_NS
from kafka_probe.connections.reassembly import portions
from kafka_probe.connections.topics import TopicNames
from kafka_probe.connections.tracker import Connection, Tracker
from kafka_probe.events import SCHEMA_VERSION
from kafka_probe.flows import SUMMED, Flows
from kafka_probe.load_shedding import LoadShedding
from kafka_probe.memory import DECODED_AT_ONCE, DEFAULT, IN_HAND_BYTES, Bounds, event_bytes
from kafka_probe.sinks import Sink
from kafka_probe.sinks.outbox import encode
from kafka_probe.workloads import WorkloadResolver
from kafka_probe.workloads.kubernetes import PodWatch
from kafka_probe.workloads.pods import Pods

Event = dict[str, object]
Samples = npt.NDArray[Any]
Buffer = RingBuffer | PerfBuffers

# Samples wait in the ring this long, so that array operations pay; the kernel wakes the agent earlier if it fills.
_BATCH_S = 1.0
_BATCH_SAMPLES = 1 << 12
_LISTED_AT_ONCE = 4096
# Between the parts of a report, for the sink to keep up.
_PAUSE_S = 0.05
_TURN_S = 0.25  # to read at a time while a report is handed on, which gets as much time
_REPORTS = 2  # that are handed on at the same time, at most
_TOPICS_PER_EVENT = 1000
# What was lost may have been a close or a reset; so may what the sink lost.
_MAY_HIDE_ENDS = ("ring_full", "peer_limited", "program_skipped")
_ENDS_LIMITED = ("close_limit", "reset_limit")
_DONE = object()

log = logging.getLogger("kafka_probe")


@dataclass(frozen=True, slots=True)
class _Suspects:
    """What the kernel did not follow any more at `since_ns`; it is lost unless the buffer held its end then."""

    since_ns: int
    conns: set[int]
    streams: set[int]  # with unfinished frames
    followed: set[int]
    orphans: list[tuple[int, str, str]]


class Agent:
    """One agent on one node. `run` blocks until `stop`; raises StartError if the host cannot capture.

    `listener`, if set, gets the same events as the sink, and must not keep the loop waiting either; it returns how
    many it had no place for. `turned_s` is when
    the loop turned last, by time.monotonic; None before it runs. `uncounted_s` gives the CPU time of threads that
    `--cpu-limit` does not count.
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
        self._flows = Flows(self._tracker, self._names, self._brokers, bounds)
        self._load_shedding = LoadShedding(config.requests, config.cpu_limit)
        self._reader = FrameReader(SUMMED, bounds)
        self._request_losses = Counter(dict.fromkeys(exchange.LOSSES, 0))
        self._exchanges: Exchanges | None = None
        self._look_closely()
        self._kernel: dict[str, int] = dict.fromkeys((*COUNTERS, *LOSSES), 0)
        self._kernel_us: int | None = None
        # Samples that may be unread of those written before _marked_ns; all that were written before _read_ns are read.
        self._unread, self._marked_ns, self._read_ns = 0, 0, time.monotonic_ns()
        self._looked_at = 0  # losses when it was last looked for connections whose ends are lost
        self._suspects: _Suspects | None = None

    def run(self, programs: Programs, listing: Listing | None) -> None:
        """Read what is attached, and the list of older connections when it is there, until it is told to stop."""
        self._backend = programs.backend
        self._pod_watch.start()
        try:
            self._loop(programs, listing)
        finally:
            self._pod_watch.close()

    def stop(self) -> None:
        """End `run` within a batch's time. For signal handlers and other threads."""
        self._stopping = True

    def reconfigure(self, config: Config) -> None:
        """Go on with other settings, as far as they can change while it runs; of the others it says so."""
        self._reloaded = config

    def connections(self) -> tuple[Connection, ...]:
        """The open connections. For other threads: they see a moment, and its connections as they go on."""
        return self._tracker.snapshot()

    def summary(self) -> dict[str, dict[str, int]]:
        """What was lost and what was done since the start, by name."""
        return {"losses": self._losses(), "counters": self._counters()}

    def _loop(self, programs: Programs, listing: Listing | None) -> None:
        since = self._read_ns = time.monotonic_ns()
        due = time.monotonic() + self._config.interval_s
        reports: deque[Iterator[None]] = deque()
        if listing is None:
            self._tracker.end_list()
        _finish(self._report(since, since, since))  # the agent is here; and a sink that cannot deliver says so at once
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
                listing, due = None, time.monotonic()  # who is there is told at once
            _hand_on(reports, took_s)
            if time.monotonic() >= due:
                if len(reports) == _REPORTS:
                    _finish(reports.popleft())
                self._look(programs)
                self._suspect_lost(programs)
                now = time.monotonic_ns()
                reports.append(self._report(since, now, self._read_ns - SETTLED_NS))
                since = now
                # After a stall no burst of short intervals makes up for it.
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
        """What the kernel counted until now."""
        self._kernel = programs.counters()
        run_time_ns = programs.run_time_ns()
        self._kernel_us = None if run_time_ns is None else run_time_ns // 1000

    def _suspect_lost(self, programs: Programs) -> None:
        """If samples of ends were lost, note what is kept of connections that the kernel does not follow any more."""
        lost_samples = sum(self._kernel[name] for name in _MAY_HIDE_ENDS)
        if self._suspects or (lost_samples == self._looked_at and not self._tracker.full):
            return
        self._looked_at = lost_samples
        # In this order: what is opened from now on stays.
        known, streams, orphans = self._tracker.known(), self._reader.unfinished(), self._tracker.orphans()
        followed = programs.followed()
        self._suspects = _Suspects(time.monotonic_ns(), known - followed, streams, followed, orphans)

    def _forget_suspects(self) -> None:
        """Forget them once all that the buffer held then has been read: ends that were not lost are known by now."""
        suspects = self._suspects
        if suspects is None or self._read_ns < suspects.since_ns:
            return
        self._suspects = None
        for conn in suspects.conns:
            self._forget(conn)
        self._reader.keep(suspects.streams, suspects.followed)
        self._tracker.forget_listed(suspects.orphans)

    def _take_listed(self, listing: Listing, buffer: Buffer) -> bool:
        """Whether the list of older connections was there: taken in parts, for the ring not to fill meanwhile."""
        while (listed := listing.take(_LISTED_AT_ONCE)) is not None:
            self._tracker.add_listed(listed, time.monotonic_ns())
            if len(listed) < _LISTED_AT_ONCE:
                self._tracker.end_list()
                return True
            self._drain(buffer)
        return False

    def _drain(self, buffer: Buffer, due: float = math.inf) -> None:
        """Read what the buffer holds, or what was left of that the last time, until `due` by time.monotonic.

        What arrives meanwhile is for the next time: else batches would shrink to few samples. It may fill as fast as it
        is read.
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
        """Samples in their order: who, then what, then the end. A connection's frames never follow its end."""
        kinds = samples["kind"]
        ends = (kinds == SampleKind.CLOSE) | (kinds == SampleKind.GONE)
        others = (kinds != SampleKind.FRAME) & ~ends
        for sample in samples[others]:
            self._tracker.take(sample)
        batch = list(self._reader.read(samples[kinds == SampleKind.FRAME] if (others | ends).any() else samples))
        self._flows.add(batch)
        self._brokers.read_on()
        if self._exchanges:
            self._send_stamped(self._load_shedding.wanted(self._exchanges.pair(batch)))
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
            self._send_stamped(self._load_shedding.wanted(self._exchanges.end(connection)))

    def _look_closely(self) -> None:
        """Build exchanges, which costs more than to count frames, only while they become events."""
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
            log.warning("Changed settings that take effect at the next start: %s.", ", ".join(sorted(late)))
        now = changed & RELOADED
        self._config = self._config.model_copy(update={name: getattr(config, name) for name in now})
        if now & {"requests", "cpu_limit"}:
            self._load_shedding.reconfigure(config.requests, config.cpu_limit)
            self._look_closely()
        log.info("Read the settings again: %s.", f"{', '.join(sorted(now))} changed" if now else "nothing changed")

    def _report(self, since_ns: int, now_ns: int, settled_ns: int) -> Iterator[None]:
        """End the interval and return an iterator that hands its events on, in parts.

        The agent's own comes last, so that `complete_until` is true when it arrives. Times are of CLOCK_MONOTONIC, so
        that a step of the wall clock moves both ends of an interval. settled_ns: up to then closes are settled, see
        pending_closes.py.
        """
        offset_ns = _wall_offset_ns()
        interval: Event = {"since": (since_ns + offset_ns) // 1000}
        flows = self._flows.report(with_topics=self._load_shedding.topics)
        self._resolver.name_pods()
        self._tracker.settle(settled_ns)
        self._load_shedding.spend(self._cpu_share())
        self._look_closely()
        ends, topics = _stamped(self._tracker.report()), list(_named_topics(self._names.report()))
        other = self._tracker.other()

        def last() -> Iterator[Event]:
            self._note_hidden((now_ns + offset_ns) // 1000)
            complete: Event = {
                "complete_since": self._complete_since,
                "complete_until": (settled_ns + offset_ns) // 1000,
            }
            yield {"kind": "agent", **interval, **complete, "other": other, **self._state()}

        events = chain(ends, topics, ({**flow, **interval} for flow in flows), last())
        return self._parts(events, now_ns + offset_ns)

    def _note_hidden(self, now_us: int) -> None:
        hidden = sum(self._kernel[name] for name in _MAY_HIDE_ENDS) + sum(self._sink.losses().values())
        hidden += sum(self._tracker.losses[name] for name in _ENDS_LIMITED)
        if hidden > self._hidden:
            self._hidden, self._complete_since = hidden, now_us

    def _state(self) -> Event:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
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
        }

    def _cpu_share(self) -> float:
        """CPU that capture and delivery took since the last time, of one core: all threads but the HTTP server's."""
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

    def _send_stamped(self, stamped: Iterable[tuple[int, Event]]) -> None:
        _finish(self._parts(_stamped(stamped), 0))

    def _parts(self, events: Iterable[Event], wall_ns: int) -> Iterator[None]:
        """Hand events on, with the time where they have none of their own; stop after each part of them."""
        batch: list[Event] = []
        in_hand = 0
        for event in events:
            event.setdefault("ts", wall_ns // 1000)
            size = event_bytes(event) + len(encode(event))  # names may become six times as long as JSON
            if batch and in_hand + size > IN_HAND_BYTES:
                self._hand_over(batch)
                batch, in_hand = [], 0
                yield
            batch.append(event)
            in_hand += size
        if batch:
            self._hand_over(batch)

    def _hand_over(self, events: list[Event]) -> None:
        """Number events, and give them to the sink and the listener."""
        common = {"v": SCHEMA_VERSION, "node": self._config.node, "agent_id": self._id}
        batch = [{**common, "seq": seq, **event} for seq, event in enumerate(events, self._sent)]
        self._sent += len(batch)
        self._sink.send(batch)
        if self.listener:
            self._listener_losses["server_behind"] += self.listener(batch) or 0


def _hand_on(reports: deque[Iterator[None]], seconds: float) -> None:
    """Hand on parts of the oldest reports for so long, but one at least."""
    until = time.monotonic() + seconds
    while reports:
        if next(reports[0], _DONE) is _DONE:
            reports.popleft()
        if time.monotonic() >= until:
            return


def _finish(parts: Iterable[None]) -> None:
    for _ in parts:
        pass


def _stamped(stamped: Iterable[tuple[int, Event]]) -> Iterator[Event]:
    """Events with the kernel's monotonic time of their own, and of a close that of its beginning."""
    offset_ns = _wall_offset_ns()
    for ts_ns, event in stamped:
        times_ns = {"ts": ts_ns, "closing_ts": event.get("closing_ts")}
        yield event | {name: (ns + offset_ns) // 1000 for name, ns in times_ns.items() if isinstance(ns, int)}


def _named_topics(pairs: Iterable[tuple[str, str]]) -> Iterator[Event]:
    topics = [{"topic": name, "topic_id": topic_id} for topic_id, name in pairs]
    for start in range(0, len(topics), _TOPICS_PER_EVENT):
        yield {"kind": "topics", "topics": topics[start : start + _TOPICS_PER_EVENT]}


def _wall_offset_ns() -> int:
    """What CLOCK_MONOTONIC lacks of the time since epoch, now; it stands still while the host is suspended."""
    # The largest: other processes may run between two readings.
    return max(time.time_ns() - time.monotonic_ns() for _ in range(3))


def _resident_bytes() -> int:
    rss: int = psutil.Process().memory_info().rss
    return rss
