"""One end of a connection: the facts that the agent knows of it.

Only the tracker creates and changes connections. Other modules, and the threads of the HTTP server, read them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from kafka_probe.connections.activity import ConnectionActivity, Uncounted, none_yet
from kafka_probe.connections.clients import OF_CONSUMERS, Client, ClientIdentity
from kafka_probe.connections.fetch_sessions import SESSION_BYTES, FetchSession, Naming, naming
from kafka_probe.connections.identity import Identity
from kafka_probe.connections.open_counts import OpenCount
from kafka_probe.events import INTERNAL_CLIENT, ActivityFacts, ConnectionFacts, is_internal
from kafka_probe.peer_limits import SharedBudget, peer_of
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, text_bytes
from kafka_probe.protocol.membership import HEARTBEATS
from kafka_probe.workloads import Workload


class HeartbeatMember(NamedTuple):
    """The member of a group that the heartbeats of a connection name."""

    group: str | None = None
    member_id: str | None = None
    instance_id: str | None = None


_NO_MEMBER = HeartbeatMember()


@dataclass(slots=True)
class Connection:
    """One end of a connection. BPF programs copy no frame of it before it has proven to speak Kafka.

    Only the tracker changes it, also by `learn` and `fetch`.
    """

    identity: Identity
    workload: Workload
    opened_ns: int
    conn_id: int  # in events: the first id of the connection, that of the list if it was listed
    budget: SharedBudget  # memory budget of its texts and sessions
    client_id: str | None = None
    software_name: str | None = None
    software_version: str | None = None
    cluster_id: str | None = None
    member: HeartbeatMember = _NO_MEMBER
    opaque: str | None = None
    auth_error: int | None = None
    keepalive_s: int | None = None  # silence after which the kernel probes the peer; 0: never, None: not known
    closed: bool = False
    client: Client | None = None
    counted: OpenCount | None = None
    sessions: tuple[FetchSession, ...] = ()
    activity: ConnectionActivity | Uncounted | None = None  # None: no flow yet

    def __del__(self) -> None:
        texts = self.client_id, self.software_name, self.software_version, self.cluster_id, *self.member
        self.budget.give_back(sum(map(_kept_bytes, texts)))

    @property
    def side(self) -> str:
        return self.identity.side

    @property
    def sharing_peer(self) -> str:
        """Return the peer whose share of memory budgets it uses, see peer_limits.py."""
        return peer_of(self.side, self.identity.peer, self.workload.pid)

    @property
    def client_key(self) -> ClientIdentity:
        """Return the key of its client, see clients.py."""
        if self.identity.server_side:
            host = self.identity.peer.rpartition(":")[0]
            return host, self.client_id, self.software_name, self.software_version
        # Connections of unknown processes may belong to different ones: each is a client of its own.
        return *(self.workload.process or (self.conn_id,)), self.client_id

    @property
    def found(self) -> str:
        """Return how the agent found it, as in the `open` event."""
        return "listed" if self.identity.flow_id is None else "start" if self.identity.from_start else "midstream"

    @property
    def internal(self) -> bool:
        return is_internal(self.client_id)

    def learn(self, facts: Facts) -> None:
        """Keep the facts that a frame contains about its connection."""
        if facts.client_id is not None:
            self.client_id = self._kept(self.client_id, facts.client_id)
        if facts.cluster_id:
            self.cluster_id = self._kept(self.cluster_id, facts.cluster_id)
        if facts.api_key == ApiKey.SASL_HANDSHAKE and facts.errors:
            self.auth_error = facts.errors[0][0]
        if facts.api_key in HEARTBEATS and not facts.response:
            named = HeartbeatMember(facts.group, facts.text(Fact.MEMBER_ID), facts.text(Fact.INSTANCE_ID))
            kept = (self._kept(old, new or None) for old, new in zip(self.member, named, strict=True))
            self.member = HeartbeatMember(*kept)
        if facts.software_name:
            self.software_name = self._kept(self.software_name, facts.software_name)
            self.software_version = self._kept(self.software_version, facts.software_version)

    def _kept(self, known: str | None, new: str | None) -> str | None:
        """Return a new text and free the known one; return None if the budget is too small.

        For a client id of kafka-probe, whose connections must stay recognizable, return INTERNAL_CLIENT instead of
        None: it takes no memory.
        """
        if new == known:
            return known
        self.budget.give_back(_kept_bytes(known))
        size = _kept_bytes(new)
        if not size or self.budget.take(self.sharing_peer, size, "text_limit"):
            return new
        return INTERNAL_CLIENT if is_internal(new) else None

    def group(self, api_key: int, named: Collection[str]) -> str | None:
        """Return the one group that requests named; if they named none, as in a Fetch, the group of their client."""
        if not named and self.client and api_key in OF_CONSUMERS:
            return self.client.group
        return next(iter(named)) if len(named) == 1 else None

    def fetch(self, facts: Facts) -> Naming | None:
        """Return the naming of a frame for its session, which may be new. None without a session or memory for it."""
        named = naming(facts)
        if named and all(session.api_key != facts.api_key for session in self.sessions):
            peer = self.sharing_peer
            if not self.budget.take(peer, SESSION_BYTES, "partition_limit", sum(map(len, named.added.values()))):
                return None
            self.sessions += (FetchSession(facts.api_key, self.budget, peer),)
        return named

    def activity_facts(self) -> ActivityFacts:
        """Return the sums of its flows as fields of events."""
        return self.activity.facts() if self.activity else none_yet()

    def facts(self) -> ConnectionFacts:
        """Return the fields that all events of the connection share."""
        return {
            "side": self.side,
            "flow_id": self.identity.flow_id,
            "conn_id": f"{self.conn_id:016x}",
            "local": self.identity.local,
            "peer": self.identity.peer,
            "netns": self.identity.netns,
            "cluster_id": self.cluster_id,
            "workload": self.workload.named(),
            "client": {
                "id": self.client_id,
                "software_name": self.software_name,
                "software_version": self.software_version,
            },
            "opaque": self.opaque,
        }


def _kept_bytes(text: str | None) -> int:
    """Return the bytes of the budget that a text takes."""
    return 0 if text is None or text == INTERNAL_CLIENT else text_bytes(text)
