"""The metrics: one declaration of each gives its samples at /metrics and its line in the documentation.

They follow Prometheus' conventions: base units, and `_total` for counters, which start at 0 with the agent. This module
never counts anything itself.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kafka_probe.server.label_tables import Labels
from kafka_probe.server.traffic import Traffic
from kafka_probe.server.view import View

PREFIX = "kafka_probe_"

MetricSamples = Iterable[tuple[Labels, Any]]
"""Pairs of label values and a value: a number, or a Histogram for a metric of that kind."""

Rows = Callable[[Traffic], MetricSamples]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its declaration and the function that reads its samples. The name is without the prefix."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    doc: str
    read: Callable[[View], MetricSamples]


def sums(prefix: str, labels: tuple[str, ...], rows: Rows, fields: Mapping[str, str]) -> Iterator[Metric]:
    """Yield a counter for each field of the rows, and one for their errors."""
    for name, doc in fields.items():
        yield Metric(f"{prefix}{name}_total", "counter", labels, doc, each(rows, name))

    def errors(view: View) -> MetricSamples:
        return (((*labels, name), n) for labels, row in rows(view.traffic) for name, n in row.errors.items())

    doc = "errors in responses by Kafka's name, over all levels of the responses"
    yield Metric(f"{prefix}errors_total", "counter", (*labels, "error"), doc, errors)


def each(rows: Rows, name: str, per: int = 1) -> Callable[[View], MetricSamples]:
    """Return a function that reads one field of the rows. per: units of the field per unit of the metric."""
    return lambda view: ((labels, getattr(row, name) / per) for labels, row in rows(view.traffic))


def histogram(name: str) -> Callable[[View], MetricSamples]:
    """Return a function that reads a histogram of each workload and API, without empty ones."""

    def read(view: View) -> MetricSamples:
        found = ((labels, getattr(row, name)) for labels, row in view.traffic.workloads)
        return ((labels, histogram) for labels, histogram in found if any(histogram.counts))

    return read


def reported(name: str, per: int = 1) -> Callable[[View], MetricSamples]:
    """Return a function that reads a number of the last `agent` event; a null gives no sample."""

    def read(view: View) -> MetricSamples:
        value = view.traffic.agent.get(name)
        return () if value is None else [((), value / per)]

    return read


def counted(name: str) -> Callable[[View], MetricSamples]:
    """Return a function that reads a counter of the last `agent` event; a counter absent there gives no sample."""

    def read(view: View) -> MetricSamples:
        counters = view.traffic.agent.get("counters", {})
        return [((), counters[name])] if name in counters else ()

    return read


def build(view: View) -> MetricSamples:
    agent = view.traffic.agent
    return (
        [((agent["version"], platform.python_version(), agent["kernel"], agent["backend"] or ""), 1)] if agent else ()
    )


def label_sets(view: View) -> MetricSamples:
    return (((name,), len(table)) for name, table in view.tables().items())


def full_tables(view: View) -> MetricSamples:
    return (((name,), table.full) for name, table in view.tables().items())


def apis(traffic: Traffic) -> MetricSamples:
    return traffic.apis.items()


def workloads(traffic: Traffic) -> MetricSamples:
    return traffic.workloads


def clients(traffic: Traffic) -> MetricSamples:
    return traffic.clients


def topics(traffic: Traffic) -> MetricSamples:
    return traffic.topics


def client_topics(traffic: Traffic) -> MetricSamples:
    return traffic.client_topics


def lags(name: str) -> Callable[[View], MetricSamples]:
    """Return a function that reads a number of the groups' lags."""
    return lambda view: ((labels, getattr(lag, name)) for labels, lag in view.lags)


API = ("side", "api")
OWNER = ("side", "workload", "comm")
CLIENT = ("side", "client_id", "library", "group")
OF_CLIENT = ("side", "client_id", "group", "api", "topic")
END = ("how", "closed_by")
EXCHANGED = {
    "requests": "requests seen",
    "responses": "responses seen",
    "request_bytes": "size of the requests with their length prefix",
    "response_bytes": "size of the responses with their length prefix",
    "records": "records in the record batches that could be read; none while topics are shed",
}
NAMED = {
    "requests": "requests for the topic, by name, by id or by fetch session",
    "records": "records in the record batches that could be read",
    "bytes": "size of all record sets",
    "uncounted_bytes": "part of topic_bytes_total whose records could not be counted (sendfile)",
}
LAGS = {
    "records": (
        "total",
        "records by which a group is behind, in group_lag_partitions partitions; absent 10 minutes after it stopped",
    ),
    "records_max": ("most", "the same in the partition that is farthest behind"),
    "partitions": ("partitions", "partitions of which this agent knows the end and the group's position"),
}
"""Field and description for each metric of lags, by its name."""
COUNTED = {
    "requests": ("kernel_requests_total", "requests that the BPF programs saw"),
    "responses": ("kernel_responses_total", "responses that the BPF programs matched with a request"),
    "samples": ("kernel_samples_total", "samples that the BPF programs wrote for the agent"),
    "connections": ("kernel_connections_total", "connections that the BPF programs tracked"),
    "rejected": ("kernel_rejected_total", "connections that the BPF programs classified as TLS or not Kafka"),
    "shapes_reset": (
        "shapes_reset_total",
        "times that the decoder dropped all shapes of frames, because there were too many",
    ),
    "topics_named": ("topics_named_total", "topic ids that got a name"),
    "broker_files_unreadable": ("broker_files_unreadable_total", "brokers whose files the agent may not read"),
    "events": ("events_total", "events that the agent created"),
    "sink_events": ("sink_events_total", "events that the sink delivered"),
    "sink_bytes": ("sink_bytes_total", "size of the events that the sink delivered"),
    "sink_waiting_bytes": ("sink_waiting_bytes", "size of the events that wait for delivery in memory"),
    "sink_spooled_bytes": ("sink_spooled_bytes", "bytes on disk of the events that wait for delivery"),
    "sink_spool_failures": ("sink_spool_failures_total", "batches of events that could not be written to disk"),
}
"""Name and description of the metric for each counter of the `agent` event."""
SHED = {"requests": ("requests", "topics"), "topics": ("topics",)}
"""Values of `shed` in the `agent` event while a detail is left out, by detail."""

METRICS = (
    *sums("", API, apis, EXCHANGED),
    *sums("workload_", (*OWNER, "api"), workloads, EXCHANGED),
    Metric(
        "workload_throttle_seconds_total",
        "counter",
        (*OWNER, "api"),
        "sum of the throttle times in the responses",
        each(workloads, "throttle_ms", 1000),
    ),
    Metric(
        "workload_latency_seconds",
        "histogram",
        (*OWNER, "api"),
        "time from request to response, within 4.4 %; of Fetch and ShareFetch: responses with data",
        histogram("latency"),
    ),
    Metric(
        "workload_empty_fetch_seconds",
        "histogram",
        (*OWNER, "api"),
        "time from request to response of Fetch and ShareFetch without data, within 4.4 %",
        histogram("latency_empty"),
    ),
    *sums("client_", CLIENT, clients, EXCHANGED),
    Metric(
        "client_throttle_seconds_total",
        "counter",
        CLIENT,
        "sum of the throttle times in the responses",
        each(clients, "throttle_ms", 1000),
    ),
    *sums("topic_", (*OWNER, "api", "topic"), topics, NAMED),
    *(
        Metric(f"client_topic_{name}_total", "counter", OF_CLIENT, NAMED[name], each(client_topics, name))
        for name in ("requests", "records", "bytes")
    ),
    *(
        Metric(f"group_lag_{name}", "gauge", ("cluster", "group", "topic"), doc, lags(field))
        for name, (field, doc) in LAGS.items()
    ),
    Metric(
        "internal_requests_total",
        "counter",
        ("side",),
        "requests of kafka-probe's own clients; of the other metrics only kernel_requests_total counts them",
        lambda view: view.traffic.internal_requests.items(),
    ),
    Metric("connections", "gauge", OWNER, "open connections", lambda view: view.traffic.open.items()),
    Metric(
        "connections_opened_total",
        "counter",
        ("side",),
        "connections seen from their first byte, with kafka-probe's own",
        lambda view: view.traffic.opened.items(),
    ),
    Metric(
        "connections_closed_total",
        "counter",
        ("side", *END),
        "closed connections, without kafka-probe's own; how: fin, rst_sent, rst_received, timeout or unknown; "
        "closed_by: local, peer or unknown",
        lambda view: view.traffic.closed.items(),
    ),
    Metric(
        "workload_connections_closed_total",
        "counter",
        (*OWNER, *END),
        "closed connections by workload",
        each(lambda traffic: traffic.closes, "count"),
    ),
    Metric(
        "resets_sent_total",
        "counter",
        (),
        "resets that the host sent in answer to segments without a socket",
        lambda view: [((), view.traffic.resets)],
    ),
    Metric(
        "lost_total",
        "counter",
        ("reason",),
        "losses by reason, see Losses",
        lambda view: (((reason,), n) for reason, n in view.traffic.agent.get("losses", {}).items()),
    ),
    *(
        Metric(name, "counter" if name.endswith("_total") else "gauge", (), doc, counted(counter))
        for counter, (name, doc) in COUNTED.items()
    ),
    Metric(
        "shed",
        "gauge",
        ("detail",),
        "1: the detail is left out to stay below --cpu-limit; else 0",
        lambda view: (((detail,), view.traffic.agent.get("shed") in at) for detail, at in SHED.items()),
    ),
    Metric("label_sets", "gauge", ("table",), "label sets of each table", label_sets),
    Metric(
        "label_sets_full",
        "gauge",
        ("table",),
        "1: some label sets have no space in the table, and count under `other`; else 0",
        full_tables,
    ),
    Metric(
        "label_sets_limit",
        "gauge",
        (),
        "most label sets of each table, see --metrics-series",
        lambda view: [((), view.traffic.limit)],
    ),
    Metric("cpu_seconds_total", "counter", (), "CPU time of the agent", reported("cpu_us", 1_000_000)),
    Metric(
        "kernel_seconds_total",
        "counter",
        (),
        "run time of the agent's BPF programs; absent unless measured, see --kernel-time",
        reported("kernel_us", 1_000_000),
    ),
    Metric("resident_memory_bytes", "gauge", (), "resident memory of the agent", reported("rss_bytes")),
    Metric(
        "start_time_seconds",
        "gauge",
        (),
        "start of the agent, seconds since epoch",
        lambda view: [((), view.started_s)],
    ),
    Metric(
        "last_interval_timestamp_seconds",
        "gauge",
        (),
        "end of the last interval, seconds since epoch",
        reported("ts", 1_000_000),
    ),
    Metric(
        "ready",
        "gauge",
        (),
        "1: attached, and the sink takes events, as in /readyz; else 0",
        lambda view: [((), not view.unready())],
    ),
    Metric(
        "build_info",
        "gauge",
        ("version", "python", "kernel", "backend"),
        "1, with the versions of agent, Python and kernel, and the backend, as labels",
        build,
    ),
)
