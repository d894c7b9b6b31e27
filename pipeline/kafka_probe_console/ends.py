"""The SQL by which questions name the two ends of a connection.

Client id and workload are those of the client's end where it was watched; at the broker's end only the client id is
known.
"""

from __future__ import annotations

from kafka_probe.events import INTERNAL_CLIENT

OWNER = ("pod", "container_name", "unit", "comm")
"""Fields of a workload by which people name it, the best first."""


def client_of(*ends: str) -> str:
    """Return the client id of a connection. ends: columns with its ends, the preferred one first."""
    return f"coalesce({', '.join(f'{end}.client.id' for end in ends)})"


def workload_of(end: str) -> str:
    """Return the name of the workload at an end, null if that was not watched."""
    return f"coalesce({', '.join(f'{end}.workload.{name}' for name in OWNER)})"


def not_internal(client_id: str) -> str:
    """Return the condition that a client is none of kafka-probe's own."""
    return f"NOT coalesce(starts_with({client_id}, '{INTERNAL_CLIENT}'), false)"
