"""Builds tables with little memory, and measures what Python allocates for them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.fetch_sessions import FetchSession
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.offsets import Offsets
from kafka_probe.connections.refused_produces import RefusedProduces
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.dispatch import Dispatcher
from kafka_probe.flow_events import FlowEvents
from kafka_probe.flow_sums import SUMMED
from kafka_probe.flows import Flows
from kafka_probe.memory import DEFAULT, MIB, Bounds
from kafka_probe.peer_limits import Shares
from kafka_probe.workloads import WorkloadResolver
from tests.builders.event_schema import assert_body_valid
from tests.builders.events import INTERVAL, reported
from tests.builders.samples import Samples, opened, stream

RESOLVER = WorkloadResolver()
SOME = replace(DEFAULT, connections=300)
FEW = replace(DEFAULT, connections=3, closes=2, counts_bytes=87_500, open_counts=2)


def grown_by(make: Callable[[], object], times: int) -> float:
    """Return the bytes that Python allocates per object while `times` objects are kept."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        assert made, "nothing was kept"
        return tracemalloc.get_traced_memory()[0] / times
    finally:
        tracemalloc.stop()


class Watched:
    """Connections, and the flows of their frames, by default with a budget for few counts."""

    def __init__(self, connections: int, bounds: Bounds = SOME, flow_bounds: Bounds = FEW) -> None:
        self.tracker = Tracker(RESOLVER, bounds=bounds)
        self.reader = FrameReader(SUMMED)
        names = TopicNames()
        self.produces = RefusedProduces()
        self.flows = Flows(self.tracker.free, flow_bounds)
        self.flow_events = FlowEvents(names)
        brokers = BrokerFiles(names, RESOLVER)
        self.offsets = Offsets(names)
        self.dispatcher = Dispatcher(
            self.tracker, names, brokers, self.produces, self.offsets, self.flows, self.flow_events
        )
        for conn in range(1, 1 + connections):
            self.tracker.take(opened(conn)[0])

    def see(self, *records: Samples) -> None:
        self.dispatcher.add(self.reader.read(stream(*records)), {})

    def report(self) -> list[Any]:
        events = [event for event in self.dispatcher.report(INTERVAL) if event]
        for event in events:
            assert_body_valid(event)
        return events

    def flow(self) -> Any:
        """Return the only event of a report."""
        (event,) = self.report()
        return event

    def close(self, conn: int) -> None:
        self.tracker.gone(conn)
        self.reader.forget(conn)
        self.offsets.forget(conn)

    def sessions(self, conn: int) -> tuple[FetchSession, ...]:
        connection = self.tracker.get(conn)
        assert connection
        return connection.sessions


def with_budget(connections: int, learned_bytes: int = 100 * MIB) -> Watched:
    """Return connections from one address each, with a bound on what is learned and one on all counts."""
    watched = Watched(0, replace(DEFAULT, learned_bytes=learned_bytes))
    watched.flows._budget_bytes = 100 * MIB
    watched.flows._shares = Shares(100 * MIB)
    for conn in range(1, 1 + connections):
        watched.tracker.take(opened(conn, server_side=True, peer=(f"10.0.1.{conn}", 1), local=("10.0.0.7", 9092))[0])
    return watched


def let_all_go(watched: Watched, connections: int) -> None:
    for conn in range(1, 1 + connections):
        watched.tracker.gone(conn)
        watched.offsets.forget(conn)
    reported(watched.tracker)
