"""The agent: reads records, hands them through the rooms, and reports once per interval.

A composition root: it owns the loop, the clock and the numbering of events; what things mean is the rooms' affair.
"""

from __future__ import annotations

import logging
import platform
import resource
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy.typing as npt
import psutil

import kafka_probe
from kafka_probe.capture.perfbuf import PerfBuffers
from kafka_probe.capture.programs import LOSSES, Programs
from kafka_probe.capture.record import COUNTERS, SLOT, Kind
from kafka_probe.capture.ringbuf import RingBuffer
from kafka_probe.config import RELOADED, Config
from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.exchange import Exchanges
from kafka_probe.connections.frames import FrameReader
from kafka_probe.connections.listing import Listing
from kafka_probe.connections.settling import SETTLED_NS
from kafka_probe.connections.topics import TopicNames
from kafka_probe.connections.tracker import Connection, Tracker
from kafka_probe.detail import Detail
from kafka_probe.events import SCHEMA_VERSION
from kafka_probe.flows import SUMMED, Flows
from kafka_probe.sinks import Sink
from kafka_probe.workloads import WorkloadResolver
from kafka_probe.workloads.kubernetes import PodWatch
from kafka_probe.workloads.pods import Pods

Event = dict[str, object]
Records = npt.NDArray[Any]
Buffer = RingBuffer | PerfBuffers

# Records wait in the ring this long, so that array operations pay; the kernel wakes the agent earlier if it fills.
_BATCH_S = 1.0
_BATCH_RECORDS = 1 << 14
_EVENTS_AT_ONCE = 1024
_LISTED_AT_ONCE = 4096
# In a report of more events: for the sink to keep up with what it can hold, and for the ring not to fill meanwhile.
_PAUSE_S = 0.05
_TOPICS_PER_EVENT = 1000
# What was lost may have been a close or a reset; so may what the sink lost.
_MAY_HIDE_ENDS = ("ring_full", "program_skipped")

log = logging.getLogger("kafka_probe")


class Agent:
    """One agent on one node. `run` blocks until `stop`; raises StartError if the host cannot capture.

    `listener`, if set, gets the same events as the sink, and must not keep the loop waiting either. `turned_s` is when
    the loop turned last, by time.monotonic; None before it runs. `uncounted_s` gives the CPU time of threads that
    `--cpu-limit` does not count.
    """

    def __init__(self, config: Config, sink: Sink) -> None:
        self.listener: Callable[[Sequence[Event]], object] | None = None
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
        self._resolver = resolver = WorkloadResolver(pods=pods, command_lines=config.cmdline)
        self._names = TopicNames()
        self._brokers = BrokerFiles(self._names, resolver)
        self._tracker = Tracker(resolver, Conntrack() if config.conntrack else None)
        self._flows = Flows(self._tracker, self._names, self._brokers)
        self._detail = Detail(config.requests, config.cpu_limit)
        self._reader = FrameReader(SUMMED)
        self._exchanges: Exchanges | None = None
        self._look_closely()
        self._kernel: dict[str, int] = dict.fromkeys((*COUNTERS, *LOSSES), 0)
        self._kernel_us: int | None = None
        self._ring_full = 0  # when it was last looked for connections whose ends are lost

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
        since = time.monotonic_ns()
        due = time.monotonic() + self._config.interval_s
        if listing is None:
            self._tracker.end_list()
        self._report(since, since, since)  # the agent is here; and a sink that cannot deliver says so at once
        while not self._stopping:
            self.turned_s = time.monotonic()
            programs.buffer.wait(max(0.0, min(_BATCH_S, due - self.turned_s)))
            # Before the buffer is read: what ends after this moment may still be in it.
            now = time.monotonic_ns()
            self._drain(programs.buffer)
            self._tracker.settle(now - SETTLED_NS)
            if listing and self._take_listed(listing, programs.buffer):
                listing, due = None, time.monotonic()  # who is there is told at once
            if time.monotonic() >= due:
                self._look(programs)
                self._forget_lost(programs)
                self._report(since, now, now - SETTLED_NS, programs.buffer)
                since = now
                due += self._config.interval_s
            if self._reloaded:
                self._take_over(self._reloaded)
                due = min(due, time.monotonic() + self._config.interval_s)
        programs.detach()
        now = time.monotonic_ns()
        self._look(programs)
        while not self._drain(programs.buffer):
            pass
        self._report(since, now, now, programs.buffer)

    def _look(self, programs: Programs) -> None:
        """What the kernel counted until now."""
        self._kernel = programs.counters()
        run_time_ns = programs.run_time_ns()
        self._kernel_us = None if run_time_ns is None else run_time_ns // 1000

    def _forget_lost(self, programs: Programs) -> None:
        """Forget the connections that the kernel does not follow any more, if there was no room to say so."""
        ring_full = self._kernel["ring_full"]
        if ring_full == self._ring_full:
            return
        lost = self._tracker.known() - programs.followed()  # in this order: what is opened from now on stays
        orphans = self._tracker.orphans()
        if self._drain(programs.buffer):  # else what was said of their ends may still wait
            for conn in lost:
                self._forget(conn)
            self._tracker.forget_listed(orphans)
            self._ring_full = ring_full

    def _take_listed(self, listing: Listing, buffer: Buffer) -> bool:
        """Whether the list of older connections was there: taken in parts, for the ring not to fill meanwhile."""
        while (listed := listing.take(_LISTED_AT_ONCE)) is not None:
            self._tracker.add_listed(listed, time.monotonic_ns())
            if len(listed) < _LISTED_AT_ONCE:
                self._tracker.end_list()
                return True
            self._drain(buffer)
        return False

    def _drain(self, buffer: Buffer) -> bool:
        """What waits now, at most what the buffer holds: it may fill as fast as it is read. Whether that was all.

        What arrives meanwhile is for the next time: else batches would shrink to few records.
        """
        for _ in range(-(-self._config.ring_size_bytes // (SLOT.itemsize * _BATCH_RECORDS))):
            records = buffer.take(_BATCH_RECORDS)
            if len(records):
                self._consume(records)
            if len(records) < _BATCH_RECORDS:
                return True
        return False

    def _consume(self, records: Records) -> None:
        """Records in their order: who, then what, then the end. A connection's frames never follow its end."""
        kinds = records["kind"]
        ends = (kinds == Kind.CLOSE) | (kinds == Kind.GONE)
        others = (kinds != Kind.FRAME) & ~ends
        for record in records[others]:
            self._tracker.take(record)
        batch = list(self._reader.read(records[kinds == Kind.FRAME] if (others | ends).any() else records))
        self._flows.add(batch)
        self._brokers.read_on()
        if self._exchanges:
            self._send_stamped(self._detail.wanted(self._exchanges.pair(batch)))
        else:
            self._detail.skip(batch)
        for record, kind in zip(records[ends], kinds[ends].tolist(), strict=True):
            if kind == Kind.CLOSE:
                self._tracker.close(record)
            else:
                self._forget(int(record["conn"]))

    def _forget(self, conn: int) -> None:
        connection = self._tracker.gone(conn)
        self._reader.forget(conn)
        if connection and self._exchanges:
            self._send_stamped(self._detail.wanted(self._exchanges.end(connection)))

    def _look_closely(self) -> None:
        """Build exchanges, which costs more than to count frames, only while they become events."""
        if self._detail.requests and not self._exchanges:
            self._exchanges = Exchanges(self._tracker, self._names)
            self._reader.ask()
        elif self._exchanges and not self._detail.requests:
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
            self._detail.reconfigure(config.requests, config.cpu_limit)
            self._look_closely()
        log.info("Read the settings again: %s.", f"{', '.join(sorted(now))} changed" if now else "nothing changed")

    def _report(self, since_ns: int, now_ns: int, settled_ns: int, buffer: Buffer | None = None) -> None:
        """The interval's events; the agent's own comes last, so that `complete_until` is true when it arrives.

        Times are of CLOCK_MONOTONIC, so that a step of the wall clock moves both ends of an interval. settled_ns: up to
        then closes are settled, see settling.py. buffer: is drained in the pauses of a long report.
        """
        offset_ns = _wall_offset_ns()
        interval: Event = {"since": (since_ns + offset_ns) // 1000}
        flows = self._flows.report(with_topics=self._detail.topics)
        self._resolver.name_pods()
        self._tracker.settle(settled_ns)
        self._send_stamped(self._tracker.report(), buffer)
        self._send(_named_topics(self._names.report()), now_ns + offset_ns)
        self._send(({**flow, **interval} for flow in flows), now_ns + offset_ns, buffer)
        self._detail.spend(self._cpu_share())
        self._look_closely()
        self._note_hidden((now_ns + offset_ns) // 1000)
        told: Event = {
            "complete_since": self._complete_since,
            "complete_until": (settled_ns + offset_ns) // 1000,
        }
        self._send([{"kind": "agent", **interval, **told, **self._state()}], now_ns + offset_ns)

    def _note_hidden(self, now_us: int) -> None:
        hidden = sum(self._kernel[name] for name in _MAY_HIDE_ENDS) + sum(self._sink.losses().values())
        if hidden > self._hidden:
            self._hidden, self._complete_since = hidden, now_us

    def _state(self) -> Event:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "connections": len(self._tracker),
            "open": self._tracker.open_now(),
            "losses": self._losses(),
            "counters": self._counters(),
            "shed": self._detail.shed,
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
        rooms = (self._pod_watch, self._reader, self._tracker, self._flows, self._detail)
        return {**kernel, **{reason: n for room in rooms for reason, n in room.losses.items()}, **self._sink.losses()}

    def _counters(self) -> dict[str, int]:
        kernel = {name: self._kernel[name] for name in COUNTERS}
        rooms = {**self._reader.counters, **self._brokers.counters}
        return {**kernel, **rooms, "events": self._sent, **self._sink.counters()}

    def _send_stamped(self, stamped: Iterable[tuple[int, Event]], buffer: Buffer | None = None) -> None:
        """Events with the kernel's monotonic time of their own, and of a close that of its beginning."""
        offset_ns = _wall_offset_ns()

        def on_the_wall(event: Event, **times_ns: object) -> Event:
            return event | {name: (ns + offset_ns) // 1000 for name, ns in times_ns.items() if isinstance(ns, int)}

        self._send((on_the_wall(e, ts=ts_ns, closing_ts=e.get("closing_ts")) for ts_ns, e in stamped), 0, buffer)

    def _send(self, events: Iterable[Event], wall_ns: int, buffer: Buffer | None = None) -> None:
        batch: list[Event] = []
        for event in events:
            event.setdefault("ts", wall_ns // 1000)
            numbered = {"v": SCHEMA_VERSION, "node": self._config.node, "agent_id": self._id, "seq": self._sent}
            batch.append({**numbered, **event})
            self._sent += 1
            if len(batch) == _EVENTS_AT_ONCE:
                self._hand_over(batch)
                batch = []
                if buffer:
                    self.turned_s = time.monotonic()
                    buffer.wait(_PAUSE_S)
                    self._drain(buffer)
        if batch:
            self._hand_over(batch)

    def _hand_over(self, batch: list[Event]) -> None:
        self._sink.send(batch)
        if self.listener:
            self.listener(batch)


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
