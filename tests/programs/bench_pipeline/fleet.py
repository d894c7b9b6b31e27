"""Generates the events of a fleet: both ends of every connection, of nodes with clients and 3 brokers.

Events have the agent's own types, and differ from each other as those of real clients do: 200 pods, half of them
producers and half of them consumers. The same numbers give the same events. This module never sends anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kafka_probe.capture.programs import LOSSES
from kafka_probe.capture.sample import COUNTERS
from kafka_probe.events import (
    SCHEMA_VERSION,
    ActivityFacts,
    AgentEvent,
    CloseEvent,
    ConnectionFacts,
    Event,
    FlowEvent,
    Interval,
    OpenCountFacts,
    OpenEvent,
    Origin,
    RepeatedFacts,
)
from tests.programs.bench_pipeline.facts import (
    BROKERS,
    CLIENT_NODES,
    PODS,
    SECOND_US,
    SPREAD,
    Close,
    Connection,
    broker_workload,
    fin,
    flow,
    listener,
    make_pod,
    open_count,
    reset,
)

STORM_CONNECTIONS = 300
_SETTLED_US = SECOND_US  # agents report a close when it is that old
_BROKER_NETWORK = "10.0.0.0/24"
_FIRST_PORT = 32_768
_OF_STORMS, _BRIEF = 1 << 40, 1 << 42  # first ids of connections of storms, and of brief ones
_BRIEF_PORT, _BRIEF_PORTS = 50_000, 10_000
_FIRST: RepeatedFacts = {}
_SILENT: ActivityFacts = {"requests": 0, "request_bytes": 0, "response_bytes": 0, "topics": []}


@dataclass(slots=True)
class Agent:
    """An agent: its node, its id, and the number of its next event."""

    node: str
    agent_id: str
    seq: int = 0

    def origin(self) -> Origin:
        """Return the fields that the agent adds to its next event."""
        seq, self.seq = self.seq, self.seq + 1
        return {"v": SCHEMA_VERSION, "node": self.node, "agent_id": self.agent_id, "seq": seq}


class Fleet:
    """A fleet with a number of connections, and further ones of one pod for each storm."""

    def __init__(self, connections: int, client_nodes: int = CLIENT_NODES) -> None:
        self.connections = connections
        self._clients = [_agent(f"node-{number}", number) for number in range(client_nodes)]
        self._brokers = [_agent(f"kafka-{number}", client_nodes + number) for number in range(BROKERS)]
        self._broker_workloads = [broker_workload(number) for number in range(BROKERS)]
        self._pods = [make_pod(number, f"app-{number}", client_nodes) for number in range(PODS)]
        self._open: Counter[tuple[str, int]] = Counter()  # by address of the pod and broker
        self._by_address = {pod.address: pod for pod in self._pods}
        self._next = 0

    @property
    def agents(self) -> Sequence[Agent]:
        """Return the agents of all nodes."""
        return [*self._clients, *self._brokers]

    def ordinary(self) -> Iterator[Connection]:
        """Yield the connections that are not part of a storm."""
        return map(self._connection, range(self.connections))

    def of_storm(self, number: int) -> tuple[list[Connection], str]:
        """Return the connections of a storm, which are those of one pod, and the pod's name."""
        pod = make_pod(PODS + number, f"storm-{number}", len(self._clients))
        self._by_address[pod.address] = pod
        ids = range(_OF_STORMS + number * STORM_CONNECTIONS, _OF_STORMS + (number + 1) * STORM_CONNECTIONS)
        victims = [Connection(pod, id_ % BROKERS, _FIRST_PORT + number, id_) for number, id_ in enumerate(ids)]
        return victims, str(pod.workload["pod"])

    def opens(
        self, connections: Iterable[Connection], now_us: int, repeated: RepeatedFacts = _FIRST
    ) -> Iterator[OpenEvent]:
        """Yield the events of both ends of connections that open now. repeated: facts of those that are open still."""
        for each in connections:
            self._open[each.pod.address, each.broker] += not repeated
            for agent, facts in self._ends(each):
                yield {
                    **agent.origin(),
                    "kind": "open",
                    **facts,
                    "found": "start",
                    "handshake_us": 180 + each.id % 400,
                    "cookie": each.id + 1,
                    "nat": None,
                    "keepalive_s": 7200,
                    **repeated,
                    "ts": now_us,
                }

    def flows(self, count: int, interval: Interval) -> Iterator[FlowEvent]:
        """Yield so many events, of both ends of each next connection."""
        for _ in range(count // 2):
            connection = self._connection(self._next)
            self._next = (self._next + 1) % self.connections
            for agent, facts in self._ends(connection):
                yield flow(agent.origin(), facts, connection.id, interval)

    def closes(self, connections: Iterable[Connection], at_us: int, close: Close) -> Iterator[CloseEvent]:
        """Yield the events of both ends of connections that are closed at a time."""
        for each in connections:
            self._open[each.pod.address, each.broker] -= 1
            for agent, facts in self._ends(each):
                side, silence_us = facts["side"], close.silence_us(each)
                begins = side == close.first
                yield {
                    **agent.origin(),
                    "kind": "close",
                    **facts,
                    "found": "start",
                    **(reset(side, silence_us) if close.first is None else fin(close, side, silence_us)),
                    **_SILENT,
                    "age_us": silence_us + SECOND_US,
                    "auth_error": None,
                    "closing_ts": at_us,
                    "owner_ended": begins and close.ended,
                    "listener_closed_us": 0 if begins and close.ended and side == "server" else None,
                    "recorded_frames": 2,
                    "evicted": False,
                    "ts": at_us,
                }

    def of_pod(self, number: int) -> list[Connection]:
        """Return the connections of a pod that are not part of a storm."""
        return [self._connection(each) for each in range(number, self.connections, PODS)]

    def of_broker(self, number: int) -> list[Connection]:
        """Return the connections to a broker that are not part of a storm."""
        return [self._connection(each) for each in range(number, self.connections, BROKERS)]

    def brief(self, first: int, count: int) -> list[Connection]:
        """Return further connections, of as many pods; each is closed soon after it is opened."""
        return [
            self._connection(number)._replace(port=_BRIEF_PORT + number % _BRIEF_PORTS, id=_BRIEF + number)
            for number in range(first, first + count)
        ]

    def reports(self, interval: Interval) -> Iterator[AgentEvent]:
        """Yield the event of each agent at the end of an interval."""
        counts = self._open_counts()
        for agent, open_counts in zip(self.agents, counts, strict=True):
            yield {
                **agent.origin(),
                "kind": "agent",
                "since": interval.since_us,
                "complete_since": None,
                "complete_until": interval.until_us - _SETTLED_US,
                "other": {},
                "connections": sum(each["count"] for each in open_counts),
                "open": open_counts,
                "losses": dict.fromkeys(LOSSES, 0),
                "counters": {name: agent.seq * 50 + place for place, name in enumerate(COUNTERS)},
                "shed": None,
                "cpu_us": agent.seq * 400,
                "kernel_us": None,
                "rss_bytes": 90 << 20,
                "backend": "fentry",
                "kernel": "6.12.0",
                "version": "0.1.0",
                "ts": interval.until_us,
            }

    def second(self, until_us: int, flows: int) -> Iterator[Event]:
        """Yield the events of an interval of one second in the order of agents: flows first, and reports last."""
        interval = Interval(until_us - SECOND_US, until_us)
        yield from self.flows(flows, interval)
        yield from self.reports(interval)

    def _connection(self, number: int) -> Connection:
        return Connection(self._pods[number % PODS], number % BROKERS, _FIRST_PORT + number // PODS, number)

    def _ends(self, connection: Connection) -> tuple[tuple[Agent, ConnectionFacts], tuple[Agent, ConnectionFacts]]:
        pod, broker = connection.pod, connection.broker
        near, far = f"{pod.address}:{connection.port}", listener(broker)
        client_end: ConnectionFacts = {
            "side": "client",
            "flow_id": f"{(connection.id + 1) * SPREAD % 2**64:016x}",
            "conn_id": f"{connection.id:016x}",
            "local": near,
            "peer": far,
            "netns": 4_026_532_000 + pod.node,
            "cluster_id": "PPV5seefS0CW3RSjwj_CTQ",
            "workload": pod.workload,
            "client": pod.client,
            "opaque": None,
        }
        broker_end: ConnectionFacts = {
            **client_end,
            "side": "server",
            "local": far,
            "peer": near,
            "netns": 4_026_531_840,
            "workload": self._broker_workloads[broker],
        }
        return (self._clients[pod.node], client_end), (self._brokers[broker], broker_end)

    def _open_counts(self) -> list[list[OpenCountFacts]]:
        """Return `open` of the `agent` events, agent by agent."""
        at_clients: list[Counter[str]] = [Counter() for _ in self._clients]
        at_brokers: list[Counter[str]] = [Counter() for _ in self._brokers]
        for (address, broker), count in (+self._open).items():
            pod = self._by_address[address]
            at_clients[pod.node][address] += count
            at_brokers[broker][pod.network] += count
        of_clients = [
            [
                open_count("client", self._by_address[address].workload, address, _BROKER_NETWORK, count)
                for address, count in counts.items()
            ]
            for counts in at_clients
        ]
        of_brokers = [
            [open_count("server", workload, listener(broker), network, count) for network, count in counts.items()]
            for broker, (workload, counts) in enumerate(zip(self._broker_workloads, at_brokers, strict=True))
        ]
        return of_clients + of_brokers


def backlog(fleet: Fleet, flows: int, per_second: int, now_us: int) -> Iterator[Event]:
    """Yield the events of a backlog: the flows of each second, then reports."""
    seconds = flows // per_second
    began_us = now_us - seconds * SECOND_US
    for second in range(seconds):
        since_us = began_us + second * SECOND_US
        yield from fleet.flows(per_second, Interval(since_us, since_us + SECOND_US))
    yield from fleet.reports(Interval(now_us - SECOND_US, now_us))


def _agent(node: str, number: int) -> Agent:
    return Agent(node, f"{(number + 1) * SPREAD % 2**128:032x}")
