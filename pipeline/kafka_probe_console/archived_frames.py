"""Finds frames in the tables: resolves addresses, clients and causes to connections, then asks for their frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from pyarrow.compute import Expression

from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample, joined
from kafka_probe.errors import UsageError
from kafka_probe.events import OWNER_NAMES
from kafka_probe.protocol.schemas import apis
from kafka_probe.text import printable
from kafka_probe_console.end_columns import OWNER, address_is
from kafka_probe_console.errors import NothingFoundError, TableError
from kafka_probe_console.period import Period, written
from kafka_probe_console.tables import OpenTables, Row, one_of

MOST_ENDS = 10_000
"""Most ends of connections that conditions may resolve to."""
SIDES = ("client", "server")
MOST_OF_SIDE = 16
"""Most ends of one side of a connection that are shown."""
_NUMBERS_AT = CopiedSample._fields.index("monotonic_ns")
_COLUMNS = ", ".join("epoch_us(f.ts)" if name == "ts_us" else f"f.{name}" for name in CopiedSample._fields)
_ORDER = {
    "time": "f.ts, f.monotonic_ns, f.flags & 1, f.tcp_seq, f.part",
    "latency": "f.latency_us DESC, f.ts, f.monotonic_ns, f.tcp_seq, f.part",
    "bytes": "f.frame_bytes DESC, f.ts, f.monotonic_ns, f.tcp_seq, f.part",
}
_ORDER_OF_ENDS = {"time": "min(f.ts)", "latency": "max(f.latency_us) DESC", "bytes": "max(f.frame_bytes) DESC"}
_OWNER = ", ".join(f"owner.{name}" for name in OWNER)  # the first of them that is known
_NAMED = 5  # clients in a message
_SAMPLES_OF_LAST = 32  # of each of the last frames
ANY_ERROR = "any"
EndIds = tuple[str | None, str | None]
"""agent_id and conn_id."""
_Flow = str | tuple[str, str]
"""A connection: its flow_id; if it is not known, agent_id and conn_id of an end."""
_WITH_IDS = "f.agent_id IS NOT NULL AND f.conn_id IS NOT NULL"
EndsBySide = Mapping[str, Sequence[ConnectionEnd]]


@dataclass(frozen=True, slots=True)
class FrameConditions:
    """The conditions on frames; None or an empty text is none. Patterns are as in shells."""

    period: Period = field(default_factory=Period)
    flow_id: str | None = None
    address: str | None = None
    client: str | None = None
    workload: str | None = None
    cause: str | None = None
    node: str | None = None
    side: str | None = None
    api: str | None = None
    correlation_id: int | None = None
    slower_us: int | None = None
    topic: str | None = None
    group: str | None = None
    error: str | None = None
    sort: str = "time"

    @property
    def of_contents(self) -> bool:
        """Return True if frames have to be decoded for it."""
        return any((self.topic, self.group, self.error))

    @property
    def of_connections(self) -> bool:
        """Return True if connections have to be resolved first."""
        return any((self.address, self.client, self.workload, self.cause))


class _Condition(NamedTuple):
    """A condition on rows of `frames` in SQL, with its values. only: as far as Arrow can leave out files by it."""

    sql: str
    values: Sequence[object]
    only: Mapping[str, Expression] | None = None


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
    return _ends_by_ids(tables, {(frame.first.agent_id, frame.first.conn_id) for frame in frames})


def _ends_by_ids(tables: OpenTables, seen: Iterable[EndIds]) -> dict[EndIds, ConnectionEnd]:
    keys = sorted(f"{agent_id}/{conn_id}" for agent_id, conn_id in {*seen} if agent_id and conn_id)
    found = _ends(tables, ["agent_id || '/' || conn_id IN (SELECT unnest(?))"], [keys], len(keys))
    return {(end.agent_id, end.conn_id): end for end in found}


def connections_with_frames(
    tables: OpenTables, wanted: FrameConditions, found: Sequence[ConnectionEnd] | None, limit: int
) -> tuple[list[EndsBySide], bool]:
    """Return all ends with frames of connections that have matching frames, and True if more connections match.

    The connections are at most `limit`, sorted as `wanted.sort` names. `found`: the ends of connections to which it was
    resolved.

    Raises:
        NothingFoundError: there are none.
        UsageError: Kafka has no such API.
    """
    flows: dict[_Flow, None] = {}
    more = False
    for number, flow in enumerate(_flows_with_frames(tables, wanted, found)):
        more = number == MOST_ENDS or (len(flows) == limit and flow not in flows)
        if more:
            break
        flows[flow] = None
    if not flows:
        raise NothingFoundError(f"No frame matches. {_known_frames(tables)}")
    return _all_ends(tables, [*flows], wanted.node), more


def _flows_with_frames(
    tables: OpenTables, wanted: FrameConditions, found: Sequence[ConnectionEnd] | None
) -> Iterator[_Flow]:
    """Yield the connections with matching frames, possibly more than once, at most MOST_ENDS + 1 without contents."""
    if wanted.of_contents:
        for frame in _frames(tables, wanted, found, None):
            first = frame.first
            if first.agent_id is not None and first.conn_id is not None:
                yield _flow(first.agent_id, first.conn_id, first.flow_id)
        return
    where, values, only = _conditions(wanted, found)
    ask = f"SELECT f.agent_id, f.conn_id, f.flow_id FROM frames f WHERE {where} AND {_WITH_IDS} GROUP BY ALL"
    order = f"{_ORDER_OF_ENDS[wanted.sort]}, f.agent_id, f.conn_id"
    for row in tables.rows(f"{ask} ORDER BY {order} LIMIT ?", [*values, MOST_ENDS + 1], only=only):
        yield _flow(*row)


def _all_ends(tables: OpenTables, flows: Sequence[_Flow], node: str | None) -> list[EndsBySide]:
    """Return all ends with frames of connections: for each a list per side, of at most MOST_OF_SIDE.

    A connection has several ends of one side if an agent was restarted.
    """
    where, values, only = _of_flows(flows)
    if node is not None:
        where, values = f"{where} AND f.node = ?", [*values, node]
    rows = tables.rows(
        f"""
        SELECT agent_id, conn_id, flow_id, side FROM (
            SELECT f.agent_id, f.conn_id, f.flow_id, f.side, min(f.ts) AS began
            FROM frames f WHERE {where} AND {_WITH_IDS} AND f.side IN ('client', 'server') GROUP BY ALL
        ) QUALIFY row_number() OVER (
            PARTITION BY coalesce(flow_id, agent_id || '/' || conn_id), side ORDER BY began, agent_id, conn_id
        ) <= ? ORDER BY began, agent_id, conn_id
        """,
        [*values, MOST_OF_SIDE],
        only=only,
    )
    seen = [*rows]
    known = _ends_by_ids(tables, {(agent_id, conn_id) for agent_id, conn_id, *_ in seen})
    connections: dict[_Flow, dict[str, list[ConnectionEnd]]] = {flow: {} for flow in flows}
    for agent_id, conn_id, flow_id, side in seen:
        # flow_id is that of the frames: it may differ from that of a forged open.
        end = known.get((agent_id, conn_id)) or ConnectionEnd(agent_id, conn_id, *[None] * 6)
        by_side = connections.setdefault(_flow(agent_id, conn_id, flow_id), {})
        by_side.setdefault(side, []).append(replace(end, flow_id=flow_id))
    return [*connections.values()]


def _flow(agent_id: str, conn_id: str, flow_id: str | None) -> _Flow:
    return flow_id or (agent_id, conn_id)


def _of_flows(flows: Sequence[_Flow]) -> _Condition:
    """Return the condition that frames are of these connections."""
    known = [flow for flow in flows if isinstance(flow, str)]
    others = [f"{flow[0]}/{flow[1]}" for flow in flows if not isinstance(flow, str)]
    of_known, of_others = "f.flow_id IN (SELECT unnest(?))", "f.agent_id || '/' || f.conn_id IN (SELECT unnest(?))"
    if others:
        return _Condition(f"({of_known} OR {of_others})", [known, others])
    return _Condition(of_known, [known], {"frames": one_of("flow_id", known)})


def count(tables: OpenTables, wanted: FrameConditions, found: Sequence[ConnectionEnd] | None) -> int:
    """Return the number of frames that match."""
    if wanted.of_contents:
        return sum(1 for _ in _frames(tables, wanted, found, None))
    where, values, only = _conditions(wanted, found)
    ((number,),) = tables.rows(f"SELECT count(*) FROM frames f WHERE {where} AND f.part = 0", values, only=only)
    return int(number)


def frames(
    tables: OpenTables, wanted: FrameConditions, found: Sequence[ConnectionEnd] | None, limit: int
) -> Iterator[CopiedFrame]:
    """Yield the frames that match, at most `limit`, sorted as `wanted.sort` names.

    Raises:
        NothingFoundError: there are none.
        UsageError: Kafka has no such API.
    """
    found_any = False
    for frame in _frames(tables, wanted, found, limit):
        found_any = True
        yield frame
    if not found_any:
        raise NothingFoundError(f"No frame matches. {_known_frames(tables)}")


def _frames(
    tables: OpenTables, wanted: FrameConditions, found: Sequence[ConnectionEnd] | None, limit: int | None
) -> Iterator[CopiedFrame]:
    where, values, only = _conditions(wanted, found)
    order = _ORDER[wanted.sort]
    if limit is None or wanted.of_contents:
        ask = f"SELECT {_COLUMNS} FROM frames f WHERE {where} ORDER BY {order}"
    else:
        # All samples of the first frames: a long frame has many. All columns are read of their connections only.
        first = f"FROM frames f WHERE {where} AND f.part = 0 ORDER BY {order} LIMIT ?"
        asked = f"SELECT DISTINCT flow_id FROM (SELECT f.flow_id {first}) LIMIT {MOST_ENDS}"
        flows = [flow for (flow,) in tables.rows(asked, [*values, limit], only=only)]
        if not flows:
            return
        if len(flows) < MOST_ENDS and None not in flows:
            only = _of_flows(flows).only
        frame = "f.agent_id, f.conn_id, f.tcp_seq, f.flags & 1"
        chosen = f"({frame}) IN (SELECT {frame} {first})"
        ask = f"SELECT {_COLUMNS} FROM frames f WHERE {where} AND {chosen} ORDER BY {order}"
        values = [*values, *values, limit]
    rows = map(_sample, tables.rows(ask, values, only=only))
    yield from islice((one for one in joined(rows) if _matches(one, wanted)), limit)


def conversation(tables: OpenTables, end: ConnectionEnd) -> Iterator[CopiedFrame]:
    """Yield all frames of an end of a connection, in the order in which they were seen."""
    where = "f.agent_id = ? AND f.conn_id = ?" + (" AND f.flow_id = ?" if end.flow_id else "")
    values = [end.agent_id, end.conn_id, *([end.flow_id] if end.flow_id else [])]
    ask = f"SELECT {_COLUMNS} FROM frames f WHERE {where} ORDER BY f.monotonic_ns, f.flags & 1, f.tcp_seq, f.part"
    return joined(map(_sample, tables.rows(ask, values)))


def last_frames(
    tables: OpenTables, end: EndIds, flow_id: str | None, received: Period, limit: int
) -> list[CopiedFrame]:
    """Return the last frames of an end, at most `limit`, in their order; of a frame its first samples.

    flow_id: that of its connection; received: when Kafka received the frames, more or less. Both leave out files.
    """
    where = "f.date BETWEEN ? AND ? AND f.agent_id = ? AND f.conn_id = ?" + (" AND f.flow_id = ?" if flow_id else "")
    values = [*received.dates, *end, *([flow_id] if flow_id else [])]
    frame, newest = "f.tcp_seq, f.flags & 1", "f.monotonic_ns DESC, f.flags & 1 DESC, f.tcp_seq DESC"
    chosen = f"SELECT {frame} FROM frames f WHERE {where} AND f.part = 0 ORDER BY {newest} LIMIT ?"
    ask = f"""
        SELECT {_COLUMNS} FROM (
            SELECT * FROM frames f WHERE {where} AND f.part < {_SAMPLES_OF_LAST} AND ({frame}) IN ({chosen})
            ORDER BY {newest}, f.part LIMIT ?
        ) f ORDER BY f.monotonic_ns, f.flags & 1, f.tcp_seq, f.part
    """
    most = limit * _SAMPLES_OF_LAST
    return [*joined(map(_sample, tables.rows(ask, [*values, *values, limit, most])))][-limit:]


def _sample(row: Row) -> CopiedSample:
    if None in row[_NUMBERS_AT:] or row[0] is None:
        raise TableError("The table frames has a row without a number: the pipeline has not written it.")
    return CopiedSample(*row)


def _matches(frame: CopiedFrame, wanted: FrameConditions) -> bool:
    """Return True if what the frame contains meets the conditions."""
    topics = {name for topic in frame.facts.topics for name in (topic.name, topic.topic_id)}
    if wanted.topic and wanted.topic not in topics:
        return False
    if wanted.group and wanted.group not in frame.facts.groups:
        return False
    if wanted.error == ANY_ERROR:
        return bool(frame.errors)
    return not wanted.error or wanted.error in frame.errors


def _conditions(wanted: FrameConditions, found: Sequence[ConnectionEnd] | None) -> _Condition:
    """Return the condition on rows of `frames`. found: the ends of connections to which it was resolved."""
    parts: list[_Condition] = []
    begin, end = wanted.period.begin, wanted.period.end
    first_date, _ = wanted.period.dates
    if begin:  # the date is that on which Kafka received a frame, by the clock of the brokers
        parts.append(_Condition("f.date >= ? AND f.ts >= ?", (first_date, begin)))
    if end:
        parts.append(_Condition("f.ts < ?", (end,)))
    for column, value in (
        ("flow_id", wanted.flow_id),
        ("node", wanted.node),
        ("side", wanted.side),
        ("correlation_id", wanted.correlation_id),
    ):
        if value is not None:
            parts.append(_Condition(f"f.{column} = ?", (value,)))
    if wanted.slower_us is not None:
        parts.append(_Condition("f.flags & 1 = 1 AND f.latency_us >= ?", (wanted.slower_us,)))
    if wanted.api:
        keys = [api.key for api in apis().values() if api.name.lower() == wanted.api.lower()]
        if not keys:
            raise UsageError(f"There is no API {wanted.api}. Kafka's names are such as Produce, Fetch, Metadata.")
        parts.append(_Condition("f.api_key = ?", keys))
    flows = [end.flow_id or (end.agent_id or "", end.conn_id or "") for end in found or ()]
    of_ends = _of_flows(flows) if flows else _Condition("true", ())
    parts.append(of_ends)
    sql = " AND ".join(part.sql for part in parts)
    return _Condition(sql, [value for part in parts for value in part.values], of_ends.only)


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


def _known_frames(tables: OpenTables) -> str:
    ((number, first, last),) = tables.rows(
        "SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM frames WHERE part = 0"
    )
    return (
        f"The archive has {number:,} frames, from {written(first)} to {written(last)}."
        if number
        else "The archive is empty."
    )
