"""Asks the brokers of a cluster which topics exist, and which brokers have their partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from kafka_probe.config import load
from kafka_probe.errors import StartError, UsageError
from kafka_probe.events import INTERNAL_CLIENT
from kafka_probe.text import printable

_CONNECT_TIMEOUT_MS = 5_000
_OWN_TOPICS = "kafka-probe."  # flows of kafka-probe's clients have no topics
_REASON = 200  # characters


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic that exists. brokers: the ids of those that lead or replicate its partitions; -1: a leader is missing.

    topic_id: as in events; None: the brokers are too old to have ids.
    """

    name: str
    topic_id: str | None
    partitions: int
    brokers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The topics of a cluster without those of Kafka and kafka-probe, and its brokers as host and port by id."""

    topics: Sequence[ClusterTopic]
    brokers: Mapping[int, tuple[str, int]]


def cluster_of(bootstrap_servers: str | None, settings: Path | None) -> Cluster:
    """Return what the brokers know of their cluster.

    settings: a TOML file with the agent's settings, of which those about its brokers count.

    Raises:
        UsageError: no brokers are named, or a setting is invalid.
        StartError: the brokers do not answer, or refuse the request.
    """
    config = load({"bootstrap_servers": bootstrap_servers}, settings)
    if not config.bootstrap_servers:
        raise UsageError("Set --bootstrap-servers to brokers of the cluster: they know which topics exist.")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs each attempt to connect
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=[*config.bootstrap_servers],
            client_id=f"{INTERNAL_CLIENT}console",
            bootstrap_timeout_ms=_CONNECT_TIMEOUT_MS,
            **config.security(),
        )
        try:
            topics, brokers = admin.describe_topics(), admin.describe_cluster()["brokers"]
        finally:
            admin.close()
    except (KafkaError, OSError) as error:
        servers, reason = ",".join(config.bootstrap_servers), printable(f"{type(error).__name__}: {error}", _REASON)
        raise StartError(
            f"Brokers {servers} did not name their topics ({reason}). Check address and security settings."
        ) from None
    return Cluster(
        [_topic(one) for one in topics if not (one["is_internal"] or one["name"].startswith(_OWN_TOPICS))],
        {one["broker_id"]: (one["host"], one["port"]) for one in brokers},
    )


def _topic(described: Mapping[str, Any]) -> ClusterTopic:
    partitions = described["partitions"]
    # A consumer may read from a replica (KIP-392), and leaders change.
    brokers = {broker for one in partitions for broker in (one["leader_id"], *one["replica_nodes"])}
    topic_id = UUID(described["topic_id"]).hex if described.get("topic_id") else None
    return ClusterTopic(described["name"], topic_id, len(partitions), frozenset(brokers))
