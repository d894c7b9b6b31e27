"""Views: the answers to questions as SQL over the tables, and the rows that a user selects of one.

Conditions, order and columns that a user gives apply to the columns of the view. Names of columns come from the view,
all values are bound parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_probe.errors import UsageError
from kafka_probe_console.columns import AnswerColumn, Kind
from kafka_probe_console.filters import condition
from kafka_probe_console.period import Period

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables, Row


Details = Sequence[Mapping[str, str | list[str] | None]]
"""Of each row what its columns do not have, by name: texts, None where they are unknown, or lists of lines."""


@dataclass(frozen=True, slots=True)
class AnswerView:
    """The answer to a question, before a user's conditions."""

    sql: str
    values: tuple[object, ...]
    columns: tuple[AnswerColumn, ...]
    """in the order of their importance"""
    sort: str
    """the column by which it is sorted unless the user names another"""
    time: str
    """the column of its rows' time"""
    subject: str
    """what its rows are, in the singular"""
    known: str
    """SQL that returns how many facts the tables have of it, and the times of the first and the last, µs since epoch"""
    known_subject: str = ""
    """what these facts are, if not the subject"""
    heading: int = 0
    """number of columns that are the heading of each row; the others have a line each. 0: the rows are a table"""
    details: Callable[[OpenTables, Sequence[Mapping[str, Any]]], Details] | None = None
    """returns the details of rows, each a mapping of the names of columns, with times as µs since epoch"""
    note: str = ""
    """a sentence for the user"""
    graph: Callable[[Answer], Iterator[str]] | None = None
    """returns the lines of a graph in DOT for rows with all columns; None: the user wants no graph"""
    explained: Callable[[Answer], Iterator[str]] | None = None
    """returns the lines below a table"""


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a view that a user wants. columns: names, in the order in which they are shown; None: all."""

    limit: int
    filter: str | None = None
    sort: str | None = None
    columns: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a view with the columns that were selected; more: further rows match."""

    columns: tuple[AnswerColumn, ...]
    rows: Sequence[Row]
    more: bool


def answer(view: AnswerView, wanted: Selection, tables: OpenTables) -> Answer:
    """Return the part of a view that a user wants. Times are µs since epoch.

    Raises:
        UsageError: the view has no such column, or the text is not a filter.
    """
    columns = _columns(view, wanted.columns)
    where, values = condition(wanted.filter, view.columns) if wanted.filter else ("true", ())
    (sort, *others) = _columns(view, wanted.sort or view.sort)
    if others:
        raise UsageError("Give one column to sort by.")
    direction = "ASC" if sort.kind is Kind.TEXT else "DESC"
    names = ", ".join(f'"{column.name}"' for column in columns)
    shown = ", ".join(f'epoch_us("{one.name}")' if one.kind is Kind.TIME else f'"{one.name}"' for one in columns)
    order = f'"{sort.name}" {direction} NULLS LAST, {names}'
    ask = f"SELECT {shown} FROM ({view.sql}) WHERE {where} ORDER BY {order} LIMIT ?"
    rows = [*tables.rows(ask, [*view.values, *values, wanted.limit + 1])]
    return Answer(columns, rows[: wanted.limit], len(rows) > wanted.limit)


def nearest_us(view: AnswerView, wanted: Selection, to: Period, tables: OpenTables) -> int | None:
    """Return the time of the row that is nearest to a period, µs since epoch; None without any.

    view: without that period.
    """
    where, values = condition(wanted.filter, view.columns) if wanted.filter else ("true", ())
    bounds = [round(bound.timestamp() * 1e6) for bound in (to.begin, to.end) if bound]
    distance = f"least({', '.join(['abs(us - ?)'] * len(bounds))})"
    ask = f"""
        SELECT us FROM (SELECT epoch_us("{view.time}") AS us FROM ({view.sql}) WHERE {where}) WHERE us IS NOT NULL
        ORDER BY {distance}, us LIMIT 1
    """
    return next((us for (us,) in tables.rows(ask, [*view.values, *values, *bounds])), None)


def _columns(view: AnswerView, names: str | None) -> tuple[AnswerColumn, ...]:
    if names is None:
        return view.columns
    known = {column.name: column for column in view.columns}
    given = [name.strip() for name in names.split(",")]
    if unknown := [name for name in given if name not in known]:
        raise UsageError(f"There is no column {unknown[0]!r}. The columns are {', '.join(known)}.")
    return tuple(known[name] for name in dict.fromkeys(given))


def within(time: str, period: Period) -> tuple[str, tuple[object, ...]]:
    """Return the condition that a time is in a period, with its values; `date` lets readers skip files."""
    parts, values = ["true"], list[object]()
    first_date, last_date = period.dates
    if period.begin:
        parts.append(f"date >= ? AND {time} >= ?")
        values += [first_date, period.begin]
    if period.end:
        parts.append(f"date <= ? AND {time} < ?")
        values += [last_date, period.end]
    return " AND ".join(parts), tuple(values)
