"""Asks the brokers of a cluster which topics exist, and which brokers lead their partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from kafka_probe.config import load
from kafka_probe.errors import StartError, UsageError
from kafka_probe.events import INTERNAL_CLIENT

_CONNECT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic that exists. leaders: the ids of the brokers that lead its partitions, -1 for a partition without one."""

    name: str
    partitions: int
    leaders: frozenset[int]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The topics of a cluster, without those of Kafka itself, and its brokers as host and port by id."""

    topics: Sequence[ClusterTopic]
    brokers: Mapping[int, tuple[str, int]]


def cluster_of(bootstrap_servers: str | None, settings: Path | None) -> Cluster:
    """Return what the brokers know of their cluster.

    settings: a TOML file with the agent's settings, of which those of the brokers' security count.

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
        servers = ",".join(config.bootstrap_servers)
        raise StartError(
            f"Brokers {servers} do not name their topics ({type(error).__name__}). Check address and security settings."
        ) from None
    return Cluster(
        [_topic(one) for one in topics if not one["is_internal"]],
        {one["broker_id"]: (one["host"], one["port"]) for one in brokers},
    )


def _topic(described: Mapping[str, Any]) -> ClusterTopic:
    leaders = frozenset(partition["leader_id"] for partition in described["partitions"])
    return ClusterTopic(described["name"], len(described["partitions"]), leaders)
