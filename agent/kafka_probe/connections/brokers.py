"""Topic names from the files of the brokers on this host, known before any metadata response passes.

The agent reads the log directories of a process that accepts Kafka connections when it first sees the process, and
again when a frame of the process contains a topic id without a known name. It reads in small steps between batches, in
which the brokers take turns, so that brokers with a hundred thousand partitions delay no frame. After each read that
finds no new name, the pause before the next read doubles.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.protocol.facts import Facts
from kafka_probe.workloads import StoredTopic, WorkloadResolver

_PROCESSES = 64
STEP_S = 0.05
SHARE = 20
"""Pause after a step, as a multiple of the step's duration: steps take at most 5 % of a CPU."""
PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0

log = logging.getLogger("kafka_probe")


@dataclass(slots=True)
class _Broker:
    """A broker process.

    topics: iterator over its topics while its files are being read. due_s: when they may be read again, s of the clock.
    found_new: whether this read has found a new name.
    """

    topics: Iterator[StoredTopic | None] | None
    due_s: float = 0.0
    pause_s: float = PAUSE_S
    found_new: bool = False


class BrokerFiles:
    """Adds the topic names in the brokers' files to `names`."""

    def __init__(
        self, names: TopicNames, resolver: WorkloadResolver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = names
        self._resolver = resolver
        self._clock = clock
        self._brokers: dict[tuple[int, int], _Broker] = {}
        self._next_step_s = 0.0
        self._refused = 0

    @property
    def counters(self) -> dict[str, int]:
        """Return counts since the start: topic ids that got a name, and processes with unreadable files."""
        return {"topics_named": self._names.learned, "broker_files_unreadable": self._refused}

    def see(self, connection: Connection, facts: Facts) -> None:
        """Start to read the files of the connection's process if it is new or `facts` contains an unnamed topic id.

        Called at the first frame of a shape on the connection in an interval.
        """
        if not connection.identity.server_side:
            return
        process = connection.workload.process
        if process is None:
            return  # the sample with its owner was lost because the ring was full
        broker = self._brokers.get(process)
        if broker is None:
            if len(self._brokers) == _PROCESSES:
                del self._brokers[next(iter(self._brokers))]
            self._brokers[process] = _Broker(self._resolver.stored_topics(*process))
        elif broker.topics is None and self._names.lacks(facts) and self._clock() >= broker.due_s:
            broker.topics = self._resolver.stored_topics(*process)

    def read_on(self) -> None:
        """Read the files of one broker for STEP_S, unless the pause after the last step goes on."""
        began = self._clock()
        if began < self._next_step_s:
            return
        for process, broker in self._brokers.items():
            if broker.topics is not None:
                self._step(process[0], broker, broker.topics, began + STEP_S)
                self._brokers[process] = self._brokers.pop(process)  # the others are next
                break
        now = self._clock()
        self._next_step_s = now + SHARE * (now - began)

    def _step(self, pid: int, broker: _Broker, topics: Iterator[StoredTopic | None], until_s: float) -> None:
        try:
            for topic in topics:
                if topic:
                    broker.found_new |= self._names.add(
                        topic.topic_id, topic.name, f"process {pid}", stored=True, gone=topic.gone
                    )
                if self._clock() > until_s:
                    return
        except PermissionError:
            self._refuse(pid)
            broker.pause_s = math.inf
        except OSError:
            pass  # the process ended meanwhile
        if broker.found_new:
            broker.pause_s = PAUSE_S
        broker.due_s = self._clock() + broker.pause_s
        broker.pause_s = min(2 * broker.pause_s, LONGEST_PAUSE_S)
        broker.topics, broker.found_new = None, False

    def _refuse(self, pid: int) -> None:
        self._refused += 1
        if self._refused == 1:
            log.warning(
                "The files of process %d may not be read: its topic ids have no names until a message contains them. "
                "Run the agent as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.",
                pid,
            )
