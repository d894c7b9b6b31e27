"""The view of how many connections opened, ended and are open, which several questions share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kafka_probe_console.columns import columns
from kafka_probe_console.connection_ends import KEY, KNOWN_CONNECTIONS, ends_in
from kafka_probe_console.end_columns import nat_of, not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

GROUPS = ("client", "workload", "broker", "node")
_COUNTS = ("opened", "ended", "open", "opened_per_min", "ended_per_min", "lifetime_ms", "shortest_ms")


def connection_counts(
    tables: OpenTables, period: Period, groups: Sequence[str], *, sort: str, internal: bool
) -> AnswerView:
    """Return counts of connections by some of GROUPS.

    opened, ended: in the period, open: at its end. Those that agents found open when they started are not among the
    opened, and their lifetime is not known.
    """
    reported_ends, values = ends_in(tables, period)
    begin, end = period.begin, period.end or datetime.now(UTC)
    lasted = "1000 * (epoch(ended) - epoch(opened))"
    sql = f"""
        WITH once AS (
            SELECT {KEY} AS key, min(opened) AS opened, max(ended) AS ended, max(seen) AS seen,
                min(received) AS received, coalesce(bool_or(found = 'start'), false) AS is_new,
                coalesce(max(client_id) FILTER (side != 'server'), max(client_id)) AS client,
                max(workload) FILTER (side != 'server') AS workload, max(node) FILTER (side != 'server') AS node,
                coalesce(max(ends.local) FILTER (side = 'server'), max(nat.peer), max(ends.peer)) AS broker
            FROM {reported_ends} ends LEFT JOIN {nat_of(tables)} nat USING (agent_id, conn_id) GROUP BY key
        )
        SELECT *, {", ".join(f"{count} / minutes AS {count}_per_min" for count in ("opened", "ended"))} FROM (
            SELECT {", ".join(groups)}, count(*) FILTER (is_new AND opened >= begun) AS opened,
                count(ended) AS ended, count(*) FILTER (ended IS NULL) AS open,
                median({lasted}) FILTER (is_new AND ended IS NOT NULL) AS lifetime_ms,
                min({lasted}) FILTER (is_new AND ended IS NOT NULL) AS shortest_ms,
                min(opened) AS first, max(seen) AS last, any_value(minutes) AS minutes
            FROM (
                SELECT *, coalesce(?::TIMESTAMPTZ, min(received) OVER ()) AS begun,
                    greatest(epoch(?::TIMESTAMPTZ) - epoch(begun), 1) / 60 AS minutes
                FROM once
            ) WHERE (ended IS NULL OR ended >= begun) AND {not_internal("client", internal=internal)} GROUP BY ALL
        )
    """
    return AnswerView(
        sql=sql,
        values=(*values, begin, end),
        columns=columns(*groups, *_COUNTS, "last", "first", numbers=_COUNTS, times={"last", "first"}),
        sort=sort,
        time="last",
        subject="connection",
        known=KNOWN_CONNECTIONS,
    )
