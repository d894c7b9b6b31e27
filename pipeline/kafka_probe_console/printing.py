"""Prints answers: as a table that fits the terminal, as JSON, or as comma-separated values."""

from __future__ import annotations

import csv
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len, set_cell_size

from kafka_probe.text import MESSAGE_LIMIT, NAME_LIMIT, as_json, printable
from kafka_probe_console.columns import AnswerColumn, Kind
from kafka_probe_console.period import local_time

if TYPE_CHECKING:
    from kafka_probe_console.views import Answer, Details

_GAP = "  "
_MOST_OF_CELL = 40  # columns of a text on a terminal: a stranger may choose it
_CUT = "…"
_LEAST_COLUMNS = 40
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def terminal_columns(descriptor: int = 1) -> int | None:
    """Return the width of the terminal; None if it is none, such as a pipe."""
    try:
        return max(os.get_terminal_size(descriptor).columns, _LEAST_COLUMNS)
    except OSError:
        return None


def table(answer: Answer, width: int | None) -> Iterator[str]:
    """Yield the lines of a table: as many of the first columns as fit, and the names of the others."""
    zone = datetime.now().astimezone().tzinfo
    most = None if width is None else min(_MOST_OF_CELL, width)
    texts = [
        [_fitted(_text(column, value, zone), most) for column, value in zip(answer.columns, row, strict=True)]
        for row in answer.rows
    ]
    heads = [_head(column, zone) for column in answer.columns]
    widths = [max(map(cell_len, column)) for column in zip(heads, *texts, strict=True)]
    shown = _fitting(widths, width)
    numbers = [column.kind is Kind.NUMBER for column in answer.columns]
    for row in (heads, *texts):
        cells = (_cell(*one) for one in zip(row[:shown], widths, numbers, strict=False))
        yield _GAP.join(cells).rstrip()
    if left_out := answer.columns[shown:]:
        yield f"Not shown: {', '.join(column.name for column in left_out)}. A wider terminal or --columns shows them."


def records(answer: Answer, details: Details | None, heading: int, width: int | None) -> Iterator[str]:
    """Yield each row as a heading of its first columns, and a line per further value and detail."""
    zone = datetime.now().astimezone().tzinfo
    names = [column.name for column in answer.columns[heading:]]
    of_rows = details or [{}] * len(answer.rows)
    indent = len(_GAP) + max(map(len, (*names, *(name for one in of_rows for name in one)))) + len(_GAP)
    for number, (row, own) in enumerate(zip(answer.rows, of_rows, strict=True)):
        if number:
            yield ""
        texts = [_text(column, value, zone, MESSAGE_LIMIT) for column, value in zip(answer.columns, row, strict=True)]
        yield from _wrapped("", _GAP.join(filter(None, texts[:heading])), len(_GAP), width)
        of_own = ((name, printable(text, MESSAGE_LIMIT)) for name, text in own.items() if isinstance(text, str))
        for name, text in (*of_own, *zip(names, texts[heading:], strict=True)):
            if text:
                yield from _wrapped(f"{_GAP}{name:{indent - len(_GAP)}}", text, indent, width)
        for name, lines in own.items():
            for place, line in enumerate(lines if isinstance(lines, list) else ()):
                head = "" if place else f"{_GAP}{name}"
                yield _fitted(f"{head:{indent}}{printable(line, MESSAGE_LIMIT)}", width)


def _wrapped(head: str, text: str, indent: int, width: int | None) -> list[str]:
    """Return a text behind a head, on so many lines as it takes; all but the first have the indent."""
    if width is None:
        return [head + text]
    most = max(width, indent + _LEAST_COLUMNS)
    return textwrap.wrap(text, most, initial_indent=head, subsequent_indent=" " * indent, break_on_hyphens=False)


def json_lines(answer: Answer, details: Details | None = None) -> Iterator[str]:
    """Yield a JSON object per row."""
    names = [column.name for column in answer.columns]
    for number, row in enumerate(plain_rows(answer)):
        yield as_json({**dict(zip(names, row, strict=True)), **(details[number] if details else {})}).decode()


def plain_rows(answer: Answer) -> Iterator[list[object]]:
    """Yield the rows for JSON and CSV: times in UTC."""
    for row in answer.rows:
        yield [_plain(column, value) for column, value in zip(answer.columns, row, strict=True)]


def write_csv(columns: Iterable[str], rows: Iterable[Sequence[object]], file: TextIO) -> None:
    """Write comma-separated values with a line of the columns' names, if there is any row."""
    writer = csv.writer(file, lineterminator="\n")
    for number, row in enumerate(rows):
        if not number:
            writer.writerow(columns)
        writer.writerow(map(_csv_cell, row))
    file.flush()


def _csv_cell(value: object) -> object:
    """Return a value for CSV in which a spreadsheet sees a text where it would see a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value, MESSAGE_LIMIT)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _fitting(widths: Sequence[int], width: int | None) -> int:
    """Return how many of the first columns fit; at least one."""
    used = -len(_GAP)
    for number, one in enumerate(widths):
        used += len(_GAP) + one
        if number and width is not None and used > width:
            return number
    return len(widths)


def _cell(text: str, width: int, is_number: bool) -> str:
    padding = " " * max(0, width - cell_len(text))
    return padding + text if is_number else set_cell_size(text, width)


def _fitted(text: str, most: int | None) -> str:
    if most is None or cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1).rstrip() + _CUT


def _head(column: AnswerColumn, zone: tzinfo | None) -> str:
    return f"{column.name} ({datetime.now(zone).tzname()})" if column.kind is Kind.TIME else column.name


def _text(column: AnswerColumn, value: object, zone: tzinfo | None, most: int = NAME_LIMIT) -> str:
    if value is None:
        return ""
    if column.kind is Kind.TIME and isinstance(value, int):
        time = local_time(value, zone)
        return time.strftime("%Y-%m-%d %H:%M:%S") if time else f"{value} µs"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and column.kind is Kind.NUMBER else printable(value, most)


def _plain(column: AnswerColumn, value: object) -> object:
    if column.kind is not Kind.TIME or not isinstance(value, int):
        return value
    time = local_time(value, UTC)
    return time.isoformat() if time else value
