"""Passes the facts of frames to the modules that learn from them: the tracker, topic names, and brokers' files."""

from __future__ import annotations

from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.protocol.facts import Facts


class Learner:
    """Learns once per interval from each shape of frames on a connection: frames of one shape have the same facts."""

    def __init__(self, tracker: Tracker, names: TopicNames, brokers: BrokerFiles) -> None:
        self._tracker = tracker
        self._names = names
        self._brokers = brokers

    def learn(self, connection: Connection, facts: Facts) -> None:
        """Take the facts of the first frame of a shape on a connection in an interval."""
        self._tracker.learn(connection, facts)
        self._names.learn(facts, connection.sharing_peer, connection.cluster_id)
        self._brokers.see(connection, facts)
