"""The facts of generated events: pods, connections, flows and closes.

They differ from each other as those of real clients do. The same numbers give the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafka_probe.events import (
    ClientFacts,
    CloseFacts,
    ConnectionFacts,
    FlowEvent,
    Interval,
    OpenCountFacts,
    Origin,
    WorkloadFacts,
)
from kafka_probe.protocol.api_keys import ApiKey

SECOND_US = 1_000_000
CLIENT_NODES, BROKERS, PODS = 20, 3, 200
SPREAD = 0x9E3779B97F4A7C15  # odd: different numbers give different flow ids, without an order
_AGAIN = 1 << 41  # the first id of connections that replace closed ones
_AGAIN_PORTS = 10_000


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
    """The way of closing connections: by the end `first`, or if None by a middlebox that resets both ends.

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
        return self.least_us + connection.id * SPREAD % self.spread_us


def again(connections: Iterable[Connection]) -> list[Connection]:
    """Return the connections that replace closed ones."""
    return [
        each._replace(pod=_again(each.pod), port=each.port + _AGAIN_PORTS, id=each.id + _AGAIN) for each in connections
    ]


def _again(pod: Pod) -> Pod:
    workload: WorkloadFacts = {**pod.workload, "start_time": (pod.workload["start_time"] or 0) + 1}
    return replace(pod, workload=workload)


def listener(broker: int) -> str:
    """Return the address of a broker."""
    return f"10.0.0.{broker + 1}:9092"


def make_pod(number: int, name: str, nodes: int = CLIENT_NODES) -> Pod:
    """Return a pod; pods with successive numbers are on successive nodes."""
    node, place = number % nodes, number // nodes
    container_id, pod_uid = f"{(number + 1) * SPREAD % 2**256:064x}", f"7b0e2d4c-5a41-4c1e-9d58-{number:012x}"
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
        "container_name": None,
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


def broker_workload(number: int) -> WorkloadFacts:
    """Return the workload of a broker."""
    return {
        **make_pod(1_000 + number, f"kafka-{number}").workload,
        "pod": f"kafka-{number}",
        "namespace": "kafka",
        "owner_kind": "StatefulSet",
        "owner_name": "kafka",
    }


def open_count(side: str, workload: WorkloadFacts, local: str, network: str, count: int) -> OpenCountFacts:
    """Return a count of open connections, as in reports."""
    named: WorkloadFacts = {**workload, "cmdline": None, "labels": None}
    return {"side": side, "workload": named, "local": local, "peer_network": network, "count": count}


def flow(origin: Origin, facts: ConnectionFacts, number: int, interval: Interval) -> FlowEvent:
    """Return the event of an interval of a connection. number: that of the connection."""
    produces = number % 2 == 1
    requests, size, bucket = 20 + number % 40, 900 + number % 200, number % 24 - 80
    record_bytes = requests * size
    latency = {str(bucket): requests - 6, str(bucket + 1): 4, str(bucket + 5): 2}
    return {
        **origin,
        "kind": "flow",
        **facts,
        "api": "Produce" if produces else "Fetch",
        "api_key": ApiKey.PRODUCE if produces else ApiKey.FETCH,
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
                "topic_id": None if produces else f"{(number % 50 + place + 1) * SPREAD % 2**128:032x}",
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


def fin(close: Close, side: str, silence_us: int) -> CloseFacts:
    """Return the facts of a close that one end began."""
    begins = side == close.first
    return {
        **reset("server", silence_us),
        "closed_by": "local" if begins else "peer",
        "how": "fin",
        "owner_exiting": begins and close.exiting,
    }


def reset(side: str, silence_us: int) -> CloseFacts:
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
