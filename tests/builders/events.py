"""Builds events of the agent as server, `top` and `trace` read them, and a server's view of an imaginary agent."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.offsets import GroupLag
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import Event, Interval, WallClock, WorkloadFacts, bucket_of
from kafka_probe.server.traffic import Traffic
from kafka_probe.server.view import View

SECOND_US = 1_000_000
NOW_US = 1_700_000_000 * SECOND_US
SINCE_BOOT = WallClock(0)
"""The clock of a host that booted at the epoch."""
INTERVAL = Interval(NOW_US - 5 * SECOND_US, NOW_US)


def event(**fields: object) -> Any:
    """Return an event for a sink that reads no field but its kind."""
    return {"kind": "agent", **fields}


def numbered(seq: int, padding: int = 100, agent: str = "agent-1") -> Any:
    """Return an event that differs from others by its number, for a sink that reads no fact of it."""
    return {"kind": "flow", "agent_id": agent, "seq": seq, "text": "x" * padding}


def incompressible(seq: int, random_bytes: int = 100) -> Any:
    """Return a numbered event whose text no codec makes smaller than its random bytes."""
    return {**numbered(seq), "text": os.urandom(random_bytes).hex()}


def workload(comm: str | None = "java", **fields: object) -> Any:
    return {**dict.fromkeys(WorkloadFacts.__annotations__), "pid": 7, "start_time": 1, "comm": comm, **fields}


def topic(name: str | None = "orders", **fields: object) -> Any:
    counts = {"requests": 10, "partitions": 1, "records": 50, "batches": 10, "bytes": 3000, "uncounted_bytes": 0}
    return {"topic": name, "topic_id": None, **counts, "codecs": {}, "errors": {}, **fields}


def client(id_: str | None = "billing", **fields: object) -> Any:
    return {"id": id_, "software_name": "librdkafka", "software_version": "2.5", **fields}


def flow(ts: int = NOW_US, **fields: object) -> Any:
    return {
        "kind": "flow",
        "conn_id": "0000000000000001",
        "flow_id": f"{2:016x}",
        "since": ts - 5 * SECOND_US,
        "ts": ts,
        "side": "client",
        "local": "10.0.0.7:40001",
        "peer": "10.0.0.1:9092",
        "workload": workload(),
        "client": client(),
        "api": "Produce",
        "api_version": 9,
        "internal": False,
        "requests": 10,
        "responses": 9,
        "request_bytes": 4000,
        "response_bytes": 900,
        "throttle_ms": 0,
        "errors": {},
        "latency": {},
        "latency_empty": {},
        "group": None,
        "replica_id": None,
        "topics": [],
        **fields,
    }


def broker_flow(**fields: object) -> Any:
    """Return the flow of a broker in a container, whose requests were of one topic and took 2 ms each."""
    counts = {"response_bytes": 1000, "latency": {str(bucket_of(2000)): 10}, "topics": [topic()]}
    return flow(**{"side": "server", "workload": workload(container_id="c0ffee42" * 8), **counts, **fields})


def request(**fields: object) -> Any:
    return {
        "kind": "request",
        "ts": 1_790_000_000_123_456,
        "side": "server",
        "workload": workload(pid=4242),
        "client": client(),
        "api": "Produce",
        "api_version": 12,
        "correlation_id": 9,
        "request_bytes": 1234,
        "response_bytes": 56,
        "latency_us": 1500,
        "status": "complete",
        "errors": {},
        "error_names": {},
        "topics": [partition(3, offset=70, records=5)],
        "local": "10.0.0.1:9092",
        "peer": "10.57.2.2:39282",
        "conn_id": f"{1:016x}",
        "flow_id": f"{2:016x}",
        **fields,
    }


def partition(index: int | None = None, name: str | None = "orders", **fields: object) -> Any:
    """Return an entry of a request's topics."""
    return {"topic": name, "topic_id": None, "partition": index, "error": 0, **fields}


def close(ts: int = NOW_US, **fields: object) -> Any:
    ends = {"how": "fin", "closed_by": "local", "opaque": None}
    return {"kind": "close", "ts": ts, "side": "client", "workload": workload(), "client": client(), **ends, **fields}


def opened(found: str = "start", **fields: object) -> Any:
    return {"kind": "open", "ts": NOW_US, "side": "client", "workload": workload(), "found": found, **fields}


def reset(**fields: object) -> Any:
    return {"kind": "reset", "ts": NOW_US, **fields}


def agent(ts: int = NOW_US, **fields: object) -> Any:
    return {
        "kind": "agent",
        "since": ts - 5 * SECOND_US,
        "ts": ts,
        "connections": 0,
        "open": [],
        "other": {},
        "losses": {},
        "counters": {},
        "cpu_us": 0,
        "kernel_us": None,
        "rss_bytes": 0,
        "backend": "tracepoint",
        "kernel": "6.18.0",
        "version": "0.1.0",
        **fields,
    }


def passed(us: int = 5 * SECOND_US, until_us: int = NOW_US, **fields: object) -> Any:
    """Return the `agent` event at the end of an interval of this length, by the wall clock."""
    return agent(until_us, since=until_us - us, **fields)


def open_now(count: int = 1, side: str = "client", **fields: Any) -> Any:
    return {"side": side, "workload": workload(**fields), "count": count}


class StillAgent:
    """An agent without programs, for a server to watch."""

    def __init__(self, connections: tuple[Connection, ...] = (), lags: Sequence[GroupLag] = ()) -> None:
        self.turned_s: float | None = time.monotonic()
        self._connections = connections
        self._lags = lags

    def connections(self) -> tuple[Connection, ...]:
        return self._connections

    def lags(self) -> Sequence[GroupLag]:
        return self._lags


class StillSink:
    """A sink that accepts everything, or returns why it does not."""

    def __init__(self) -> None:
        self.refuses: str | None = None

    def send(self, events: Sequence[Event]) -> None:
        """Keep nothing."""

    def close(self, timeout_s: float) -> None:
        """Do nothing: no event waits."""

    def losses(self) -> Mapping[str, int]:
        return {}

    def counters(self) -> Mapping[str, int]:
        return {}

    def trouble(self) -> str | None:
        return self.refuses


def view(
    *events: Any, connections: tuple[Connection, ...] = (), lags: Sequence[GroupLag] = (), limit: int = 1000
) -> View:
    """Return a server's view of these events. limit: of label sets."""
    shown = View(StillAgent(connections, lags), StillSink(), Traffic(limit))
    shown.add(events)
    return shown


def reported(tracker: Tracker) -> list[Any]:
    """Return the events of a report about opens, resets and closes."""
    return [*tracker.report_opens(SINCE_BOOT), *tracker.report_closes(SINCE_BOOT)]
