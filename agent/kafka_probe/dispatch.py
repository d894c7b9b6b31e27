"""Passes frames to the modules that need them: counts, facts of connections, offsets, and fetch sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.fetch_sessions import FETCHES, NamedFrames, Naming
from kafka_probe.connections.frame_reader import Frames
from kafka_probe.connections.frames_by_connection import FramesByConnection, Key
from kafka_probe.connections.offsets import Offsets
from kafka_probe.connections.refused_produces import RefusedProduces
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import FlowEvent, Interval
from kafka_probe.flow_events import FlowEvents, SessionRequests
from kafka_probe.flows import Flows
from kafka_probe.protocol.facts import Facts
from kafka_probe.time_limit import NO_LIMIT, TimeLimit


class Dispatcher:
    """Sorts frames by connection and passes them on, and passes finished `flow` events to their connections."""

    def __init__(
        self,
        tracker: Tracker,
        names: TopicNames,
        brokers: BrokerFiles,
        produces: RefusedProduces,
        offsets: Offsets,
        flows: Flows,
        flow_events: FlowEvents,
    ) -> None:
        self._tracker = tracker
        self._names = names
        self._brokers = brokers
        self._produces = produces
        self._offsets = offsets
        self._flows = flows
        self._flow_events = flow_events
        self._namings: dict[Key, tuple[Connection, Naming | None]] = {}  # of the counted shapes of Fetch

    def add(self, batch: Iterable[Frames], closing: Mapping[int, int]) -> None:
        """Pass on the frames of a batch. Their order affects only what connections and fetch sessions learn.

        closing: see RefusedProduces.see.
        """
        grouped = [FramesByConnection.of(frames, self._tracker.of_frames) for frames in sorted(batch, key=_first_seen)]
        for of_shape in grouped:
            for key, connection, _, _ in of_shape.runs:
                if connection and not self._flows.counts(key):
                    self._learn(connection, of_shape.frames.shape.facts)
        self._produces.see(grouped, closing)
        for of_shape in grouped:
            self._flows.add(of_shape, self._produces.by_responses(of_shape.frames))
        self._offsets.see(grouped, self._flows.counts)
        self._follow_sessions(of_shape for of_shape in grouped if of_shape.frames.shape.facts.api_key in FETCHES)

    def report(
        self, interval: Interval, *, with_topics: bool = True, limit: TimeLimit = NO_LIMIT
    ) -> Iterator[FlowEvent | None]:
        """Return the `flow` events of the interval, and begin a new interval. See FlowEvents.report."""
        namings, self._namings = self._namings, {}
        connections = {conn: connection for (conn, _), (connection, _) in namings.items()}
        asked = {
            (conn, api_key, version): topics
            for conn, connection in connections.items()
            for api_key, version, topics in self._tracker.take_fetches(connection)
        }
        sessions = SessionRequests(asked, {key for key, (_, naming) in namings.items() if naming and naming.by_session})
        counts = self._flows.finish(self._tracker.free)
        return self._added(self._flow_events.report(counts, sessions, interval, limit, with_topics=with_topics))

    def _added(self, flows: Iterable[tuple[Connection | None, FlowEvent] | None]) -> Iterator[FlowEvent | None]:
        for flow in flows:
            connection, event = flow or (None, None)
            if connection and event:
                self._tracker.add_flow(connection, event)
            yield event

    def _learn(self, connection: Connection, facts: Facts) -> None:
        """Learn from the first frame of a shape on a connection in an interval: others have the same facts."""
        self._tracker.learn(connection, facts)
        self._names.learn(facts, connection.sharing_peer, connection.cluster_id)
        self._brokers.see(connection, facts)

    def _follow_sessions(self, batch: Iterable[FramesByConnection]) -> None:
        """Apply Fetch frames to the sessions of their connections, in the order of the frames."""
        fetches: dict[tuple[int, int], tuple[Connection, list[NamedFrames]]] = {}
        for grouped in batch:
            facts = grouped.frames.shape.facts
            for key, connection, start, end in grouped.runs:
                if connection is None:
                    continue
                if not self._flows.counts(key):
                    if not facts.response:
                        self._tracker.forget_sessions(connection)  # the sessions do not see this request
                    continue
                if key not in self._namings:
                    self._namings[key] = connection, self._tracker.fetch(connection, facts)
                _, naming = self._namings[key]
                if naming:
                    _, named = fetches.setdefault((key[0], facts.api_key), (connection, []))
                    named.append((naming, grouped.frames, grouped.order[start:end]))
        for (_, api_key), (connection, named) in fetches.items():
            self._tracker.see_fetches(connection, api_key, named)


def _first_seen(frames: Frames) -> int:
    return int(frames.batch["ts_ns"][frames.index[0]])
