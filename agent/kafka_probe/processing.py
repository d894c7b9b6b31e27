"""The way of samples through the agent: frames, connections, sums and exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from kafka_probe.archive.archive import Archive
from kafka_probe.capture.sample import SampleKind, Samples
from kafka_probe.config import Config
from kafka_probe.connections import offset_facts
from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.exchange import Exchanges
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.offsets import Offsets
from kafka_probe.connections.reassembly import portions
from kafka_probe.connections.refused_produces import RefusedProduces
from kafka_probe.connections.request_events import MEASURED
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.dispatch import Dispatcher
from kafka_probe.events import FramesEvent, RequestEvent, WallClock
from kafka_probe.flow_events import FlowEvents
from kafka_probe.flow_sums import SUMMED
from kafka_probe.flows import Flows
from kafka_probe.load_shedding import LoadShedding
from kafka_probe.memory import DECODED_AT_ONCE, Bounds
from kafka_probe.protocol.facts import MeasureKind
from kafka_probe.setting_types import ArchiveFilter, ExchangeSelection
from kafka_probe.workloads import WorkloadResolver

_MEASURED = (*SUMMED, *offset_facts.MEASURED, MeasureKind.REASON_BYTES)  # without `--requests`


class Portion(NamedTuple):
    """A part of a batch of samples. closes: the CLOSE samples of the whole batch."""

    samples: Samples
    closes: Samples


class Processor:
    """Owns the modules that samples pass, and passes batches of samples through them, portion by portion.

    `request` and `frames` events are queued until `take_requests` and `take_frames`; all else is kept for the report of
    the interval. internal_requests: also requests of kafka-probe's own connections. archives: make `frames` events.
    """

    def __init__(
        self,
        config: Config,
        resolver: WorkloadResolver,
        bounds: Bounds,
        *,
        internal_requests: bool,
        archives: bool,
    ) -> None:
        self._resolver = resolver
        self.names = TopicNames(bounds.topic_names_bytes)
        self._brokers = BrokerFiles(self.names, resolver)
        nat = Conntrack() if config.conntrack else None
        self.tracker = Tracker(resolver, nat, bounds, config.open_interval_s)
        self.produces = RefusedProduces(bounds)
        self.offsets = Offsets(self.names, bounds.offsets_bytes)
        self.flows = Flows(self.tracker.free, bounds)
        self.flow_events = FlowEvents(self.names)
        self.dispatcher = Dispatcher(
            self.tracker, self.names, self._brokers, self.produces, self.offsets, self.flows, self.flow_events
        )
        self.load_shedding = LoadShedding(config.requests, config.cpu_limit)
        self.reader = FrameReader(_MEASURED, bounds)
        self._archive = Archive(config, self.tracker, self.names) if archives else None
        self._frames: list[Iterable[FramesEvent]] = []
        self.exchanges = Exchanges(self.tracker, self.names, bounds.exchanges_bytes, internal=internal_requests)
        self.exchanges.pair_all(pair_all=False)
        self._switch_exchanges()

    def record(self, samples: Samples) -> None:
        """Keep a batch of samples for the archive. They must not change any more. Call it before `consume`."""
        if self._archive:
            self._archive.add(samples)

    def split(self, samples: Samples) -> Iterator[Portion]:
        """Return the portions of a batch of samples of any kind, in the order of the buffer.

        They bound the memory for decoded frames and queued events.
        """
        closes = samples[samples["kind"] == SampleKind.CLOSE]
        return (Portion(portion, closes) for portion in portions(samples, DECODED_AT_ONCE))

    def consume(self, portion: Portion) -> None:
        """Process frames after samples of other kinds but before ends: a connection's frames never follow its end."""
        samples = portion.samples
        is_frame = samples["kind"] == SampleKind.FRAME
        frames = samples if is_frame.all() else samples.take(np.flatnonzero(is_frame))
        others = samples[~is_frame]
        ends = (others["kind"] == SampleKind.CLOSE) | (others["kind"] == SampleKind.GONE)
        for sample in others[~ends]:
            self.tracker.take(sample)
        batch = list(self.reader.read(frames))
        self.dispatcher.add(batch, self.tracker.refusing(portion.closes))
        if self._archive:
            self._frames.append([*self._archive.select(frames, batch)])
        self._brokers.read_on()
        if not self.exchanges.pairs_all:
            self.load_shedding.skip(batch)
        if chosen := self.exchanges.chosen(batch):
            self.exchanges.pair(chosen)
        for sample in others[ends]:
            if sample["kind"] == SampleKind.CLOSE:
                self.tracker.close(sample)
            else:
                self.forget(int(sample["conn"]))

    def take_requests(self) -> Iterator[RequestEvent]:
        """Return the queued `request` events that the settings select, and empty the queue."""
        return self.load_shedding.wanted(self.exchanges.take_events(WallClock.now()))

    def take_frames(self) -> Iterator[FramesEvent]:
        """Return the queued `frames` events, and empty the queue. Those of closes are made when they are reached."""
        frames, self._frames = self._frames, []
        return chain.from_iterable(frames)

    def forget(self, conn: int) -> None:
        """Delete a connection of which no sample can follow, by the kernel's id."""
        connection = self.tracker.gone(conn)
        self.reader.forget(conn)
        self.produces.forget(conn)
        self.offsets.forget(conn)
        if self._archive and not self.tracker.awaits_close(conn):
            self._archive.forget(conn)
        if connection:
            self.exchanges.forget_connection(connection)

    def settle(self, until_ns: int) -> None:
        """Settle closes up to this time: count what brokers refused by them, archive last frames.

        Call it every second.
        """
        settled = self.tracker.settle(until_ns)
        for closed in settled:
            request_bytes, connection = closed.refused_request_bytes, closed.connection
            if request_bytes is None:
                continue
            if request := self.produces.by_close(connection.identity.conn, request_bytes):
                self.flows.refuse(connection, request)
        self.produces.settle(until_ns)
        if self._archive and settled:
            self._frames.append(self._archive.note_closes(settled))

    def finish(self) -> None:
        """Queue events of the requests that changed the cluster or a group and still wait for their responses."""
        self.exchanges.finish()

    def archive_only(self, wanted: ArchiveFilter | None) -> None:
        """Archive the frames of these connections from now on, or none."""
        if self._archive:
            self._archive.choose(wanted)

    def reconfigure(self, requests: ExchangeSelection, cpu_limit: float | None) -> None:
        """Take over other settings of load shedding."""
        self.load_shedding.reconfigure(requests, cpu_limit)
        self._switch_exchanges()

    def adapt(self, cpu_share: float) -> None:
        """Adapt the detail of the next interval to the last interval's share of a core."""
        self.load_shedding.adapt(cpu_share)
        self.exchanges.begin_interval()
        self._switch_exchanges()

    def losses(self) -> dict[str, int]:
        """Return the losses of all these modules since the start, by reason."""
        archive = (self._archive,) if self._archive else ()
        modules = (
            self._resolver,
            self.reader,
            self.tracker,
            self.produces,
            self.offsets,
            self.flows,
            self.flow_events,
            self.load_shedding,
            self.names,
            self.exchanges,
            *archive,
        )
        return {reason: n for module in modules for reason, n in module.losses.items()}

    def counters(self) -> dict[str, int]:
        """Return the counters of all these modules since the start, by name."""
        return {**self.reader.counters, **self._brokers.counters}

    def _switch_exchanges(self) -> None:
        """Pair all requests, or only those that change something: pairing costs more than counting frames."""
        if (pair_all := self.load_shedding.requests) != self.exchanges.pairs_all:
            self.exchanges.pair_all(pair_all=pair_all)
            self.reader.set_measures((*_MEASURED, *MEASURED) if pair_all else _MEASURED)
