"""Finds archived frames in the tables, and the connections that have such frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from pyarrow.compute import Expression

from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample, joined
from kafka_probe.errors import UsageError
from kafka_probe.protocol.schemas import apis
from kafka_probe_console.archived_ends import MOST_ENDS, EndIds, ends_by_ids
from kafka_probe_console.errors import NothingFoundError, TableError
from kafka_probe_console.frame_conditions import FrameConditions
from kafka_probe_console.period import Period, written
from kafka_probe_console.tables import OpenTables, Row, one_of

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
_SAMPLES_OF_LAST = 32  # of each of the last frames
_FIRST_SPANS = (timedelta(minutes=30), timedelta(hours=4))  # the beginning of a long period, which is searched first
ANY_ERROR = "any"
_Flow = str | tuple[str, str]
"""A connection: its flow_id; if it is not known, agent_id and conn_id of an end."""
_WITH_IDS = "f.agent_id IS NOT NULL AND f.conn_id IS NOT NULL"
EndsBySide = Mapping[str, Sequence[ConnectionEnd]]


class _Condition(NamedTuple):
    """A condition on rows of `frames`: SQL with its values. only: the same for Arrow, which leaves out files by it."""

    sql: str
    values: Sequence[object]
    only: Mapping[str, Expression] | None = None


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
    known = ends_by_ids(tables, {(agent_id, conn_id) for agent_id, conn_id, *_ in seen})
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
    order = _ORDER[wanted.sort]
    if limit is not None and not wanted.of_contents and wanted.sort == "time":
        wanted = _shortened(tables, wanted, found, limit)
    where, values, only = _conditions(wanted, found)
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


def _shortened(
    tables: OpenTables, wanted: FrameConditions, found: Sequence[ConnectionEnd] | None, limit: int
) -> FrameConditions:
    """Return the conditions with a shorter period, if that has the first `limit` frames.

    Where many frames match, they are mostly in the first of all files.
    """
    begin, end = wanted.period.begin, wanted.period.end or datetime.now(UTC)
    if begin is None:
        return wanted
    for span in _FIRST_SPANS:
        if end - begin < 3 * span:  # too little is left out
            break
        where, values, only = _conditions(replace(wanted, period=Period(begin, begin + span)), found)
        ask = f"SELECT count(*) FROM (SELECT 1 FROM frames f WHERE {where} AND f.part = 0 LIMIT ?)"
        ((number,),) = tables.rows(ask, [*values, limit], only=only)
        if number == limit:
            # Twice the span: a later part of a frame may have a slightly later time.
            return replace(wanted, period=Period(begin, begin + 2 * span))
    return wanted


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


def _known_frames(tables: OpenTables) -> str:
    ((number, first, last),) = tables.rows(
        "SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM frames WHERE part = 0"
    )
    return (
        f"The archive has {number:,} frames, from {written(first)} to {written(last)}."
        if number
        else "The archive is empty."
    )
