"""The event schema: declares the events that an agent writes to the events topic.

One declaration per field gives the JSON, the Spark schema and the table in the README. An event is one JSON object on
one line; a Kafka record contains many lines, and its key is the agent's id, so that one agent's events stay in order.
This module never reads the wire and does not depend on sinks. The pipeline may import only this module and `text`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 1
INTERNAL_CLIENT = "kafka-probe-"
"""The prefix of client ids of kafka-probe's own clients, which views leave out."""

Scalar = Literal["string", "long", "boolean"]


@dataclass(frozen=True, slots=True)
class Struct:
    """A JSON object with these fields."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A JSON array of `element`."""

    element: Struct


@dataclass(frozen=True, slots=True)
class Counts:
    """A JSON object that maps strings to counts."""


@dataclass(frozen=True, slots=True)
class Strings:
    """A JSON object that maps strings to strings."""


Type = Scalar | Struct | ListOf | Counts | Strings


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its JSON name, its type, and one line for the documentation. Every field may be null or absent."""

    name: str
    type: Type
    doc: str


WORKLOAD = Struct(
    (
        Field("pid", "long", "process id (thread group) in the root pid namespace"),
        Field("start_time", "long", "start of the process, µs since epoch; with pid it survives reuse of the pid"),
        Field("comm", "string", "command name of the process's main thread"),
        Field("exe", "string", "path of the executable; null when the process ended before it was read"),
        Field(
            "cmdline",
            "string",
            "command line, arguments separated by spaces, cut at 1,024 characters, for ended processes at 92 bytes; "
            "*** for passwords and the like, as far as their names show; null with `--cmdline off`",
        ),
        Field("uid", "long", "real user id"),
        Field("cgroup", "string", "path of the cgroup below its mount point"),
        Field("cgroup_id", "long", "cgroup id as the kernel has it"),
        Field("container_id", "string", "64 hexadecimal digits, from the cgroup path"),
        Field(
            "runtime", "string", "docker, containerd, cri-o, podman or systemd (a service unit), from the cgroup path"
        ),
        Field("unit", "string", "systemd unit, where the cgroup is one"),
        Field("pod_uid", "string", "Kubernetes pod uid, from the cgroup path"),
        Field("pod", "string", "Kubernetes pod name"),
        Field("namespace", "string", "Kubernetes namespace"),
        Field("labels", Strings(), "labels of the pod: the first 16 in alphabetical order, and at most 1 KiB of them"),
        Field("owner_kind", "string", "what runs the pod: Deployment, StatefulSet, DaemonSet, Job, CronJob or another"),
        Field("owner_name", "string", "name of what runs the pod"),
    )
)

CLIENT = Struct(
    (
        Field("id", "string", "client id of the request header"),
        Field("software_name", "string", "client library, from ApiVersions 3 and newer (KIP-511)"),
        Field("software_version", "string", "version of the client library, likewise"),
    )
)

COMMON = (
    Field("v", "long", f"version of this schema: {SCHEMA_VERSION}"),
    Field("kind", "string", "flow, request, open, close, reset, topics or agent"),
    Field("ts", "long", "time of the event, µs since epoch; the end of the interval for flow, topics and agent"),
    Field("node", "string", "name of the node"),
    Field("agent_id", "string", "id of the agent's run; key of the Kafka record"),
    Field("seq", "long", "number of the event within agent_id, from 0: gaps and duplicates can be seen"),
    Field("side", "string", "client or server: which end of the connection this agent watched"),
    Field("flow_id", "string", "16 hexadecimal digits, the same on both ends whatever NAT is between; null if unknown"),
    Field(
        "conn_id",
        "string",
        "id of this end of the connection, unique within agent_id; null: the flow sums all connections of one side and "
        "API that are beyond the bound of the table, see flow_limit",
    ),
    Field("local", "string", "address:port of the watched end"),
    Field("peer", "string", "address:port of the far end as the watched end sees it"),
    Field("netns", "long", "inode of the network namespace"),
    Field("cluster_id", "string", "Kafka cluster id, where it was seen"),
    Field("broker_id", "long", "Kafka broker id, where it was seen"),
    Field("workload", WORKLOAD, "the process that owns the watched end"),
    Field("client", CLIENT, "the Kafka client of the connection"),
    Field(
        "opaque",
        "string",
        "tls: encrypted, so nothing below is decoded; unknown: bytes that are not Kafka, or TCP "
        "urgent data, which Kafka never sends; else null",
    ),
)

API = (
    Field("api", "string", "name of the API as Kafka has it; null: internal, or answers whose request was not seen"),
    Field("api_key", "long", "API key"),
    Field("api_version", "long", "API version"),
)

LATENCY = "bucket to count; bucket i holds (2^(i/8), 2^((i+1)/8)] seconds"

FLOW_TOPIC = Struct(
    (
        Field("topic", "string", "topic name; null: only the id is known, or the entry sums topics, see topic_id"),
        Field(
            "topic_id",
            "string",
            "topic id, 32 hexadecimal digits, where the version carries it; if topic is null, too, the entry sums all "
            "topics beyond the bound of the table, see topic_limit",
        ),
        Field("requests", "long", "requests that asked for the topic, by name or by its fetch session (KIP-227)"),
        Field("partitions", "long", "distinct partitions named in the interval"),
        Field("records", "long", "records in the record batches that could be read"),
        Field("batches", "long", "record batches that could be read"),
        Field("bytes", "long", "size of all record sets"),
        Field(
            "uncounted_bytes",
            "long",
            "part of bytes whose batches could not be read (sendfile): records has none of it",
        ),
        Field("codecs", Counts(), "codec of the last batch to count of record sets: none, gzip, snappy, lz4 or zstd"),
        Field("errors", Counts(), "error code to count, code 0 left out"),
    )
)

FLOW = (
    Field("since", "long", "start of the interval, µs since epoch"),
    *API,
    Field("internal", "boolean", "true: the traffic of a kafka-probe agent itself, counted in one row without topics"),
    Field("requests", "long", "requests seen"),
    Field("responses", "long", "responses seen"),
    Field("request_bytes", "long", "size of the requests with their length prefix"),
    Field("response_bytes", "long", "size of the responses with their length prefix"),
    Field("errors", Counts(), "error code to count, over all levels of the responses, code 0 left out"),
    Field("latency", Counts(), f"request seen to response seen, {LATENCY}; Fetch and ShareFetch: answered with data"),
    Field("latency_empty", Counts(), f"Fetch or ShareFetch answered without data after its wait, {LATENCY}"),
    Field("throttle_ms", "long", "sum of the throttle times that the broker named"),
    Field("acks", "long", "Produce: 0, 1, or -1 for all replicas in sync; null where requests differed"),
    Field(
        "group",
        "string",
        "consumer group, where the API names it; of Fetch the one that its client named elsewhere",
    ),
    Field("transactional_id", "string", "transactional id, where the requests named one and no other"),
    Field("replica_id", "long", "broker or controller that asked as a replica; null: none did, as with a consumer"),
    Field("topics", ListOf(FLOW_TOPIC), "what was done to which topic"),
)

REQUEST_TOPIC = Struct(
    (
        Field("topic", "string", "topic name"),
        Field("topic_id", "string", "topic id, 32 hexadecimal digits"),
        Field("partition", "long", "partition index"),
        Field("offset", "long", "offset asked for (Fetch, OffsetCommit) or given (Produce)"),
        Field("high_watermark", "long", "Fetch: end of what is replicated; above the offset: the consumer lags"),
        Field("records", "long", "records in the batches of the partition"),
        Field("batches", "long", "record batches of the partition"),
        Field("bytes", "long", "size of the record set"),
        Field("codec", "string", "compression codec of the last batch: none, gzip, snappy, lz4 or zstd"),
        Field("transactional", "boolean", "true: a batch belongs to a transaction"),
        Field("producer_id", "long", "producer id of the first batch, if it has one"),
        Field("error", "long", "error code of the partition"),
    )
)

# Values of the request, or of the response where the broker chooses them; null if there are several.
EXCHANGED = (
    Field("group_protocol", "string", "what the members of the group do: consumer, connect or share"),
    Field("assignor", "string", "partition assignor"),
    Field("member_id", "string", "id of the group's member"),
    Field("instance_id", "string", "id of a static member (KIP-345)"),
    Field("generation", "long", "generation of the group"),
    Field("member_epoch", "long", "epoch of the member (KIP-848)"),
    Field("transactional_id", "string", "transactional id"),
    Field("producer_id", "long", "producer id"),
    Field("producer_epoch", "long", "producer epoch"),
    Field("acks", "long", "Produce: 0, 1, or -1 for all replicas in sync"),
    Field("isolation_level", "long", "0: also records of open transactions; 1: committed ones only"),
    Field("replica_id", "long", "broker that fetches as a replica; -1: a consumer"),
    Field("session_id", "long", "fetch session (KIP-227); 0: none"),
    Field("session_epoch", "long", "number of the request in its session; 0: a new one; -1: none"),
    Field("max_wait_ms", "long", "how long the broker may wait for min_bytes"),
    Field("min_bytes", "long", "least bytes to answer a Fetch with before its wait is over"),
    Field("max_bytes", "long", "most bytes to answer a Fetch with"),
    Field("timeout_ms", "long", "how long the broker may take"),
    Field("session_timeout_ms", "long", "silence after which a member is out of its group"),
    Field("rebalance_timeout_ms", "long", "time that a member has to join a rebalance"),
    Field("heartbeat_interval_ms", "long", "how often a member has to send a heartbeat"),
    Field("transaction_timeout_ms", "long", "longest time that a transaction may stay open"),
    Field("mechanism", "string", "SASL mechanism"),
)

REQUEST = (
    *API,
    Field("correlation_id", "long", "correlation id"),
    Field("request_bytes", "long", "size of the request with its length prefix"),
    Field("response_bytes", "long", "size of the response with its length prefix; null: not answered (acks=0)"),
    Field("latency_us", "long", "request seen to response seen, µs"),
    Field("throttle_ms", "long", "throttle time that the broker named"),
    Field("group", "string", "consumer group, as in flow"),
    *EXCHANGED,
    Field("status", "string", "complete, or what kept the frames from being decoded in full"),
    Field("stopped_at", "string", "the field, by its path, where decoding ended early"),
    Field("errors", Counts(), "error code to count, code 0 left out"),
    Field("error_names", Counts(), "the same by Kafka's names"),
    Field("topics", ListOf(REQUEST_TOPIC), "one entry per topic and partition"),
)

NAT = Struct(
    (
        Field("local", "string", "address:port of the watched end as the far end sees it"),
        Field("peer", "string", "address:port of the far end as it is there"),
    )
)

OPEN = (
    Field(
        "found",
        "string",
        "start: seen from its first byte; midstream: it was open already; listed: open when the agent started, and no "
        "payload has passed since, so that its flow_id is not known yet",
    ),
    Field("handshake_us", "long", "how long TCP's handshake took, µs; null where it was over for too long to be known"),
    Field("cookie", "long", "the kernel's own number of the socket, as `ss -e` shows it; null where it has none yet"),
    Field("nat", NAT, "the ends beyond this host's NAT; null: not translated here, or nobody asked (`--conntrack`)"),
)

CLOSE = (
    Field("found", "string", "as in open"),
    Field("closing_ts", "long", "when this end began to close, µs since epoch; ts is when it was closed both ways"),
    Field("closed_by", "string", "local, peer or unknown: which end closed first"),
    Field("how", "string", "fin, rst_sent, rst_received, timeout or unknown"),
    Field("idle_us", "long", "time since the last payload in either direction when this end began to close, µs"),
    Field(
        "silence_us",
        "long",
        "idle age, µs: idle_us, or where the last payload sent was not acknowledged, the silence before it",
    ),
    Field("received_idle_us", "long", "time since the last payload received, as idle_us; null: none was"),
    Field("age_us", "long", "time since the connection was first seen, µs; a lower bound when found midstream"),
    Field("last_api", "string", "API of the last request"),
    Field("last_request_bytes", "long", "size of the last request on the wire, bytes; null: none was seen"),
    Field("last_acks", "long", "0: the last request was a Produce with acks=0, which has no response; else null"),
    Field("in_flight", "long", "requests without a response"),
    Field(
        "auth_error",
        "long",
        "error code of a SaslHandshake response, as 33: mechanism not enabled; null: there was none",
    ),
    Field("sent_bytes", "long", "payload bytes that the watched end sent, as TCP counts them"),
    Field("received_bytes", "long", "payload bytes that the watched end received, likewise"),
    Field("unacked_bytes", "long", "sent bytes that the peer never acknowledged"),
    Field("retransmits", "long", "retransmitted segments"),
    Field("unanswered_retransmits", "long", "retransmissions in a row, up to the end, that nothing answered"),
    Field("srtt_us", "long", "smoothed round-trip time, µs"),
    Field("keepalive", "boolean", "the kernel probes the peer after a long silence (SO_KEEPALIVE)"),
    Field("user_timeout_ms", "long", "TCP_USER_TIMEOUT; null: not set"),
    Field("owner_exiting", "boolean", "the socket was closed by the end of its process, not by a close of its own"),
    Field("owner_ended", "boolean", "the process had ended a second or two after this end was closed"),
    Field(
        "listener_closed_us",
        "long",
        "server side: time since the listening socket of its port was closed, µs; 0: up to a second later; null: it "
        "is open, or was closed before the agent started, before those of 256 other ports or by the end of its process",
    ),
)

RESET = (Field("direction", "string", "sent: this host answered a segment for which it had no socket"),)

NAMED_TOPIC = Struct(
    (
        Field("topic", "string", "topic name"),
        Field(
            "topic_id",
            "string",
            "topic id, 32 hexadecimal digits; it gets another name only from a file that contradicts a message",
        ),
    )
)

TOPICS = (
    Field("topics", ListOf(NAMED_TOPIC), "ids whose names this agent learned, from messages or from a broker's files"),
)

OPEN_NOW = Struct(
    (
        Field("side", "string", "client or server"),
        Field(
            "workload",
            WORKLOAD,
            "the process that owns the watched ends, its cmdline and labels left out; all null: any",
        ),
        Field("local", "string", "address:port of the watched ends; the port of client ends is left out"),
        Field(
            "peer_network",
            "string",
            "network of the far ends, as 10.1.2.0/24 or 2001:db8::/64; null: any, of the smallest groups",
        ),
        Field("count", "long", "open connections"),
    )
)

AGENT = (
    Field("since", "long", "start of the interval, µs since epoch"),
    Field(
        "complete_since",
        "long",
        "losses before it may have been closes or resets, µs since epoch; null: none were",
    ),
    Field("complete_until", "long", "all closes and resets up to this time have been sent, µs since epoch"),
    Field("connections", "long", "connections open now"),
    Field("open", ListOf(OPEN_NOW), "the same, counted"),
    Field(
        "other",
        Counts(),
        "opens, closes and resets of the interval that have no event of their own, see open_limit and close_limit: "
        "open/SIDE, close/SIDE/HOW/CLOSED_BY or reset to count",
    ),
    Field("losses", Counts(), "what was lost or left out since the start, by reason; all zero is the normal state"),
    Field("counters", Counts(), "what was done since the start: records, frames, events"),
    Field("shed", "string", "what is left out above `--cpu-limit`: requests, or topics and requests; null: nothing"),
    Field("cpu_us", "long", "CPU time of the agent since its start, µs"),
    Field("kernel_us", "long", "run time of its programs in the kernel, µs; null: not measured, see `--kernel-time`"),
    Field("rss_bytes", "long", "resident memory of the agent"),
    Field("backend", "string", "capture backend"),
    Field("kernel", "string", "kernel release"),
    Field("version", "string", "kafka-probe version"),
)

KINDS: dict[str, tuple[Field, ...]] = {
    "flow": FLOW,
    "request": REQUEST,
    "open": OPEN,
    "close": CLOSE,
    "reset": RESET,
    "topics": TOPICS,
    "agent": AGENT,
}

# Names of compression codecs, indexed by the code in a record batch's attributes.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def codec_name(code: int) -> str:
    """Return the name of a compression codec; the code if Kafka defines no name."""
    return CODECS[code] if code < len(CODECS) else str(code)


# Latency bucket i covers (2**(i/8), 2**((i+1)/8)] seconds, so i is negative below one second. Its middle differs by at
# most 4.4 % from each value in it. It is index i of OpenTelemetry's exponential histograms at scale 3, and index i + 1
# of Prometheus' native histograms of schema 3. All agents have the same buckets, so that their counts can be added.
BUCKETS_PER_DOUBLING = 8
_US_PER_S = 1_000_000


def bucket_of(latency_us: float) -> int:
    """Return the bucket of a latency in µs; less than 1 µs counts as 1 µs."""
    return math.ceil(math.log2(max(latency_us, 1.0) / _US_PER_S) * BUCKETS_PER_DOUBLING) - 1


def bucket_middle_us(bucket: int) -> float:
    """Return the middle of a bucket in µs, within 4.4 % of every value in it."""
    upper: float = 2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING)
    return 2 * _US_PER_S * upper / (2 ** (1 / BUCKETS_PER_DOUBLING) + 1)
