"""Declares the fields that events of several kinds share: origin, time, and the facts about a connection."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

SCHEMA_VERSION = 1
INTERNAL_CLIENT = "kafka-probe-"
"""The prefix of client ids of kafka-probe's own clients, which views leave out."""


def is_internal(client_id: str | None) -> bool:
    """Return True for the client id of one of kafka-probe's own clients."""
    return client_id is not None and client_id.startswith(INTERNAL_CLIENT)


# Documentation that fields of several kinds of events share.
KIND = "flow, request, open, close, reset, topics, offsets or agent; in the topic of frames: frames"
SINCE = "start of the interval, µs since epoch"
ACKS = "Produce: 0, 1, or -1 for all in-sync replicas"
TOPIC_NAME = "topic name; null: only the id is known, or the entry sums topics, see topic_id"
TOPIC_ID = "topic id, 32 hexadecimal digits"
ERRORS = "error code to count, without code 0"


class Origin(TypedDict, total=False):
    """The fields of all events that the agent adds when it hands them to the sink."""

    v: Annotated[int, f"version of this schema: {SCHEMA_VERSION}"]
    node: Annotated[str, "name of the node"]
    agent_id: Annotated[str, "id of the agent's run; key of the Kafka record"]
    seq: Annotated[int, "number of the event within agent_id and topic, from 0; shows gaps and duplicates"]


class Stamped(TypedDict):
    """The time of an event."""

    ts: Annotated[int, "time of the event, µs since epoch; the end of the interval for flow, topics, offsets and agent"]


class ProcessFacts(TypedDict):
    """The facts of a workload that never change."""

    pid: Annotated[int | None, "process id (thread group) in the root pid namespace"]
    start_time: Annotated[int | None, "start of the process, µs since epoch; distinguishes processes with the same pid"]
    comm: Annotated[str | None, "command name of the process's main thread"]
    exe: Annotated[str | None, "path of the executable; null when the process ended before it was read"]
    cmdline: Annotated[
        str | None,
        "command line, arguments separated by spaces, cut at 1,024 characters, for ended processes at 92 bytes; "
        "*** for values whose names mark them as secrets; null with `--cmdline false`",
    ]
    uid: Annotated[int | None, "real user id"]
    cgroup: Annotated[str | None, "path of the cgroup below its mount point"]
    cgroup_id: Annotated[int | None, "the kernel's id of the cgroup"]
    container_id: Annotated[str | None, "64 hexadecimal digits, from the cgroup path"]
    container_name: Annotated[
        str | None,
        "name that the engine gave the container; null without `--container-names`, or if it is unknown",
    ]
    runtime: Annotated[
        str | None, "docker, containerd, cri-o, podman or systemd (a service unit), from the cgroup path"
    ]
    unit: Annotated[str | None, "systemd unit, if the cgroup is that of one"]
    pod_uid: Annotated[str | None, "Kubernetes pod uid, from the cgroup path"]


class PodNames(TypedDict):
    """The names of a workload's pod, which the agent may learn later."""

    pod: Annotated[str | None, "Kubernetes pod name"]
    namespace: Annotated[str | None, "Kubernetes namespace"]
    labels: Annotated[
        dict[str, str] | None, "labels of the pod: the first 16 in alphabetical order, and at most 1 KiB of them"
    ]
    owner_kind: Annotated[
        str | None, "kind of the pod's owner: Deployment, StatefulSet, DaemonSet, Job, CronJob or another"
    ]
    owner_name: Annotated[str | None, "name of the pod's owner"]


class WorkloadFacts(ProcessFacts, PodNames):
    """The process, container, pod or service that owns a socket."""


OWNER_NAMES: tuple[Literal["comm", "container_id", "container_name", "unit", "pod", "owner_name"], ...] = (
    *("comm", "container_id", "container_name", "unit", "pod", "owner_name"),
)
"""The fields by which people name a workload."""


def owner_names(workload: WorkloadFacts) -> tuple[str | None, ...]:
    """Return the names of a workload."""
    return tuple(workload[name] for name in OWNER_NAMES)


class ClientFacts(TypedDict):
    """The Kafka client of a connection."""

    id: Annotated[str | None, "client id of the request header"]
    software_name: Annotated[str | None, "client library, from ApiVersions 3 and newer (KIP-511)"]
    software_version: Annotated[str | None, "version of the client library, likewise"]


class Ends(TypedDict):
    """The ends of a connection."""

    local: Annotated[str | None, "address:port of the watched end"]
    peer: Annotated[str | None, "address:port of the far end as the watched end sees it"]
    netns: Annotated[int | None, "inode of the network namespace"]


class ConnectionFacts(Origin, Ends):
    """The fields that all events about a connection share."""

    side: Annotated[str, "client or server: the end of the connection that this agent watched"]
    flow_id: Annotated[str | None, "16 hexadecimal digits, the same at both ends, also across NAT; null if unknown"]
    conn_id: Annotated[
        str | None,
        "id of this end of the connection, unique within agent_id; null: the flow sums all connections of one side and "
        "API that exceed the bound of the table, see flow_limit",
    ]
    cluster_id: Annotated[str | None, "Kafka cluster id; null: not seen"]
    workload: Annotated[WorkloadFacts, "the process that owns the watched end"]
    client: Annotated[ClientFacts, "the Kafka client of the connection"]
    opaque: Annotated[
        str | None,
        "tls: encrypted, so the payload is not decoded; unknown: bytes that are not Kafka, or TCP "
        "urgent data, which Kafka never sends; else null",
    ]


class ApiFacts(TypedDict):
    """The Kafka API of requests."""

    api: Annotated[str | None, "Kafka's name of the API; null: internal, or responses whose request was not seen"]
    api_key: Annotated[int | None, "API key"]
    api_version: Annotated[int | None, "API version"]
