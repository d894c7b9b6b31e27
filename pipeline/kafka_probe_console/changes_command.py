"""The command `kafka-probe changes`: what is new, gone, doubled or halved against an earlier period.

Clients and topics have rates. Libraries and API versions are properties: they change only while their client stays.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from kafka_probe.errors import UsageError
from kafka_probe.text import printable
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import not_internal
from kafka_probe_console.period import Period, hour_from, local_time, moment, moved
from kafka_probe_console.traffic import FIRST, KNOWN_CLIENTS, LAST, LIBRARY, topic_names
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_OF_APIS, _OF_TOPICS = "level = 'api'", "level = 'topic' AND api"
_FACTS = {
    "client": (_OF_APIS, "client", "client", "NULL"),
    "library": (f"{_OF_APIS} AND client IS NOT NULL", "library", "client", "client"),
    "API version": (
        f"{_OF_APIS} AND client IS NOT NULL",
        "api || ' ' || api_version",
        "client",
        "client || ' ' || api",
    ),
    "writes to topic": (f"{_OF_TOPICS} = 'Produce'", "topic", "NULL", "NULL"),
    "reads of topic": (f"{_OF_TOPICS} IN ('Fetch', 'ShareFetch')", "topic", "NULL", "NULL"),
}
"""What may change: the condition on its rows in `traffic`, its name, its client, and what it is a property of."""
_LEAST = 60
"""Requests by which the two periods differ at least: rates of a few requests double by chance."""
_RATES = ("before_per_min", "after_per_min", "difference_per_min")
_SHOWN_NODES = 5
_DAY = timedelta(days=1)


class _Compared(NamedTuple):
    """A period with a begin and an end."""

    begin: datetime
    end: datetime


@click.command(
    epilog="""\b
Examples:
  kafka-probe changes --tables kafka-probe-output --at 14:00
  kafka-probe changes --tables kafka-probe-output --since 1h --against 1d
"""
)
@click.option(
    "--against",
    metavar="AGE",
    help="compare with the same period this much earlier [default: the period before]",
)
@internal_flag
@prints_view(since="1h", at=hour_from, at_help="compare the hour that begins then with the one before")
def changes(tables: OpenTables, period: Period, against: str | None, *, internal: bool) -> AnswerView:
    """Print which clients, libraries, API versions and topics are new or gone, and which rates doubled or halved.

    `--at` compares the hour from then on with the hour before. Rates are requests per minute.
    """
    tables.require("traffic")
    before, after = _periods(period, against, _newest(tables))
    (where_before, values_before), (where_after, values_after) = (
        within("window_start", Period(*one)) for one in (before, after)
    )
    minutes = (after.end - after.begin).total_seconds() / 60
    facts = " UNION ALL ".join(
        f"""
        SELECT '{what}' AS what, {name} AS name, {client} AS client, {owner} AS owner, side, is_after, requests, first,
            last
        FROM uses WHERE {rows}
        """
        for what, (rows, name, client, owner) in _FACTS.items()
    )
    sql = f"""
        WITH uses AS NOT MATERIALIZED (
            SELECT {where_after} AS is_after, side, level, client_id AS client, api, api_version, requests,
                {LIBRARY} AS library, coalesce(topic, name, topic_id) AS topic, {FIRST} AS first, {LAST} AS last
            FROM traffic LEFT JOIN {topic_names(tables)} USING (topic_id)
            WHERE (({where_before}) OR ({where_after})) AND {not_internal("client_id", internal=internal)}
        ),
        of_sides AS (
            SELECT what, name, client, owner, side, coalesce(sum(requests) FILTER (NOT is_after), 0)::DOUBLE AS before,
                coalesce(sum(requests) FILTER (is_after), 0)::DOUBLE AS after, min(first) AS first, max(last) AS last
            FROM ({facts}) WHERE name IS NOT NULL GROUP BY ALL
        ),
        compared AS (
            SELECT what, name, client, owner, max(before) AS before, max(after) AS after, min(first) AS first,
                max(last) AS last, CASE WHEN max(before) = 0 THEN 'new' WHEN max(after) = 0 THEN 'gone'
                    WHEN max(after) > max(before) THEN 'more' ELSE 'less' END AS change
            FROM of_sides GROUP BY ALL
        )
        SELECT *, before / minutes AS before_per_min, after / minutes AS after_per_min,
            abs(after - before) / minutes AS difference_per_min
        FROM compared, (SELECT ?::DOUBLE AS minutes)
        -- A property changes only if its owner is in both periods, and its rate is that of its owner.
        QUALIFY CASE
            WHEN change NOT IN ('new', 'gone') THEN owner IS NULL AND abs(after - before) >= {_LEAST}
                AND (after >= 2 * before OR before >= 2 * after)
            WHEN owner IS NOT NULL THEN sum(before) OVER (PARTITION BY what, owner) > 0
                AND sum(after) OVER (PARTITION BY what, owner) > 0
            ELSE before > 0 OR after > 0
        END
    """
    return AnswerView(
        sql=sql,
        values=(*values_after, *values_before, *values_after, minutes),
        columns=columns(
            *("change", "what", "name", "client", *_RATES, "last", "first"), numbers=_RATES, times={"last", "first"}
        ),
        sort="difference_per_min",
        time="last",
        subject="change",
        known=KNOWN_CLIENTS,
        known_subject="client",
        note=_note(tables, before, after),
    )


def _newest(tables: OpenTables) -> datetime:
    """Return the end of the newest traffic: the tables are a minute or two behind the clients."""
    now = datetime.now(UTC)
    ask = f"SELECT epoch_us(max({LAST})) FROM traffic WHERE date >= ?"
    ((newest_us,),) = tables.rows(ask, [moved(now, -_DAY).date()])
    return (newest_us and local_time(newest_us, UTC)) or now


def _periods(period: Period, against: str | None, newest: datetime) -> tuple[_Compared, _Compared]:
    """Return the earlier period and the period until the newest traffic; both are empty if any time is meant.

    Raises:
        UsageError: the period has no begin, or both have a time in common.
    """
    end = max(min(period.end or newest, newest), period.begin or newest)
    if period.end and not period.begin:
        raise UsageError("Give --from with --until.")
    length = timedelta(seconds=round((end - (period.begin or end)).total_seconds()))
    shift = length if against is None else end - moment(against, end)
    if shift < length:
        raise UsageError(f"--against {printable(against)} is shorter than the period, which is {length}.")
    earlier = moved(end, -shift)
    return _Compared(moved(earlier, -length), earlier), _Compared(end - length, end)


def _note(tables: OpenTables, before: _Compared, after: _Compared) -> str:
    """Return sentences about the periods, and about the nodes whose agents reported in only one of them."""
    periods = " with ".join(
        f"{one.begin.astimezone():%Y-%m-%d %H:%M:%S} to {one.end.astimezone():%H:%M:%S %Z}" for one in (after, before)
    )
    compared = f"Compared: {periods}."
    if not tables.add("agents"):
        return compared
    reports = [within("received_ts", Period(*one)) for one in (before, after)]
    of_before, of_after = (f"SELECT node FROM agents WHERE {where}" for where, _ in reports)
    ask = f"({of_before} EXCEPT {of_after}) UNION ({of_after} EXCEPT {of_before}) ORDER BY node"
    ((_, first), (_, second)) = reports
    nodes = [printable(node) for (node,) in tables.rows(ask, [*first, *second, *second, *first])]
    if not nodes:
        return compared
    shown = ", ".join(nodes[:_SHOWN_NODES])
    more = f" and {len(nodes) - _SHOWN_NODES} more" if len(nodes) > _SHOWN_NODES else ""
    return f"{compared} Agents of {shown}{more} reported in one of them only, so what they saw may seem new or gone."
