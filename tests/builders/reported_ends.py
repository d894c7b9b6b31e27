"""Builds reports of the ends of connections, as the tables `opens` and `closes` have them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

CONTAINER_ID = "3f2a" + "0" * 60


def end(side: str, conn_id: str, client_id: str | None, at: datetime, **of: object) -> dict[str, Any]:
    """Return a report of an end of a connection between 10.57.1.11:52224, seen as 10.57.2.2:39282, and a broker."""
    addresses = {
        "client": {"node": "node-1", "agent_id": "a", "local": "10.57.1.11:52224", "peer": "192.0.2.1:9092"},
        "server": {"node": "broker-1", "agent_id": "b", "local": "10.0.0.1:9092", "peer": "10.57.2.2:39282"},
    }
    owners = {
        "client": {"pid": 412, "comm": "python", "pod": "billing-7f", "container_id": CONTAINER_ID},
        "server": {"pid": 99, "comm": "java", "unit": "kafka.service"},
    }
    client = {"id": client_id, "software_name": "kafka-python", "software_version": "3.0.12"} if client_id else None
    times = {"ts": at, "received_ts": at}
    return {
        "side": side,
        "conn_id": conn_id,
        "client": client,
        "workload": owners[side],
        **addresses[side],
        **times,
        **of,
    }
