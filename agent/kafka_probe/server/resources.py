"""The resources of /api/v1: connections, clients and topics, each with the fields of its rows as in the events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from kafka_probe.connections.connection import Connection
from kafka_probe.events import (
    CONNECTION,
    KINDS,
    ClientFacts,
    Counts,
    Field,
    FlowTopic,
    ListOf,
    Struct,
    WallClock,
    fields_of,
)
from kafka_probe.server.client_table import ClientEntry, ClientKey
from kafka_probe.server.label_tables import Labels
from kafka_probe.server.query import JsonRow, Resource
from kafka_probe.server.traffic import TopicCounters
from kafka_probe.server.view import View


def _named(fields: Iterable[Field], *names: str) -> tuple[Field, ...]:
    by_name = {field.name: field for field in fields}
    return tuple(by_name[name] for name in names)


def _connection(connection: Connection) -> JsonRow:
    identity = connection.identity
    more = {
        "found": connection.found,
        "handshake_us": identity.handshake_us,
        "cookie": identity.cookie,
        "keepalive_s": connection.keepalive_s,
    }
    return {"since": WallClock.now().epoch_us(connection.opened_ns), **connection.facts(), **more}


def _client(item: tuple[ClientKey, ClientEntry]) -> JsonRow:
    key, client = item
    return {
        "id": key.number,
        "since": client.since,
        "ts": client.ts,
        "side": key.side,
        "address": key.address,
        "type": client.type,
        "client": {"id": key.id, "software_name": key.software_name, "software_version": key.software_version},
        "group": client.group,
        "workload": client.workload,
        "requests": client.requests,
        "request_bytes": client.request_bytes,
        "response_bytes": client.response_bytes,
        "requests_per_min": round(client.last_requests * 60e6 / client.last_interval_us),
        "records": client.records,
        "errors": dict(client.errors),
        "apis": [{"api": api, **asdict(use)} for api, use in sorted(client.apis.items())],
        "topics": [{"topic": topic, **asdict(use)} for topic, use in sorted(client.topics.items())],
    }


def _topics(view: View) -> Sequence[tuple[Labels, list[tuple[Labels, TopicCounters]]]]:
    """Return the sums of all workloads, grouped by side, topic and API."""
    found: dict[Labels, list[tuple[Labels, TopicCounters]]] = defaultdict(list)
    for (side, workload, comm, api, topic), named in view.traffic.topics:
        found[side, topic, api].append(((workload, comm), named))
    return list(found.items())


def _topic(item: tuple[Labels, list[tuple[Labels, TopicCounters]]]) -> JsonRow:
    (side, topic, api), used = item
    rows = [named for _, named in used]
    return {
        "since": min(row.since for row in rows),
        "ts": max(row.ts for row in rows),
        "side": side,
        "topic": topic,
        "topic_id": next((row.topic_id for row in rows if row.topic_id), None),
        "api": api,
        "requests": sum(row.requests for row in rows),
        "records": sum(row.records for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "uncounted_bytes": sum(row.uncounted_bytes for row in rows),
        "errors": sum((row.errors for row in rows), Counter[str]()),
        "workloads": [{"workload": workload, "comm": comm} for (workload, comm), _ in used],
    }


_API_USE = (
    Field("api", "string", "name of the API"),
    Field("lowest", "long", "lowest version of the requests"),
    Field("highest", "long", "highest version of the requests"),
    Field("requests", "long", "requests seen"),
)
_TOPIC_USE = (
    Field("topic", "string", "name, or id"),
    *(
        Field(f"{use}_{what}", "long", f"{doc} that the client {used}")
        for use, used in (("written", "wrote"), ("read", "read"))
        for what, doc in (
            ("bytes", "size of the record sets"),
            ("records", "records in the batches that could be read"),
        )
    ),
)
_TOPIC = Field(
    "topic", "string", "topic name, or the topic id while its name is unknown; other: topics beyond the limit"
)

RESOURCES = (
    Resource(
        "/api/v1/connections",
        "List the open connections.",
        (
            Field("since", "long", "time when it was first seen, µs since epoch; it may be older"),
            *_named(CONNECTION, "side", "flow_id", "conn_id", "local", "peer", "netns", "cluster_id"),
            *_named(CONNECTION, "workload", "client", "opaque"),
            *_named(KINDS["open"], "found", "handshake_us", "cookie", "keepalive_s"),
        ),
        lambda view: view.agent.connections(),
        _connection,
        lambda connection: connection.internal,
    ),
    Resource(
        "/api/v1/clients",
        "List the clients of the last hour with their topics; clients that use TLS are missing.",
        (
            Field("id", "string", "16 hexadecimal digits, the same as long as the agent runs"),
            Field("since", "long", "start of the first interval in which it was active, µs since epoch"),
            Field("ts", "long", "end of the last interval in which it was active, µs since epoch"),
            *_named(CONNECTION, "side"),
            Field("address", "string", "address of the client's host, as the watched end sees it"),
            Field("type", "string", "producer, consumer, producer+consumer, broker, admin, internal or other"),
            Field("client", Struct(fields_of(ClientFacts)), "the Kafka client"),
            *_named(KINDS["flow"], "group"),
            *_named(CONNECTION, "workload"),
            *_named(KINDS["flow"], "requests", "request_bytes", "response_bytes"),
            Field("requests_per_min", "long", "requests per minute in the last interval in which it was active"),
            *_named(fields_of(FlowTopic), "records"),
            Field("errors", Counts(), "name of the error code to count"),
            Field("apis", ListOf(Struct(_API_USE)), "the APIs that it used"),
            Field("topics", ListOf(Struct(_TOPIC_USE)), "the first 1,000 topics in its requests"),
        ),
        lambda view: tuple(view.clients),
        _client,
        lambda item: item[1].internal,
    ),
    Resource(
        "/api/v1/topics",
        "List the traffic of each topic by side and API, with the workloads that cause it.",
        (
            Field("since", "long", "start of the first interval with a request for it, µs since epoch"),
            Field("ts", "long", "end of the last interval with a request for it, µs since epoch"),
            *_named(CONNECTION, "side"),
            _TOPIC,
            *_named(fields_of(FlowTopic), "topic_id"),
            *_named(KINDS["flow"], "api"),
            *_named(fields_of(FlowTopic), "requests", "records", "bytes", "uncounted_bytes"),
            Field("errors", Counts(), "name of the error code to count"),
            Field(
                "workloads",
                ListOf(
                    Struct(
                        (
                            Field("workload", "string", "owner of the pod, pod, container or unit, as in the metrics"),
                            Field("comm", "string", "command name of its main thread"),
                        )
                    )
                ),
                "workloads that use the topic",
            ),
        ),
        _topics,
        _topic,
    ),
)
