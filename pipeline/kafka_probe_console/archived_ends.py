"""Finds the ends of connections in the tables: those that conditions on frames name, and those of frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.events import OWNER_NAMES
from kafka_probe.text import printable
from kafka_probe_console.end_columns import OWNER, address_is
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.frame_conditions import FrameConditions
from kafka_probe_console.tables import OpenTables

MOST_ENDS = 10_000
"""Most ends of connections that conditions may resolve to."""
EndIds = tuple[str | None, str | None]
"""agent_id and conn_id."""
_OWNER = ", ".join(f"owner.{name}" for name in OWNER)  # the first of them that is known
_NAMED = 5  # clients in a message


def ends(tables: OpenTables, wanted: FrameConditions) -> list[ConnectionEnd] | None:
    """Return the ends of the connections that the conditions name; None if they name none.

    Raises:
        NothingFoundError: there are none, or too many.
    """
    if not wanted.of_connections:
        return None
    found = list(_ends(tables, *_conditions_on_ends(tables, wanted), MOST_ENDS + 1))
    if not found:
        raise NothingFoundError(f"No connection matches. {_known_clients(tables)}")
    if len(found) > MOST_ENDS:
        raise NothingFoundError(
            f"More than {MOST_ENDS:,} ends of connections match: give a shorter time, or more of a name."
        )
    return found


def ends_of(tables: OpenTables, frames: Iterable[CopiedFrame]) -> dict[EndIds, ConnectionEnd]:
    """Return the ends at which frames were seen, by agent_id and conn_id, as far as the tables have them."""
    return ends_by_ids(tables, {(frame.first.agent_id, frame.first.conn_id) for frame in frames})


def ends_by_ids(tables: OpenTables, seen: Iterable[EndIds]) -> dict[EndIds, ConnectionEnd]:
    """Return the ends with these ids, as far as the tables have them."""
    keys = sorted(f"{agent_id}/{conn_id}" for agent_id, conn_id in {*seen} if agent_id and conn_id)
    found = _ends(tables, ["agent_id || '/' || conn_id IN (SELECT unnest(?))"], [keys], len(keys))
    return {(end.agent_id, end.conn_id): end for end in found}


def _conditions_on_ends(tables: OpenTables, wanted: FrameConditions) -> tuple[list[str], list[object]]:
    parts: list[tuple[str, Sequence[object]]] = []
    first_date, last_date = wanted.period.dates
    # Agents repeat the open of each connection every hour.
    if first_date:
        parts.append(("date >= ?", (first_date,)))
    if last_date:
        parts.append(("date <= ?", (last_date,)))
    if wanted.address:
        test, values = address_is(wanted.address)
        parts.append(
            (" OR ".join(test.format(column) for column in ("local", "peer", "nat_local", "nat_peer")), values * 4)
        )
    if wanted.client:
        parts.append(("client_id GLOB ?", (wanted.client,)))
    if wanted.workload:
        names = " OR ".join(f"owner.{name} GLOB ?" for name in OWNER_NAMES)
        parts.append((names, (wanted.workload,) * len(OWNER_NAMES)))
    if wanted.cause:
        tables.require("verdicts")
        parts.append(("flow_id IN (SELECT flow_id FROM verdicts WHERE cause = ?)", (wanted.cause,)))
    return [f"({part})" for part, _ in parts], [value for _, values in parts for value in values]


def _ends(
    tables: OpenTables, conditions: Sequence[str], values: Sequence[object], limit: int
) -> Iterator[ConnectionEnd]:
    """Yield the ends whose rows in `opens` or `closes` match, each once with its newest row."""
    names = "date, received_ts, agent_id, conn_id, flow_id, local, peer, client.id AS client_id, client"
    nats = {"opens": "nat.local AS nat_local, nat.peer AS nat_peer", "closes": "NULL AS nat_local, NULL AS nat_peer"}
    every = " UNION ALL ".join(
        f"SELECT {names}, {nat}, {_owner(tables, name)} AS owner FROM {name}"
        for name, nat in nats.items()
        if tables.add(name)
    )
    if not every:
        tables.require("opens")
    newest = ", ".join(
        f"arg_max({value}, received_ts)"
        for value in (
            *("flow_id", "local", "peer", "client_id"),
            "concat_ws(' ', client.software_name, client.software_version)",
            f"coalesce({_OWNER}) || coalesce(' (process ' || owner.pid || ')', '')",
        )
    )
    where = " AND ".join(conditions) or "true"
    ask = f"SELECT agent_id, conn_id, {newest} FROM ({every}) WHERE {where} GROUP BY ALL ORDER BY ALL LIMIT ?"
    for row in tables.rows(ask, [*values, limit]):
        yield ConnectionEnd(*row)


def _owner(tables: OpenTables, name: str) -> str:
    """Return the SQL of an owner with all names that people use, those that the table lacks as null."""
    written = tables.fields(name, "workload")
    fields = (f"{each} := {f'workload.{each}' if each in written else 'NULL::VARCHAR'}" for each in OWNER_NAMES)
    return f"struct_pack(pid := workload.pid, {', '.join(fields)})"


def _known_clients(tables: OpenTables) -> str:
    if not tables.add("opens"):
        return "There are no connections in the tables."
    ask = "SELECT DISTINCT client.id AS id FROM opens WHERE id IS NOT NULL ORDER BY id LIMIT ?"
    names = [printable(name) for (name,) in tables.rows(ask, [_NAMED + 1])]
    more = " and others" if len(names) > _NAMED else ""
    return f"The tables have the clients {', '.join(names[:_NAMED])}{more}." if names else "The tables name no client."
