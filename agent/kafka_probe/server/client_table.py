"""Who writes and reads what: the clients of the last hour, by what tells them apart. Belongs to the server's thread.

A client is the connections of one program under one client id, as in connections/clients.py: on the client side by
its process, on the server side by the host that it comes from and its library. Those that spoke last are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag
from functools import cache
from typing import Any, NamedTuple

from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.facts import text_bytes
from kafka_probe.server.traffic import used_topics
from kafka_probe.workloads import workload_bytes

SILENT_US = 3600 * 1_000_000
TOPICS_KEPT = 1000  # of one client: more than one reads, fewer than a hostile one could name
_CLIENT_BYTES, _TOPIC_BYTES = 1536, 160  # what a client and a topic of it take besides texts


class Activity(Flag):
    """What a client was seen to do."""

    NOTHING = 0
    WRITE = 1
    READ = 2
    ADMINISTRATE = 4
    REPLICATE = 8


# What only brokers and controllers say to each other; and how names of what only administrators' tools say begin.
_NAMES = """
    AllocateProducerIds AlterPartition AssignReplicasToDirs BeginQuorumEpoch BrokerHeartbeat BrokerRegistration
    ControlledShutdown ControllerRegistration EndQuorumEpoch FetchSnapshot LeaderAndIsr StopReplica UpdateMetadata
    UpdateRaftVoter Vote WriteTxnMarkers
"""
_OF_BROKERS = frozenset(_NAMES.split())
_OF_ADMINISTRATORS = ("Alter", "Create", "Delete", "Describe", "Elect", "IncrementalAlter")


class ClientKey(NamedTuple):
    """What tells clients apart. address: of the client's host, as the watched end sees it."""

    side: str
    pid: int | None
    start_time: int | None
    address: str
    id: str | None
    software_name: str | None
    software_version: str | None


@dataclass(slots=True)
class ClientEntry:
    """What one client did. since, ts: start of the first and end of the last interval in which it spoke, in µs.

    heard_us: when it spoke last, of the time that passed by the agent's intervals, which no step of a clock moves.
    """

    workload: Mapping[str, Any]
    since: int
    ts: int = 0
    heard_us: int = 0
    internal: bool = False
    role: Activity = Activity.NOTHING
    group: str | None = None
    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    records: int = 0
    topics: set[str] = field(default_factory=set)
    topics_bytes: int = 0

    @property
    def size(self) -> int:
        """What it takes of memory and changes while it lives, in bytes, without its workload."""
        return self.topics_bytes + text_bytes(self.group or "")

    def add(self, flow: Mapping[str, Any]) -> None:
        self.workload = flow["workload"]
        self.ts = flow["ts"]
        self.internal = flow["internal"]
        self.role |= Activity.REPLICATE if flow["replica_id"] is not None else _role(flow["api"] or "")
        self.group = flow["group"] or self.group
        self.requests += flow["requests"]
        self.request_bytes += flow["request_bytes"]
        self.response_bytes += flow["response_bytes"]
        for topic in used_topics(flow):
            self.records += topic["records"]
            unnamed = topic["topic"] is None and topic["topic_id"] is None  # topics that found no place in the event
            name = topic["topic"] or topic["topic_id"] or ""
            if not unnamed and name not in self.topics and len(self.topics) < TOPICS_KEPT:
                self.topics.add(name)
                self.topics_bytes += _TOPIC_BYTES + text_bytes(name)

    @property
    def type(self) -> str:
        """internal, broker, producer, consumer, producer+consumer, admin or other."""
        if self.internal:
            return "internal"
        if Activity.REPLICATE in self.role:
            return "broker"
        does = [name for role, name in ((Activity.WRITE, "producer"), (Activity.READ, "consumer")) if role in self.role]
        return "+".join(does) or ("admin" if Activity.ADMINISTRATE in self.role else "other")


class ClientTable:
    """Clients that spoke in the last hour, those that spoke last in `limit_bytes`."""

    def __init__(self, limit_bytes: int = DEFAULT.clients_bytes) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._workloads: dict[int, tuple[int, int]] = {}  # clients of each and its bytes, by id()
        self._clients: OrderedDict[ClientKey, ClientEntry] = OrderedDict()  # who spoke last is last
        self._passed_us = 0

    def add(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event["kind"] == "flow" and event["conn_id"]:
                self._add(event)
            elif event["kind"] == "agent":
                self._passed_us += event["ts"] - event["since"]
                self._forget(self._passed_us - SILENT_US)

    def __iter__(self) -> Iterator[tuple[ClientKey, ClientEntry]]:
        return iter(self._clients.items())

    def _add(self, flow: Mapping[str, Any]) -> None:
        key = _key(flow)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientEntry(flow["workload"], flow["since"])
            self.held_bytes += _key_bytes(key)
            self._count(client.workload, client.size, 1)
        else:
            self._clients.move_to_end(key)
        before = client.workload, client.size
        client.add(flow)
        self._count(client.workload, client.size, 1)
        self._count(*before, -1)
        client.heard_us = self._passed_us
        while self.held_bytes > self._limit_bytes:
            self._drop_oldest()

    def _forget(self, before_us: int) -> None:
        while self._clients and next(iter(self._clients.values())).heard_us < before_us:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, client = self._clients.popitem(last=False)
        self.held_bytes -= _key_bytes(key)
        self._count(client.workload, client.size, -1)

    def _count(self, workload: Mapping[str, Any], size: int, sign: int) -> None:
        """Count what a client takes besides its key, or no more.

        A workload is reckoned here and where it is made: so clients cannot hold all that there is a place for.
        """
        key = id(workload)  # kept by its clients: its id stays its own
        clients, workload_size = self._workloads.get(key) or (0, workload_bytes(workload))
        if clients + sign:
            self._workloads[key] = clients + sign, workload_size
        else:
            del self._workloads[key]
        self.held_bytes += sign * (size if clients and clients + sign else size + workload_size)


def _key_bytes(key: ClientKey) -> int:
    return _CLIENT_BYTES + sum(text_bytes(part) for part in key if isinstance(part, str))


def _key(flow: Mapping[str, Any]) -> ClientKey:
    workload, client = flow["workload"], flow["client"]
    address = flow["local" if flow["side"] == "client" else "peer"].rpartition(":")[0]
    process = workload["pid"], workload["start_time"]
    return ClientKey(flow["side"], *process, address, client["id"], client["software_name"], client["software_version"])


@cache
def _role(api: str) -> Activity:
    match api:
        case "Produce":
            return Activity.WRITE
        case "Fetch" | "ShareFetch":
            return Activity.READ
        case _ if api in _OF_BROKERS:
            return Activity.REPLICATE
        case _ if api.startswith(_OF_ADMINISTRATORS):
            return Activity.ADMINISTRATE
        case _:
            return Activity.NOTHING
