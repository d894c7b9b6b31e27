"""Finds when nodes were not watched: agents report each minute."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kafka_probe.text import printable
from kafka_probe_console.period import Period, written

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

SILENT_S = 180
"""The age of its last report from which an agent is silent, see LONGEST_PAUSE."""
LONGEST_PAUSE = f"""greatest(
    INTERVAL {SILENT_S} SECOND, 3 * (max(received_ts) - min(received_ts)) / greatest(count(*) - 1, 1)
)"""
"""The aggregate of an agent's reports that is the longest pause of one that is not silent: three usual pauses."""
_SHOWN = 3


def unwatched(tables: OpenTables, period: Period) -> str:
    """Return sentences about the nodes whose agents were silent in a part of the period, the longest first."""
    if not (period.begin and tables.add("agents")):
        return ""
    end = period.end or datetime.now(UTC)
    first_date, last_date = Period(period.begin, end).dates
    ask = f"""
        SELECT node, epoch_us(received_ts), epoch_us(next) FROM (
            SELECT node, received_ts, lead(received_ts) OVER (PARTITION BY node ORDER BY received_ts) AS next,
                max(received_ts) OVER () AS newest
            FROM agents WHERE date BETWEEN ? AND ?
        ) WHERE coalesce(next, newest) - received_ts > INTERVAL {SILENT_S} SECOND
            AND received_ts < ? AND coalesce(next, newest) > ?
        ORDER BY coalesce(next, newest) - received_ts DESC, node LIMIT {_SHOWN}
    """
    gaps = tables.rows(ask, [first_date, last_date, end, period.begin])
    return " ".join(
        f"Node {printable(node)} was not watched from {written(since)} to {written(until)}."
        if until
        else f"Node {printable(node)} has not been watched since {written(since)}."
        for node, since, until in gaps
    )
