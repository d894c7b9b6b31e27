"""The SQL by which questions name connections, their two ends, and verdicts on them.

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
ENDED = "least(ts, judged_ts)"
"""When a connection with a verdict ended.

No close is newer than Kafka's time of its verdict, so that a wrong or forged clock cannot move it to the future.
"""
ASKED = "least(ts, received_ts)"
"""The time of a row of `requests`, of which a wrong or forged clock makes none later than Kafka received it."""
KNOWN_VERDICTS = "SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM verdicts"
"""SQL of the number of verdicts in the tables, and of their first and last times."""
ADDRESSES = """
    coalesce(client.local, of_server.peer) AS client_address, coalesce(server.peer, of_client.local) AS seen_as,
    coalesce(server.local, of_client.peer, client.peer) AS broker,
    coalesce(client.peer, of_server.local) AS broker_seen_as
"""
"""The addresses of both ends, each on its own host and as the other end sees it; needs `with_nat`."""


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


def nat_of(tables: OpenTables) -> str:
    """Return a relation of ends with their addresses beyond NAT: agent_id, conn_id, local and peer.

    Agents report them once, with the first open, and only with `--conntrack`.
    """
    ends = "agent_id, conn_id, any_value(nat.local) AS local, any_value(nat.peer) AS peer"
    if tables.add("opens"):
        return f"(SELECT {ends} FROM opens WHERE nat IS NOT NULL GROUP BY agent_id, conn_id)"
    return "(SELECT NULL AS agent_id, NULL AS conn_id, NULL AS local, NULL AS peer WHERE false)"


def with_nat(tables: OpenTables) -> str:
    """Return the joins that give ends `client` and `server` their addresses beyond NAT, for `ADDRESSES`."""
    nat = nat_of(tables)
    return " ".join(
        f"LEFT JOIN {nat} of_{end} ON of_{end}.agent_id = {end}.agent_id AND of_{end}.conn_id = {end}.conn_id"
        for end in ("client", "server")
    )


def address_is(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a condition on a column `{}` of addresses with ports, and its values. The text may lack the port."""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    if ":" in text.rpartition("]")[2]:
        return "{} = ?", (text,)
    return "starts_with({}, ?)", (f"{text}:",)


def not_internal(client_id: str, *, internal: bool) -> str:
    """Return the condition that a client is none of kafka-probe's own. internal: these are shown, too."""
    return "true" if internal else f"NOT coalesce(starts_with({client_id}, '{INTERNAL_CLIENT}'), false)"
