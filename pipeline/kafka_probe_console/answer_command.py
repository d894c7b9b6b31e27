"""The flags that all commands for questions have, and what these commands print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from kafka_probe.errors import UsageError
from kafka_probe_console.errors import NothingFoundError
from kafka_probe_console.period import period, written
from kafka_probe_console.printing import json_lines, plain_rows, table, terminal_columns, write_csv
from kafka_probe_console.views import AnswerView, Selection, query
from kafka_probe_console.waiting import Waiting

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_Option = Callable[[Callable[..., None]], Callable[..., None]]

tables_flag = click.option(
    "--tables", "location", envvar="KAFKA_PROBE_TABLES", metavar="URI", help="--output of the pipeline"
)
_LATELY = timedelta(days=1)
_OLD_S = 600
_FLAGS: tuple[_Option, ...] = (
    tables_flag,
    click.option("--since", metavar="AGE", help="only since then, such as 15m, 2h or 7d"),
    click.option("--from", "begin", metavar="TIME", help="only from then on, an age or ISO 8601"),
    click.option("--until", "end", metavar="TIME", help="only before then, an age or ISO 8601"),
    click.option("--filter", "conditions", metavar="TEXT", help="only rows that match, such as 'count > 20'"),
    click.option("--sort", metavar="COLUMN", help="texts ascending, numbers and times descending"),
    click.option("--columns", metavar="NAMES", help="columns to print, separated by commas"),
    click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="most rows"),
    click.option("--json", "as_objects", is_flag=True, help="print one JSON object per row"),
    click.option("--csv", "as_csv", is_flag=True, help="print comma-separated values"),
)


def prints_view(view_of: Callable[..., AnswerView]) -> Callable[..., None]:
    """Return a command that prints a view. view_of returns it for a period and the command's own flags."""

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
        as_objects: bool,
        as_csv: bool,
        **own: Any,
    ) -> None:
        if as_objects and as_csv:
            raise UsageError("Use one of --json and --csv.")
        by_default = None if begin or end else "1d"
        view = view_of(period(since or by_default, begin, end, datetime.now(UTC)), **own)
        asked = query(view, Selection(limit, conditions, sort, columns))
        with Waiting() as waiting, tables_at(location) as tables:
            found = asked.answer(tables)
            if not found.rows:
                raise NothingFoundError(f"No {view.subject} matches. {_known(tables, view)}")
            newest = _newest(tables)
            waiting.end()
        if as_csv:
            write_csv((column.name for column in found.columns), plain_rows(found), sys.stdout)
        else:
            for line in json_lines(found) if as_objects else table(found, None if columns else terminal_columns()):
                click.echo(line)
        if found.more:
            click.echo("Further rows match: raise --limit, or give a --filter.", err=True)
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


def _known(tables: OpenTables, view: AnswerView) -> str:
    """Return a sentence about what the tables have."""
    ((number, first, last),) = tables.rows(view.known)
    if not number:
        return f"The tables have no {view.subject}."
    return f"The tables have {number:,}, from {written(first)} to {written(last)}."


def _newest(tables: OpenTables) -> str:
    """Return a sentence about the age of the newest facts: agents report each minute."""
    now = datetime.now(UTC)
    newest_us = None
    if tables.add("agents"):
        ask = "SELECT epoch_us(max(received_ts)) FROM agents"
        ((newest_us,),) = tables.rows(f"{ask} WHERE date >= ?", [(now - _LATELY).date()])
        if newest_us is None:
            ((newest_us,),) = tables.rows(ask)
    if newest_us is None:
        return "The tables have no report of an agent, so their age is unknown."
    age_s = now.timestamp() - newest_us / 1e6
    text = f"The newest report of an agent in the tables is from {written(newest_us)}"
    if age_s < -_OLD_S:
        return f"{text}, which is in the future: a clock is wrong."
    if age_s > _OLD_S:
        return f"{text}, {_age(age_s)} ago: the pipeline or all agents stand still."
    return f"{text}, {_age(max(0, age_s))} ago."


def _age(seconds: float) -> str:
    for unit, length_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} seconds"
