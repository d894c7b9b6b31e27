"""Generates the events of a fleet: both ends of every connection, of 20 client nodes and 3 brokers.

Events have the agent's own types, and differ from each other as those of real clients do: 200 pods, half of them
producers and half of them consumers. The same numbers give the same events. This module never sends anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafka_probe.capture.programs import LOSSES
from kafka_probe.capture.sample import COUNTERS
from kafka_probe.events import (
    SCHEMA_VERSION,
    ActivityFacts,
    AgentEvent,
    ClientFacts,
    CloseEvent,
    CloseFacts,
    ConnectionFacts,
    Event,
    FlowEvent,
    Interval,
    OpenEvent,
    OpenGroup,
    Origin,
    RepeatedFacts,
    WorkloadFacts,
)

SECOND_US = 1_000_000
CLIENT_NODES, BROKERS, PODS = 20, 3, 200
STORM_CONNECTIONS = 300
_SETTLED_US = SECOND_US  # agents report a close when it is that old
_BROKER_NETWORK = "10.0.0.0/24"
_FIRST_PORT = 32_768
_SPREAD = 0x9E3779B97F4A7C15  # odd: different numbers give different flow ids, without an order
_OF_STORMS, _AGAIN, _BRIEF = 1 << 40, 1 << 41, 1 << 42  # first ids of connections of storms, and of others opened later
_AGAIN_PORTS, _BRIEF_PORT = 10_000, 50_000
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


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with one process. `network` is that of the pods on its node."""

    number: int
    node: int
    address: str
    network: str
    workload: WorkloadFacts
    client: ClientFacts


class Connection(NamedTuple):
    """A connection; its facts at both ends follow from these."""

    pod: Pod
    broker: int
    port: int
    id: int


class Close(NamedTuple):
    """How connections are closed: by the end `first`, or by a middlebox that resets both ends if it is None.

    ended: the process of this end ends afterwards; exiting: its exit closes them. least_us: their least silence before;
    each one's is up to `spread_us` longer.
    """

    first: str | None
    exiting: bool = False
    ended: bool = False
    least_us: int = 0
    spread_us: int = 1

    def silence_us(self, connection: Connection) -> int:
        """Return the silence of a connection."""
        return self.least_us + connection.id * _SPREAD % self.spread_us


def again(connections: Iterable[Connection]) -> list[Connection]:
    """Return the connections that replace closed ones."""
    return [
        each._replace(pod=_again(each.pod), port=each.port + _AGAIN_PORTS, id=each.id + _AGAIN) for each in connections
    ]


def _again(pod: Pod) -> Pod:
    workload: WorkloadFacts = {**pod.workload, "start_time": (pod.workload["start_time"] or 0) + 1}
    return replace(pod, workload=workload)


class Fleet:
    """A fleet with a number of connections, and further ones of one pod for each storm."""

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self._clients = [_agent(f"node-{number}", number) for number in range(CLIENT_NODES)]
        self._brokers = [_agent(f"kafka-{number}", CLIENT_NODES + number) for number in range(BROKERS)]
        self._broker_workloads = [_broker_workload(number) for number in range(BROKERS)]
        self._pods = [_pod(number, f"app-{number}") for number in range(PODS)]
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
        pod = _pod(PODS + number, f"storm-{number}")
        self._by_address[pod.address] = pod
        ids = range(_OF_STORMS + number * STORM_CONNECTIONS, _OF_STORMS + (number + 1) * STORM_CONNECTIONS)
        victims = [Connection(pod, id_ % BROKERS, _FIRST_PORT + number, id_) for number, id_ in enumerate(ids)]
        return victims, str(pod.workload["pod"])

    def opens(self, connections: Iterable[Connection], now_us: int) -> Iterator[OpenEvent]:
        """Yield the events of both ends of connections that open now."""
        for each in connections:
            self._open[each.pod.address, each.broker] += 1
            for agent, facts in self._ends(each):
                yield {
                    **agent.origin(),
                    "kind": "open",
                    **facts,
                    "found": "start",
                    "handshake_us": 180 + each.id % 400,
                    "cookie": each.id + 1,
                    "nat": None,
                    **_FIRST,
                    "ts": now_us,
                }

    def flows(self, count: int, interval: Interval) -> Iterator[FlowEvent]:
        """Yield so many events, of both ends of each next connection."""
        for _ in range(count // 2):
            connection = self._connection(self._next)
            self._next = (self._next + 1) % self.connections
            for agent, facts in self._ends(connection):
                yield _flow(agent.origin(), facts, connection.id, interval)

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
                    **(_reset(side, silence_us) if close.first is None else _fin(close, side, silence_us)),
                    **_SILENT,
                    "age_us": silence_us + SECOND_US,
                    "auth_error": None,
                    "closing_ts": at_us,
                    "owner_ended": begins and close.ended,
                    "listener_closed_us": 0 if begins and close.ended and side == "server" else None,
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
        numbers = range(first, first + count)
        return [self._connection(number)._replace(port=_BRIEF_PORT + number, id=_BRIEF + number) for number in numbers]

    def reports(self, interval: Interval) -> Iterator[AgentEvent]:
        """Yield the event of each agent at the end of an interval."""
        groups = self._groups()
        for agent, open_groups in zip(self.agents, groups, strict=True):
            yield {
                **agent.origin(),
                "kind": "agent",
                "since": interval.since_us,
                "complete_since": None,
                "complete_until": interval.until_us - _SETTLED_US,
                "other": {},
                "connections": sum(group["count"] for group in open_groups),
                "open": open_groups,
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
        near, far = f"{pod.address}:{connection.port}", _listener(broker)
        client_end: ConnectionFacts = {
            "side": "client",
            "flow_id": f"{(connection.id + 1) * _SPREAD % 2**64:016x}",
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

    def _groups(self) -> list[list[OpenGroup]]:
        """Return `open` of the `agent` events, agent by agent."""
        at_clients: list[Counter[str]] = [Counter() for _ in range(CLIENT_NODES)]
        at_brokers: list[Counter[str]] = [Counter() for _ in range(BROKERS)]
        for (address, broker), count in (+self._open).items():
            pod = self._by_address[address]
            at_clients[pod.node][address] += count
            at_brokers[broker][pod.network] += count
        of_clients = [
            [
                _group("client", self._by_address[address].workload, address, _BROKER_NETWORK, count)
                for address, count in counts.items()
            ]
            for counts in at_clients
        ]
        of_brokers = [
            [_group("server", workload, _listener(broker), network, count) for network, count in counts.items()]
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
    return Agent(node, f"{(number + 1) * _SPREAD % 2**128:032x}")


def _listener(broker: int) -> str:
    return f"10.0.0.{broker + 1}:9092"


def _pod(number: int, name: str) -> Pod:
    """Return a pod; pods with successive numbers are on successive nodes."""
    node, place = number % CLIENT_NODES, number // CLIENT_NODES
    container_id, pod_uid = f"{(number + 1) * _SPREAD % 2**256:064x}", f"7b0e2d4c-5a41-4c1e-9d58-{number:012x}"
    workload: WorkloadFacts = {
        "pid": 2_000 + number,
        "start_time": 1_795_000_000_000_000 + number,
        "comm": "java",
        "exe": "/usr/lib/jvm/java-21-openjdk/bin/java",
        "cmdline": f"java -Xmx512m -XX:+UseG1GC -jar /opt/{name}/service.jar --spring.profiles.active=production",
        "uid": 1000,
        "cgroup": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod_uid}.slice/{container_id}",
        "cgroup_id": 30_000 + number,
        "container_id": container_id,
        "runtime": "containerd",
        "unit": None,
        "pod_uid": pod_uid,
        "pod": f"{name}-6d5f7c9b8d-x{number}",
        "namespace": "shop",
        "labels": {"app": name, "app.kubernetes.io/part-of": "shop", "pod-template-hash": "6d5f7c9b8d"},
        "owner_kind": "Deployment",
        "owner_name": name,
    }
    client: ClientFacts = {
        "id": f"{name}-{'producer' if number % 2 else 'consumer'}",
        "software_name": "apache-kafka-java",
        "software_version": "3.9.0",
    }
    return Pod(number, node, f"10.1.{node}.{place + 10}", f"10.1.{node}.0/24", workload, client)


def _broker_workload(number: int) -> WorkloadFacts:
    return {
        **_pod(1_000 + number, f"kafka-{number}").workload,
        "pod": f"kafka-{number}",
        "namespace": "kafka",
        "owner_kind": "StatefulSet",
        "owner_name": "kafka",
    }


def _group(side: str, workload: WorkloadFacts, local: str, network: str, count: int) -> OpenGroup:
    named: WorkloadFacts = {**workload, "cmdline": None, "labels": None}
    return {"side": side, "workload": named, "local": local, "peer_network": network, "count": count}


def _flow(origin: Origin, facts: ConnectionFacts, number: int, interval: Interval) -> FlowEvent:
    produces = number % 2 == 1
    requests, size, bucket = 20 + number % 40, 900 + number % 200, number % 24 - 80
    record_bytes = requests * size
    latency = {str(bucket): requests - 6, str(bucket + 1): 4, str(bucket + 5): 2}
    return {
        **origin,
        "kind": "flow",
        **facts,
        "api": "Produce" if produces else "Fetch",
        "api_key": 0 if produces else 1,
        "api_version": 11 if produces else 16,
        "since": interval.since_us,
        "internal": False,
        "requests": requests,
        "responses": requests,
        "request_bytes": record_bytes + 120 * requests if produces else 140 * requests,
        "response_bytes": 80 * requests if produces else record_bytes + 90 * requests,
        "errors": {},
        "latency": latency,
        "latency_empty": {} if produces else {"-8": 2},
        "throttle_ms": 0,
        "acks": -1 if produces else None,
        "group": None if produces else f"group-{number % PODS}",
        "transactional_id": None,
        "replica_id": None,
        "topics": [
            {
                "topic": f"topic-{number % 50 + place}",
                "topic_id": None if produces else f"{(number % 50 + place + 1) * _SPREAD % 2**128:032x}",
                "requests": requests,
                "partitions": 3,
                "records": requests * 5,
                "batches": requests,
                "bytes": record_bytes // (place + 1),
                "uncounted_bytes": 0,
                "codecs": {"lz4": requests},
                "errors": {},
            }
            for place in range(1 + number % 4 // 2)
        ],
        "ts": interval.until_us,
    }


def _fin(close: Close, side: str, silence_us: int) -> CloseFacts:
    """Return the facts of a close that one end began."""
    begins = side == close.first
    return {
        **_reset("server", silence_us),
        "closed_by": "local" if begins else "peer",
        "how": "fin",
        "owner_exiting": begins and close.exiting,
    }


def _reset(side: str, silence_us: int) -> CloseFacts:
    """Return the facts of a close by an RST of a device between both ends, which answered the client's request."""
    asked = side == "client"
    return {
        "closed_by": "peer",
        "how": "rst_received",
        "idle_us": 800 if asked else silence_us,
        "silence_us": silence_us,
        "received_idle_us": silence_us,
        "last_api": "Metadata",
        "last_request_bytes": 72,
        "last_acks": None,
        "in_flight": int(asked),
        "sent_bytes": 310 if asked else 1_450,
        "received_bytes": 1_450 if asked else 238,
        "unacked_bytes": 72 if asked else 0,
        "retransmits": 0,
        "unanswered_retransmits": 0,
        "srtt_us": 420,
        "keepalive": True,
        "user_timeout_ms": None,
        "owner_exiting": False,
    }
