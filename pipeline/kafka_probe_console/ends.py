"""The SQL by which questions name the two ends of a connection.

Client id and workload are those of the client's end where it was watched; at the broker's end only the client id is
known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_probe.events import INTERNAL_CLIENT

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

OWNER = ("pod", "container_name", "unit", "comm")
"""Fields of a workload by which people name it, the best first."""


def client_of(*ends: str) -> str:
    """Return the client id of a connection. ends: columns with its ends, the preferred one first."""
    return f"coalesce({', '.join(f'{end}.client.id' for end in ends)})"


def workload_of(tables: OpenTables, table: str, *end: str) -> str:
    """Return the name of the workload at an end, null if that was not watched. end: the column with the end, if any.

    Earlier releases wrote fewer names.
    """
    names = tables.fields(table, *end, "workload")
    known = [".".join((*end, "workload", name)) for name in OWNER if name in names]
    return f"coalesce({', '.join(known)}, NULL)"


def process_of(*end: str) -> str:
    """Return the process of an end as in evidence, such as `java[412]`; null if that was not watched."""
    workload = ".".join((*end, "workload"))
    return f"{workload}.comm || '[' || {workload}.pid || ']'"


def library_of(client: str) -> str:
    """Return the client library and its version; null if it is unknown."""
    return f"nullif(concat_ws(' ', {client}.software_name, {client}.software_version), '')"


def address_is(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a condition on a column `{}` of addresses with ports, and its values. The text may lack the port."""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    if ":" in text.rpartition("]")[2]:
        return "{} = ?", (text,)
    return "starts_with({}, ?)", (f"{text}:",)


def not_internal(client_id: str) -> str:
    """Return the condition that a client is none of kafka-probe's own."""
    return f"NOT coalesce(starts_with({client_id}, '{INTERNAL_CLIENT}'), false)"
