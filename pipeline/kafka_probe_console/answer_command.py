"""The flags that all commands for questions have, and what these commands print."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kafka_probe.config import tables_of
from kafka_probe.errors import UsageError
from kafka_probe.text import printable, printable_lines
from kafka_probe_console.errors import NothingFoundError, TableError
from kafka_probe_console.period import Period, around, period, written
from kafka_probe_console.printing import blocks, json_lines, plain_rows, table, terminal_columns, write_csv
from kafka_probe_console.views import AnswerView, Selection, answer, nearest_us
from kafka_probe_console.waiting import Waiting
from kafka_probe_console.watching import unwatched

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables
    from kafka_probe_console.views import Answer, Details

_FILE = "kafka_probe.config"
_Option = Callable[[Callable[..., None]], Callable[..., None]]


def _use_file(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    """Use the setting `tables` of the file, which is read only if no flag or variable names the tables."""
    context.meta[_FILE] = file
    if file and not context.resilient_parsing:
        context.default_map = {"location": partial(tables_of, file)}


def configuration_file() -> Path | None:
    """Return the file that --config of the running command names."""
    file: Path | None = click.get_current_context().meta[_FILE]
    return file


def tables_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --tables, and --config, a file that may have it."""
    command = click.option(
        "--config",
        envvar="KAFKA_PROBE_CONFIG",
        type=click.Path(path_type=Path, readable=False),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_use_file,
        help="the agent's TOML file; its key `tables` counts unless --tables or KAFKA_PROBE_TABLES is set",
    )(command)
    return click.option(
        "--tables",
        "location",
        envvar="KAFKA_PROBE_TABLES",
        metavar="URI",
        help="the tables: --output of the pipeline",
    )(command)


internal_flag = click.option("--internal", is_flag=True, help="also kafka-probe's own clients")
_LATELY = timedelta(days=1)
_OLD_S = 600
_MOST_ROWS, _MOST_BLOCKS = 100, 10
_TIME_LIMIT_S = 120
_FLAGS: tuple[_Option, ...] = (
    click.option("--from", "begin", metavar="TIME", help="only from then on: an age, a time of day or ISO 8601"),
    click.option("--until", "end", metavar="TIME", help="only before then: an age, a time of day or ISO 8601"),
    click.option("--filter", "conditions", metavar="TEXT", help="only rows that match, such as 'COLUMN = VALUE'"),
    click.option("--sort", metavar="COLUMN", help="texts ascending, numbers and times descending"),
    click.option("--columns", metavar="NAMES", help="columns to print, separated by commas"),
    click.option("--json", "as_objects", is_flag=True, help="print one JSON object per row"),
    click.option("--csv", "as_csv", is_flag=True, help="print comma-separated values"),
    click.option(
        "--watch", type=click.IntRange(1, 86_400), metavar="SECONDS", help="ask again after so long, until Ctrl-C"
    ),
)


def prints_view(
    *,
    since: str = "1d",
    at: Callable[[str, datetime], Period] = around,
    at_help: str = "only the five minutes before and after it",
    rows_flag: str = "--limit",
) -> Callable[[Callable[..., AnswerView]], Callable[..., None]]:
    """Return a decorator that makes a command of a function, which returns a view that the command prints.

    The function gets the tables, a period and the command's own flags. since: the period unless the user names another;
    at: returns the period of --at, of which at_help is the description; rows_flag: the flag for the number of rows.
    """
    of_period = (
        click.option("--since", metavar="AGE", help=f"only since then, such as 15m, 2h or 7d [default: {since}]"),
        click.option("--at", metavar="TIME", help=f"a time, such as 14:03: {at_help}"),
    )
    most = click.option(
        rows_flag, "limit", type=click.IntRange(1, 100_000), help="most rows [default: 100; why and who: 10]"
    )
    return lambda view_of: _with_flags(_command(view_of, since, at), (tables_flags, *of_period, most, *_FLAGS))


def _with_flags(command: Callable[..., None], flags: Sequence[_Option]) -> Callable[..., None]:
    for flag in reversed(flags):
        command = flag(command)
    return command


def _command(
    view_of: Callable[..., AnswerView], default_since: str, period_at: Callable[[str, datetime], Period]
) -> Callable[..., None]:
    @wraps(view_of)
    def run(*, watch: int | None, **own: Any) -> None:
        flags = _Flags(**{name: own.pop(name) for name in _Flags._fields})
        _require_utf8(own.values())
        flags.require_valid()

        def found() -> _Found:
            return _find(partial(view_of, **own), flags, flags.period(default_since, period_at))

        if watch is None:
            _print(found(), flags)
        elif flags.as_csv:
            raise UsageError("Use --watch without --csv.")
        else:
            _repeat(found, flags, watch)

    return run


class _Flags(NamedTuple):
    """The flags that all commands have; None: not given."""

    location: str | None
    since: str | None
    begin: str | None
    end: str | None
    at: str | None
    conditions: str | None
    sort: str | None
    columns: str | None
    limit: int | None
    as_objects: bool
    as_csv: bool

    def require_valid(self) -> None:
        """Raise UsageError for flags that exclude each other."""
        if self.as_objects and self.as_csv:
            raise UsageError("Use one of --json and --csv.")
        if self.at and (self.since or self.begin or self.end):
            raise UsageError("Use --at without --since, --from and --until.")

    def period(self, default_since: str, period_at: Callable[[str, datetime], Period]) -> Period:
        """Return the period that they name, as of now."""
        now = datetime.now(UTC)
        if self.at:
            return period_at(self.at, now)
        return period(self.since or (None if self.begin or self.end else default_since), self.begin, self.end, now)


class _Found(NamedTuple):
    """An answer with all that a command prints of it. newest: a sentence about the age of the newest facts."""

    view: AnswerView
    answer: Answer
    details: Details | None
    newest: str


def _find(view_of: Callable[[OpenTables, Period], AnswerView], flags: _Flags, when: Period) -> _Found:
    """Return the answer.

    Raises:
        NothingFoundError: no row matches.
        TableError: a table is missing or cannot be read, or the time is over.
        UsageError: the view cannot be printed as the flags name it.
    """
    with Waiting(), tables_at(flags.location) as tables, tables.time_limit(_TIME_LIMIT_S):
        view = view_of(tables, when)
        if view.graph and (flags.columns or flags.as_objects or flags.as_csv):
            raise UsageError("Use --dot without --columns, --json and --csv.")
        limit = flags.limit or (_MOST_BLOCKS if view.heading else _MOST_ROWS)
        wanted = Selection(limit, flags.conditions, flags.sort, flags.columns)
        found = answer(view, wanted, tables)
        if not found.rows:
            nothing = _nothing(tables, view, partial(view_of, tables, Period()), wanted, when)
            raise NothingFoundError(f"{nothing} {view.note}".rstrip())
        details = None if flags.columns or flags.as_csv else _details(tables, view, found)
        return _Found(view, found, details, _newest(tables))


def _print(found: _Found, flags: _Flags) -> None:
    if flags.as_csv:
        names = (column.name for column in found.answer.columns)
        write_csv(names, plain_rows(found.answer), sys.stdout)
    else:
        for line in _lines(found, as_objects=flags.as_objects, by_name=flags.columns is not None):
            click.echo(line)
    if found.view.note:
        click.echo(found.view.note, err=True)
    if found.answer.more:
        click.echo(f"Further rows match: raise {_rows_flag()}, or give a --filter.", err=True)
    click.echo(found.newest, err=True)


def _rows_flag() -> str:
    return next(flag.opts[0] for flag in click.get_current_context().command.params if flag.name == "limit")


def _repeat(find: Callable[[], _Found], flags: _Flags, pause_s: int) -> None:
    """Ask again and again until Ctrl-C, also if there is no answer at present."""
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = find()
                click.clear()
                _print(found, flags)
            except (NothingFoundError, TableError) as error:
                click.clear()
                click.echo(printable_lines(str(error)), err=True)
            time.sleep(pause_s)


def _require_utf8(values: Iterable[object]) -> None:
    """Raise UsageError unless the texts are valid UTF-8, as those of the tables are."""
    for value in values:
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise UsageError(f"{printable(value)} is not valid UTF-8.")


@contextmanager
def tables_at(location: str | None) -> Iterator[OpenTables]:
    """Yield the tables at a place.

    Raises:
        UsageError: `location` is empty, or the extra `console` is missing.
    """
    if not location:
        raise UsageError(
            "Set --tables, KAFKA_PROBE_TABLES, or `tables` in the file of --config, to the --output of "
            "`kafka-probe-pipeline run`."
        )
    try:
        from kafka_probe_console.tables import opened
    except ImportError as error:
        raise UsageError(f"This command needs {error.name}: pip install '.[console]' in kafka-probe's clone.") from None
    with opened(location) as tables:
        yield tables


def _details(tables: OpenTables, view: AnswerView, found: Answer) -> Details | None:
    if view.details is None:
        return None
    names = [column.name for column in found.columns]
    try:
        return view.details(tables, [dict(zip(names, row, strict=True)) for row in found.rows])
    except TableError as error:
        click.echo(f"Some facts are left out. {error}", err=True)
        return None


def _lines(found: _Found, *, as_objects: bool, by_name: bool) -> Iterator[str]:
    """Yield what is printed of an answer. by_name: the user named the columns, so that all are shown."""
    view, rows = found.view, found.answer
    if view.graph:
        return view.graph(rows)
    if as_objects:
        return json_lines(rows, found.details)
    if view.heading and not by_name:
        return blocks(rows, found.details, view.heading, terminal_columns())
    lines = table(rows, None if by_name else terminal_columns())
    return chain(lines, view.explained(rows)) if view.explained else lines


def _nothing(
    tables: OpenTables, view: AnswerView, every: Callable[[], AnswerView], wanted: Selection, when: Period
) -> str:
    """Return sentences about what the tables have instead. every: returns the view of any time."""
    try:
        nearest = nearest_us(every(), wanted, when, tables)
        ((number, first, last),) = tables.rows(view.known)
        gaps = unwatched(tables, when)
    except TableError:  # to read all of the tables takes longer than a period of them
        return f"No {view.subject} matches."
    if not number:
        return f"No {view.subject} matches. The tables have no {view.known_subject or view.subject}."
    counted = f"{number:,} {view.known_subject}s" if view.known_subject else f"{number:,}"
    has = f"The tables have {counted}, from {written(first)} to {written(last)}. {gaps}".strip()
    if nearest is None:
        return f"No {view.subject} matches. {has}"
    return f"No {view.subject} of this time matches. The nearest that matches was at {written(nearest)}. {has}"


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
