"""The agent: puts its modules together, runs the loop until it is stopped, and takes over changed settings."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from kafka_probe.capture.programs import Programs
from kafka_probe.config import RELOADED, Config
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.listing import Listing
from kafka_probe.connections.offsets import GroupLag
from kafka_probe.errors import UsageError
from kafka_probe.loop import Loop
from kafka_probe.memory import DEFAULT, Bounds
from kafka_probe.processing import Processor
from kafka_probe.reporting import Reporter
from kafka_probe.sending import Sender
from kafka_probe.setting_types import ArchiveFilter
from kafka_probe.sinks.sink import Sink, TableSink
from kafka_probe.workloads import WorkloadResolver
from kafka_probe.workloads.kubernetes import PodWatch
from kafka_probe.workloads.pods import Pods

log = logging.getLogger("kafka_probe")


class Agent:
    """One agent on one node. `run` blocks until `stop` is called.

    `turned_s` is the time of the loop's last turn by time.monotonic, None before the first.

    sink: the destination of events; local_sinks: further sinks, which must not block either; archive_sink: the
    destination of frames, None: no frames are archived. internal_requests: send `request` events of kafka-probe's own
    connections as well. Not with a sink that sends requests to Kafka: each event would cause another.
    """

    def __init__(
        self,
        config: Config,
        sink: Sink,
        local_sinks: Sequence[Sink] = (),
        bounds: Bounds = DEFAULT,
        *,
        archive_sink: Sink | None = None,
        internal_requests: bool = False,
    ) -> None:
        self.turned_s: float | None = None
        self._config = config
        self._stopping = False
        self._load: Callable[[], Config] | None = None
        self._choices = deque[tuple[ArchiveFilter | None, Callable[[], None]]]()  # what to follow, the newest last
        pods = Pods()
        resolver = WorkloadResolver(
            pods=pods,
            command_lines=config.cmdline,
            container_names=config.container_names,
            limit_bytes=bounds.workloads_bytes,
        )
        self._sender = sender = Sender(config.node, sink, local_sinks, archive_sink)
        self._pod_watch = PodWatch(config.kubernetes, config.node, pods)
        self._processor = Processor(
            config,
            resolver,
            bounds,
            internal_requests=internal_requests,
            archives=archive_sink is not None,
        )
        self._reporter = Reporter(
            self._processor, self._pod_watch, sender, shows_lags=bool(local_sinks) or isinstance(sink, TableSink)
        )

    def run(self, programs: Programs, listing: Listing | None) -> None:
        """Read samples, and the list of older connections once it is complete, until `stop` is called."""
        self._reporter.backend = programs.backend
        self._pod_watch.start()
        try:
            loop = self._loop(programs, listing)
            loop.start()
            while not self._stopping:
                self.turned_s = time.monotonic()
                loop.turn()
                if load := self._load:
                    self._load = None  # first: a signal during the load asks for another
                    self._reload(load)
                    loop.set_interval(self._config.interval_s)
                while self._choices:
                    wanted, begin = self._choices.popleft()
                    self._processor.archive_only(wanted)
                    begin()
            loop.finish()
        finally:
            self._pod_watch.close()

    def stop(self) -> None:
        """Make `run` return, within about a second. For signal handlers and other threads."""
        self._stopping = True

    def reload(self, load: Callable[[], Config]) -> None:
        """Make the loop load the settings, take over those that can change while the agent runs, and log the others.

        For signal handlers and other threads. load: may raise UsageError, which is logged.
        """
        self._load = load

    def follow(self, wanted: ArchiveFilter | None, begin: Callable[[], None]) -> None:
        """Make the loop archive the frames of these connections, or none, and call `begin` then. For other threads."""
        self._choices.append((wanted, begin))

    def connections(self) -> tuple[Connection, ...]:
        """Return the open connections of this moment. For other threads; the connections themselves keep changing."""
        return self._processor.tracker.snapshot()

    def lags(self) -> Sequence[GroupLag]:
        """Return how far groups were behind at the end of the last interval. For other threads."""
        return self._reporter.lags

    def both_ends_here(self) -> Collection[str]:
        """Return the flow ids of connections of which both ends are on this host. For the loop's thread."""
        return self._processor.tracker.both_ends_here()

    def summary(self) -> dict[str, dict[str, int]]:
        """Return the losses and the counters since the start, by name."""
        return {"losses": self._reporter.losses(), "counters": self._reporter.counters()}

    def _loop(self, programs: Programs, listing: Listing | None) -> Loop:
        interval_s, ring_bytes = self._config.interval_s, self._config.ring_size_bytes
        return Loop(programs, listing, self._processor, self._reporter, interval_s, ring_bytes)

    def _reload(self, load: Callable[[], Config]) -> None:
        try:
            config = load()
        except UsageError as error:
            log.error("Settings not reloaded. %s", " ".join(str(error).splitlines()))
            return
        changed = {name for name in Config.model_fields if getattr(config, name) != getattr(self._config, name)}
        if late := changed - RELOADED:
            log.warning("Restart the agent to apply these changed settings: %s.", ", ".join(sorted(late)))
        now = changed & RELOADED
        self._config = self._config.model_copy(update={name: getattr(config, name) for name in now})
        if now & {"requests", "cpu_limit"}:
            self._processor.reconfigure(config.requests, config.cpu_limit)
        log.info("Settings reloaded: %s.", f"{', '.join(sorted(now))} changed" if now else "nothing changed")
