"""The flags that all commands for questions have, and what these commands print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from kafka_probe.errors import UsageError
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.period import Period, period
from kafka_probe_console.printing import csv_rows, json_lines, table, terminal_columns, write_csv
from kafka_probe_console.views import Selection, View, answer
from kafka_probe_console.waiting import Waiting

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_Flag = Callable[[Callable[..., None]], Callable[..., None]]

tables_flag = click.option(
    "--tables", "location", envvar="KAFKA_PROBE_TABLES", metavar="URI", help="--output of the pipeline"
)
_FLAGS: tuple[_Flag, ...] = (
    tables_flag,
    click.option("--since", metavar="AGE", help="only since then, such as 15m, 2h or 7d [default: 1d]"),
    click.option("--from", "begin", metavar="TIME", help="only from then on, an age or ISO 8601"),
    click.option("--until", "end", metavar="TIME", help="only before then, an age or ISO 8601"),
    click.option("--filter", "conditions", metavar="TEXT", help="only rows that match, such as 'count > 20'"),
    click.option("--sort", metavar="COLUMN", help="texts ascending, numbers and times descending"),
    click.option("--columns", metavar="NAMES", help="columns to print, separated by commas"),
    click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="most rows"),
    click.option("--internal", is_flag=True, help="also kafka-probe's own clients"),
    click.option("--json", "as_objects", is_flag=True, help="print one JSON object per row"),
    click.option("--csv", "as_csv", is_flag=True, help="print comma-separated values"),
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the tables that a question is about: a period, with or without kafka-probe's own clients."""

    period: Period
    internal: bool


def answers(view_of: Callable[..., View]) -> Callable[..., None]:
    """Return a command that prints a view. view_of returns it for a Scope and the command's own flags."""

    @wraps(view_of)
    def run(
        location: str | None,
        since: str | None,
        begin: str | None,
        end: str | None,
        conditions: str | None,
        sort: str | None,
        columns: str | None,
        limit: int,
        *,
        internal: bool,
        as_objects: bool,
        as_csv: bool,
        **own: Any,
    ) -> None:
        if as_objects and as_csv:
            raise UsageError("Use one of --json and --csv.")
        asked = period(since or (None if begin else "1d"), begin, end, datetime.now(UTC))
        view = view_of(Scope(asked, internal), **own)
        with Waiting() as waiting, tables_at(location) as tables:
            for name in view.tables:
                tables.require(name)
            found = answer(tables, view, Selection(limit, conditions, sort, columns))
            if not found.rows:
                raise NothingFoundError(f"No {view.subject} matches. {_known(tables, view)}")
            newest = _newest(tables)
            waiting.end()
        if as_csv:
            write_csv((column.name for column in found.columns), csv_rows(found), sys.stdout)
            return
        for line in json_lines(found) if as_objects else table(found, None if columns else terminal_columns()):
            click.echo(line)
        if found.more:
            click.echo(f"More than {limit} rows match: raise --limit, or give a --filter.", err=True)
        if newest and not as_objects:
            click.echo(newest, err=True)

    command: Callable[..., None] = run
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


@contextmanager
def tables_at(location: str | None) -> Iterator[OpenTables]:
    """Yield the tables that the flag --tables names.

    Raises:
        UsageError: the flag or the extra `console` is missing.
    """
    if not location:
        raise UsageError("Set --tables, or KAFKA_PROBE_TABLES, to the --output of `kafka-probe-pipeline run`.")
    try:
        from kafka_probe_console.tables import opened
    except ImportError as error:
        raise UsageError(f"Install kafka-probe[console] for this command: {error.name} is missing.") from None
    with opened(location) as tables:
        yield tables


def _known(tables: OpenTables, view: View) -> str:
    """Return a sentence about what the tables have."""
    ((number, first, last),) = tables.rows(view.known)
    if not number:
        return f"The tables have no {view.subject}."
    return f"The tables have {number:,}, from {_time(first)} to {_time(last)}."


def _newest(tables: OpenTables) -> str | None:
    """Return a sentence about the age of the newest facts, as agents report; None if the table lacks them."""
    if not tables.add("agents"):
        return None
    ((newest_us,),) = tables.rows("SELECT epoch_us(max(received_ts)) FROM agents")
    if newest_us is None:
        return None
    age_s = datetime.now(UTC).timestamp() - newest_us / 1e6
    return f"The newest report of an agent in the tables is of {_time(newest_us)}, {_age(age_s)} ago."


def _age(seconds: float) -> str:
    for unit, length_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0, seconds):.0f} seconds"


def _time(ts_us: int) -> str:
    return datetime.fromtimestamp(ts_us / 1e6).astimezone().isoformat(" ", "seconds")
