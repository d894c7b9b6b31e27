"""The event schema: declares the events that an agent writes to the events topic.

One declaration per field gives the JSON, the Spark schema and docs/reference/events.md. An event is one JSON object on
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
        Field("start_time", "long", "start of the process, µs since epoch; tells processes with the same pid apart"),
        Field("comm", "string", "command name of the process's main thread"),
        Field("exe", "string", "path of the executable; null when the process ended before it was read"),
        Field(
            "cmdline",
            "string",
            "command line, arguments separated by spaces, cut at 1,024 characters, for ended processes at 92 bytes; "
            "*** for values whose names mark them as secrets; null with `--cmdline off`",
        ),
        Field("uid", "long", "real user id"),
        Field("cgroup", "string", "path of the cgroup below its mount point"),
        Field("cgroup_id", "long", "the kernel's id of the cgroup"),
        Field("container_id", "string", "64 hexadecimal digits, from the cgroup path"),
        Field(
            "runtime", "string", "docker, containerd, cri-o, podman or systemd (a service unit), from the cgroup path"
        ),
        Field("unit", "string", "systemd unit, if the cgroup is that of one"),
        Field("pod_uid", "string", "Kubernetes pod uid, from the cgroup path"),
        Field("pod", "string", "Kubernetes pod name"),
        Field("namespace", "string", "Kubernetes namespace"),
        Field("labels", Strings(), "labels of the pod: the first 16 in alphabetical order, and at most 1 KiB of them"),
        Field(
            "owner_kind",
            "string",
            "kind of the pod's owner: Deployment, StatefulSet, DaemonSet, Job, CronJob or another",
        ),
        Field("owner_name", "string", "name of the pod's owner"),
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
    Field("seq", "long", "number of the event within agent_id, from 0; shows gaps and duplicates"),
    Field("side", "string", "client or server: the end of the connection that this agent watched"),
    Field("flow_id", "string", "16 hexadecimal digits, the same at both ends, also across NAT; null if unknown"),
    Field(
        "conn_id",
        "string",
        "id of this end of the connection, unique within agent_id; null: the flow sums all connections of one side and "
        "API that exceed the bound of the table, see flow_limit",
    ),
    Field("local", "string", "address:port of the watched end"),
    Field("peer", "string", "address:port of the far end as the watched end sees it"),
    Field("netns", "long", "inode of the network namespace"),
    Field("cluster_id", "string", "Kafka cluster id; null: not seen"),
    Field("broker_id", "long", "Kafka broker id; null: not seen"),
    Field("workload", WORKLOAD, "the process that owns the watched end"),
    Field("client", CLIENT, "the Kafka client of the connection"),
    Field(
        "opaque",
        "string",
        "tls: encrypted, so the payload is not decoded; unknown: bytes that are not Kafka, or TCP "
        "urgent data, which Kafka never sends; else null",
    ),
)

API = (
    Field("api", "string", "Kafka's name of the API; null: internal, or responses whose request was not seen"),
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
            "topic id, 32 hexadecimal digits, if the API version has it; if topic is null, too, the entry sums all "
            "topics that exceed the bound of the table, see topic_limit",
        ),
        Field("requests", "long", "requests for the topic, by name, by id or by fetch session (KIP-227)"),
        Field("partitions", "long", "distinct partitions named in the interval"),
        Field("records", "long", "records in the record batches that could be read"),
        Field("batches", "long", "record batches that could be read"),
        Field("bytes", "long", "size of all record sets"),
        Field(
            "uncounted_bytes",
            "long",
            "part of bytes whose batches could not be read (sendfile); records excludes it",
        ),
        Field("codecs", Counts(), "codec of the last batch (none, gzip, snappy, lz4 or zstd) to count of record sets"),
        Field("errors", Counts(), "error code to count, without code 0"),
    )
)

FLOW = (
    Field("since", "long", "start of the interval, µs since epoch"),
    *API,
    Field("internal", "boolean", "true: traffic of a kafka-probe agent itself, without API and topics"),
    Field("requests", "long", "requests seen"),
    Field("responses", "long", "responses seen"),
    Field("request_bytes", "long", "size of the requests with their length prefix"),
    Field("response_bytes", "long", "size of the responses with their length prefix"),
    Field("errors", Counts(), "error code to count, over all levels of the responses, without code 0"),
    Field(
        "latency", Counts(), f"time from request to response, {LATENCY}; of Fetch and ShareFetch: responses with data"
    ),
    Field("latency_empty", Counts(), f"the same of Fetch and ShareFetch responses without data, {LATENCY}"),
    Field("throttle_ms", "long", "sum of the throttle times in the responses"),
    Field("acks", "long", "Produce: 0, 1, or -1 for all in-sync replicas; null: the requests differ"),
    Field(
        "group",
        "string",
        "consumer group in the requests; of APIs without one, such as Fetch, the group in other requests of the client",
    ),
    Field("transactional_id", "string", "transactional id; null: the requests have none, or different ones"),
    Field(
        "replica_id", "long", "broker or controller that sent the requests as a replica; null: the client is no replica"
    ),
    Field("topics", ListOf(FLOW_TOPIC), "counts by topic"),
)

REQUEST_TOPIC = Struct(
    (
        Field("topic", "string", "topic name"),
        Field("topic_id", "string", "topic id, 32 hexadecimal digits"),
        Field("partition", "long", "partition index"),
        Field(
            "offset", "long", "requested offset (Fetch), committed offset (OffsetCommit) or assigned offset (Produce)"
        ),
        Field("high_watermark", "long", "Fetch: end of the replicated records; higher than offset: the consumer lags"),
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
    Field("group_protocol", "string", "protocol type of the group: consumer, connect or share"),
    Field("assignor", "string", "partition assignor"),
    Field("member_id", "string", "id of the group's member"),
    Field("instance_id", "string", "id of a static member (KIP-345)"),
    Field("generation", "long", "generation of the group"),
    Field("member_epoch", "long", "epoch of the member (KIP-848)"),
    Field("transactional_id", "string", "transactional id"),
    Field("producer_id", "long", "producer id"),
    Field("producer_epoch", "long", "producer epoch"),
    Field("acks", "long", "Produce: 0, 1, or -1 for all in-sync replicas"),
    Field("isolation_level", "long", "0: also records of open transactions; 1: committed records only"),
    Field("replica_id", "long", "broker that fetches as a replica; -1: a consumer"),
    Field("session_id", "long", "fetch session (KIP-227); 0: none"),
    Field("session_epoch", "long", "number of the request in its session; 0: a new session; -1: no session"),
    Field("max_wait_ms", "long", "longest time that the broker may wait for min_bytes"),
    Field("min_bytes", "long", "least bytes of a response to Fetch before max_wait_ms is over"),
    Field("max_bytes", "long", "most bytes of a response to Fetch"),
    Field("timeout_ms", "long", "longest time that the broker may take"),
    Field(
        "session_timeout_ms", "long", "time without heartbeats after which the broker removes a member from its group"
    ),
    Field("rebalance_timeout_ms", "long", "longest time that a member may take to join a rebalance"),
    Field("heartbeat_interval_ms", "long", "interval at which a member has to send heartbeats"),
    Field("transaction_timeout_ms", "long", "longest time that a transaction may stay open"),
    Field("mechanism", "string", "SASL mechanism"),
)

REQUEST = (
    *API,
    Field("correlation_id", "long", "correlation id"),
    Field("request_bytes", "long", "size of the request with its length prefix"),
    Field("response_bytes", "long", "size of the response with its length prefix; null: no response (acks=0)"),
    Field("latency_us", "long", "time from request to response, µs"),
    Field("throttle_ms", "long", "throttle time in the response"),
    Field("group", "string", "consumer group, as in flow"),
    *EXCHANGED,
    Field("status", "string", "complete, or why the frames were not decoded in full"),
    Field("stopped_at", "string", "path of the field at which decoding ended early"),
    Field("errors", Counts(), "error code to count, without code 0"),
    Field("error_names", Counts(), "Kafka's name of the error code to count, without NONE"),
    Field("topics", ListOf(REQUEST_TOPIC), "one entry per topic and partition"),
)

NAT = Struct(
    (
        Field("local", "string", "address:port of the watched end as the far end sees it"),
        Field("peer", "string", "address:port of the far end on its own host"),
    )
)

OPEN = (
    Field(
        "found",
        "string",
        "start: seen from its first byte; midstream: opened earlier; listed: open when the agent started and without "
        "payload since then, so its flow_id is not known yet",
    ),
    Field("handshake_us", "long", "duration of TCP's handshake, µs; null: it ended too long ago to be known"),
    Field("cookie", "long", "the kernel's cookie of the socket, as `ss -e` shows it; null: it has none yet"),
    Field("nat", NAT, "the ends beyond this host's NAT; null: not translated here, or not looked up (`--conntrack`)"),
)

CLOSE = (
    Field("found", "string", "as in open"),
    Field(
        "closing_ts",
        "long",
        "time when this end began to close, µs since epoch; ts: time when both directions were closed",
    ),
    Field("closed_by", "string", "local, peer or unknown: which end closed first"),
    Field("how", "string", "fin, rst_sent, rst_received, timeout or unknown"),
    Field("idle_us", "long", "time from the last payload in either direction until this end began to close, µs"),
    Field(
        "silence_us",
        "long",
        "idle age, µs: idle_us, or the silence before the last payload sent if the peer did not acknowledge it",
    ),
    Field("received_idle_us", "long", "the same from the last payload received; null: none was received"),
    Field("age_us", "long", "time since the connection was first seen, µs; a lower bound if found is not start"),
    Field("last_api", "string", "API of the last request"),
    Field("last_request_bytes", "long", "size of the last request on the wire, bytes; null: none was seen"),
    Field("last_acks", "long", "0: the last request was a Produce with acks=0, which has no response; else null"),
    Field("in_flight", "long", "requests without a response"),
    Field(
        "auth_error",
        "long",
        "error code of a SaslHandshake response, such as 33: mechanism not enabled; null: no error",
    ),
    Field("sent_bytes", "long", "payload bytes that the watched end sent, as TCP counts them"),
    Field("received_bytes", "long", "payload bytes that the watched end received, likewise"),
    Field("unacked_bytes", "long", "sent bytes that the peer never acknowledged"),
    Field("retransmits", "long", "retransmitted segments"),
    Field(
        "unanswered_retransmits", "long", "consecutive retransmissions before the close without an answer of the peer"
    ),
    Field("srtt_us", "long", "smoothed round-trip time, µs"),
    Field("keepalive", "boolean", "the kernel probes the peer after a long silence (SO_KEEPALIVE)"),
    Field("user_timeout_ms", "long", "TCP_USER_TIMEOUT; null: not set"),
    Field("owner_exiting", "boolean", "true: the exit of the process closed the socket, not a call"),
    Field("owner_ended", "boolean", "true: a second or two after this end was closed, the process had exited"),
    Field(
        "listener_closed_us",
        "long",
        "server side: time since the listening socket of its port was closed, µs; 0: up to a second later; null: open, "
        "or closed before the agent started, before those of 256 other ports or by the exit of its process",
    ),
)

RESET = (Field("direction", "string", "sent: this host answered a segment for which it had no socket"),)

NAMED_TOPIC = Struct(
    (
        Field("topic", "string", "topic name"),
        Field(
            "topic_id",
            "string",
            "topic id, 32 hexadecimal digits; its name changes only if a broker's file contradicts a message",
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
            "the process that owns the watched ends, without cmdline and labels; all null: any process",
        ),
        Field("local", "string", "address:port of the watched ends; of client ends without the port"),
        Field(
            "peer_network",
            "string",
            "network of the far ends, such as 10.1.2.0/24 or 2001:db8::/64; null: sum of the smallest groups",
        ),
        Field("count", "long", "open connections"),
    )
)

AGENT = (
    Field("since", "long", "start of the interval, µs since epoch"),
    Field(
        "complete_since",
        "long",
        "closes or resets before it may have been lost, µs since epoch; null: none were lost",
    ),
    Field("complete_until", "long", "all closes and resets before it have been sent, µs since epoch"),
    Field("connections", "long", "connections open now"),
    Field("open", ListOf(OPEN_NOW), "the same, counted in groups"),
    Field(
        "other",
        Counts(),
        "opens, closes and resets of the interval without an event, see open_limit and close_limit: "
        "open/SIDE, close/SIDE/HOW/CLOSED_BY or reset to count",
    ),
    Field("losses", Counts(), "losses since the start, by reason; normally all are zero"),
    Field("counters", Counts(), "counters since the start: samples, frames, events and others"),
    Field(
        "shed", "string", "detail that is left out above `--cpu-limit`: requests, or topics and requests; null: none"
    ),
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
