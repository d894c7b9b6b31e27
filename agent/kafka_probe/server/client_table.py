"""The clients of the last hour, with the traffic and the topics of each. Only the server's thread uses the table.

A client is all connections of one program with one client id, as in connections/clients.py. The client side identifies
it by its process, the server side by its host and its client library. When memory runs out, the table drops the clients
that have been silent longest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Flag
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

from kafka_probe.connections.activity import TOPIC_NAME
from kafka_probe.events import Event, FlowEvent, FlowTopic, WorkloadFacts
from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.facts import text_bytes
from kafka_probe.server.traffic import ERRORS, count_errors, used_topics
from kafka_probe.workloads import workload_bytes

SILENT_US = 3600 * 1_000_000
TOPICS_KEPT = 1000  # per client: more than a real client uses, fewer than a hostile one could name
_CLIENT_BYTES, _TOPIC_BYTES, _API_BYTES = 1792, 256, 320  # of a client, one of its topics and one API, without texts


class RequestKind(Flag):
    """Kinds of requests that a client has sent."""

    NOTHING = 0
    WRITE = 1
    READ = 2
    ADMINISTRATE = 4
    REPLICATE = 8


# APIs that only brokers and controllers use among themselves, and name prefixes of APIs that only admin tools use.
_NAMES = """
    AllocateProducerIds AlterPartition AssignReplicasToDirs BeginQuorumEpoch BrokerHeartbeat BrokerRegistration
    ControlledShutdown ControllerRegistration EndQuorumEpoch FetchSnapshot LeaderAndIsr StopReplica UpdateMetadata
    UpdateRaftVoter Vote WriteTxnMarkers
"""
_OF_BROKERS = frozenset(_NAMES.split())
_OF_ADMINISTRATORS = ("Alter", "Create", "Delete", "Describe", "Elect", "IncrementalAlter")


class ClientKey(NamedTuple):
    """The identity of a client. address: of the client's host without port, as on the watched end's socket."""

    side: str
    pid: int | None
    start_time: int | None
    address: str
    id: str | None
    software_name: str | None
    software_version: str | None

    @property
    def number(self) -> str:
        """Return 16 hexadecimal digits that name the client as long as the agent runs."""
        return blake2b(repr(tuple(self)).encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class ClientProcess:
    """A process with clients. workload: its object in their last flow; size: memory of that object in bytes."""

    workload: WorkloadFacts
    size: int
    clients: int = 0


@dataclass(slots=True)
class TopicUse:
    """The record sets that a client wrote to a topic and read from it: their bytes and records."""

    written_bytes: int = 0
    written_records: int = 0
    read_bytes: int = 0
    read_records: int = 0


@dataclass(slots=True)
class ApiUse:
    """A client's requests of an API, and the lowest and the highest version of them."""

    lowest: int
    highest: int
    requests: int = 0


@dataclass(slots=True)
class ClientEntry:
    """The traffic of one client. since, ts: start of its first and end of its last active interval, µs since epoch.

    last_seen_us: time of its last flow, as the sum of the agent's intervals until then, so clock steps have no effect.
    last_requests, last_interval_us: its requests in the last active interval, and the length of that.
    """

    process: ClientProcess
    since: int
    ts: int = 0
    last_seen_us: int = 0
    internal: bool = False
    role: RequestKind = RequestKind.NOTHING
    group: str | None = None
    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    records: int = 0
    last_requests: int = 0
    last_interval_us: int = 1
    errors: Counter[str] = field(default_factory=Counter)
    topics: dict[str, TopicUse] = field(default_factory=dict)
    apis: dict[str, ApiUse] = field(default_factory=dict)
    topics_bytes: int = 0

    @property
    def workload(self) -> WorkloadFacts:
        return self.process.workload

    @property
    def size(self) -> int:
        """Return the memory of its group, topics and APIs in bytes: the part that changes while the table keeps it."""
        return self.topics_bytes + _API_BYTES * len(self.apis) + text_bytes(self.group or "")

    def add(self, flow: FlowEvent) -> None:
        if flow["ts"] != self.ts:
            self.last_requests, self.last_interval_us = 0, max(flow["ts"] - flow["since"], 1)
        self.last_requests += flow["requests"]
        self.ts = flow["ts"]
        self.internal = flow["internal"]
        self.role |= RequestKind.REPLICATE if flow["replica_id"] is not None else _role(flow["api"] or "")
        self.group = flow["group"] or self.group
        self.requests += flow["requests"]
        self.request_bytes += flow["request_bytes"]
        self.response_bytes += flow["response_bytes"]
        count_errors(self.errors, flow["errors"], ERRORS)
        api, version = flow["api"], flow["api_version"]
        if api is not None and version is not None:
            use = self.apis.setdefault(api, ApiUse(version, version))
            use.lowest, use.highest = min(use.lowest, version), max(use.highest, version)
            use.requests += flow["requests"]
        for topic in used_topics(flow):
            self.records += topic["records"]
            self._add_topic(topic, _role(api or ""))

    def _add_topic(self, topic: FlowTopic, role: RequestKind) -> None:
        # None: topics that did not fit into the event. A name that no broker allows may take 1.5 KB of JSON.
        name = topic["topic"] or topic["topic_id"] or ""
        if name not in self.topics:
            if not TOPIC_NAME.fullmatch(name) or len(self.topics) == TOPICS_KEPT:
                return
            self.topics[name] = TopicUse()
            self.topics_bytes += _TOPIC_BYTES + text_bytes(name)
        use = self.topics[name]
        if role is RequestKind.WRITE:
            use.written_bytes += topic["bytes"]
            use.written_records += topic["records"]
        elif role is RequestKind.READ:
            use.read_bytes += topic["bytes"]
            use.read_records += topic["records"]

    @property
    def type(self) -> str:
        """Return the client type: internal, broker, producer, consumer, producer+consumer, admin or other."""
        if self.internal:
            return "internal"
        if RequestKind.REPLICATE in self.role:
            return "broker"
        does = [
            name
            for role, name in ((RequestKind.WRITE, "producer"), (RequestKind.READ, "consumer"))
            if role in self.role
        ]
        return "+".join(does) or ("admin" if RequestKind.ADMINISTRATE in self.role else "other")


class ClientTable:
    """Holds the clients of the last hour within `limit_bytes`, and drops those that have been silent longest."""

    def __init__(self, limit_bytes: int = DEFAULT.clients_bytes) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._processes: dict[tuple[int | None, int | None], ClientProcess] = {}  # by pid and start
        self._clients: OrderedDict[ClientKey, ClientEntry] = OrderedDict()  # in the order of their last flows
        self._passed_us = 0

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            if event["kind"] == "flow" and event["conn_id"]:
                self._add(event)
            elif event["kind"] == "agent":
                self._passed_us += event["ts"] - event["since"]
                self._forget(self._passed_us - SILENT_US)

    def __iter__(self) -> Iterator[tuple[ClientKey, ClientEntry]]:
        return iter(self._clients.items())

    def _add(self, flow: FlowEvent) -> None:
        key, process = _key(flow), self._process(flow["workload"])
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientEntry(process, flow["since"])
            process.clients += 1
            self.held_bytes += _key_bytes(key) + client.size
        else:
            self._clients.move_to_end(key)
        before = client.size
        client.add(flow)
        self.held_bytes += client.size - before
        client.last_seen_us = self._passed_us
        while self.held_bytes > self._limit_bytes:
            self._drop_oldest()

    def _process(self, workload: WorkloadFacts) -> ClientProcess:
        """Return the process of a `workload` object, which replaces an older one of the same process.

        The workload resolver counts these bytes in its budget, too. Without the count here, clients could use it up.
        """
        key = workload["pid"], workload["start_time"]
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = ClientProcess(workload, workload_bytes(workload))
            self.held_bytes += process.size
        elif workload != process.workload:
            self.held_bytes -= process.size
            process.workload, process.size = workload, workload_bytes(workload)
            self.held_bytes += process.size
        return process

    def _forget(self, before_us: int) -> None:
        while self._clients and next(iter(self._clients.values())).last_seen_us < before_us:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, client = self._clients.popitem(last=False)
        self.held_bytes -= _key_bytes(key) + client.size
        client.process.clients -= 1
        if not client.process.clients:
            del self._processes[key.pid, key.start_time]
            self.held_bytes -= client.process.size


def _key_bytes(key: ClientKey) -> int:
    return _CLIENT_BYTES + sum(text_bytes(part) for part in key if isinstance(part, str))


def _key(flow: FlowEvent) -> ClientKey:
    workload, client = flow["workload"], flow["client"]
    # Only flows without a connection, which the table leaves out, have no addresses.
    address = (flow["local" if flow["side"] == "client" else "peer"] or "").rpartition(":")[0]
    process = workload["pid"], workload["start_time"]
    return ClientKey(flow["side"], *process, address, client["id"], client["software_name"], client["software_version"])


@cache
def _role(api: str) -> RequestKind:
    match api:
        case "Produce":
            return RequestKind.WRITE
        case "Fetch" | "ShareFetch":
            return RequestKind.READ
        case _ if api in _OF_BROKERS:
            return RequestKind.REPLICATE
        case _ if api.startswith(_OF_ADMINISTRATORS):
            return RequestKind.ADMINISTRATE
        case _:
            return RequestKind.NOTHING
