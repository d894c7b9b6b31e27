"""Prints answers: as a table that fits the terminal, as JSON, or as comma-separated values."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from kafka_probe.text import MESSAGE_LIMIT, NAME_LIMIT, as_json, printable
from kafka_probe_console.columns import AnswerColumn, Kind
from kafka_probe_console.period import local_time

if TYPE_CHECKING:
    from kafka_probe_console.views import Answer, Details

_GAP = "  "
_MOST_OF_CELL = 40  # columns of a text on a terminal: a stranger may choose it
_CUT = "…"
_ABSENT = "-"  # in a heading, whose values have no names
_LEAST_COLUMNS, _LEAST_OF_LINE = 40, 20
_SPACES = re.compile(" {2,}")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def terminal_columns(descriptor: int = 1) -> int | None:
    """Return the width of the terminal; None if it is none, such as a pipe."""
    try:
        return max(os.get_terminal_size(descriptor).columns, _LEAST_COLUMNS)
    except OSError:
        return None


def table(answer: Answer, width: int | None) -> Iterator[str]:
    """Yield the lines of a table: as many of the first columns as fit, and the names of the others."""
    most = None if width is None else min(_MOST_OF_CELL, width)
    texts = [
        [_fitted(_text(column, value), most) for column, value in zip(answer.columns, row, strict=True)]
        for row in answer.rows
    ]
    heads = [column.name for column in answer.columns]
    widths = [max(map(cell_len, column)) for column in zip(heads, *texts, strict=True)]
    shown = _fitting(widths, width)
    numbers = [column.kind is Kind.NUMBER for column in answer.columns]
    for row in (heads, *texts):
        cells = (_cell(*one) for one in zip(row[:shown], widths, numbers, strict=False))
        yield _GAP.join(cells).rstrip()
    if left_out := answer.columns[shown:]:
        yield f"Not shown: {', '.join(column.name for column in left_out)}. A wider terminal or --columns shows them."


def blocks(answer: Answer, details: Details | None, heading: int, width: int | None) -> Iterator[str]:
    """Yield each row as a heading of its first columns, and a line per further value and detail.

    Names from outside cannot pass for other lines: a heading is one line, and what goes on in the next line is indented
    deeper than the name of a value.
    """
    names = [column.name for column in answer.columns[heading:]]
    of_rows = details or [{}] * len(answer.rows)
    indent = len(_GAP) + max(map(len, (*names, *(name for one in of_rows for name in one)))) + len(_GAP)
    for number, (row, own) in enumerate(zip(answer.rows, of_rows, strict=True)):
        if number:
            yield ""
        cells = zip(answer.columns, row, strict=True)
        texts = [_SPACES.sub(" ", _text(column, value, MESSAGE_LIMIT)) for column, value in cells]
        yield _fitted(_GAP.join(text or _ABSENT for text in texts[:heading]), width)
        of_own = ((name, printable(text, MESSAGE_LIMIT)) for name, text in own.items() if isinstance(text, str))
        for name, text in (*of_own, *zip(names, texts[heading:], strict=True)):
            for place, line in enumerate(_wrapped(text, width and width - indent)):
                yield f"{'' if place else _GAP + name:{indent}}{line}"
        for name, lines in own.items():
            for place, line in enumerate(lines if isinstance(lines, list) else ()):
                yield _fitted(f"{'' if place else _GAP + name:{indent}}{printable(line, MESSAGE_LIMIT)}", width)


def _wrapped(text: str, width: int | None) -> list[str]:
    """Return a text as lines of at most that many columns of a terminal, which wide characters take two of."""
    if not text or width is None:
        return [text] if text else []
    return [line.plain.rstrip() for line in Text(text).wrap(Console(), max(width, _LEAST_OF_LINE), overflow="fold")]


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


def _text(column: AnswerColumn, value: object, most: int = NAME_LIMIT) -> str:
    if value is None:
        return ""
    if column.kind is Kind.TIME and isinstance(value, int):
        time = local_time(value)
        return time.strftime("%Y-%m-%d %H:%M:%S %Z") if time else f"{value} µs"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and column.kind is Kind.NUMBER else printable(value, most)


def _plain(column: AnswerColumn, value: object) -> object:
    if column.kind is not Kind.TIME or not isinstance(value, int):
        return value
    time = local_time(value, UTC)
    return time.isoformat() if time else value
