"""The language of `--filter`: comparisons of columns with values, joined by `and`, `or`, `not` and parentheses.

    count >= 20 and (client ~ 'billing-*' or not cause = normal)

Operators are =, !=, <, <=, >, >= and, for texts, ~ and !~ with patterns as in shells. A value is a word or a text in
quotes. Values become bound parameters, and columns are those of the view, so no text of a user is part of SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kafka_probe.errors import UsageError
from kafka_probe.text import printable
from kafka_probe_console.columns import AnswerColumn, Kind
from kafka_probe_console.period import moment

MOST_CHARACTERS, MOST_COMPARISONS, MOST_DEPTH = 4096, 64, 16
_TOKEN = re.compile(
    r"""\s*(?:(?P<symbol>[()]|!=|!~|<=|>=|[=<>~])|(?P<quoted>'[^']*'|"[^"]*")|(?P<word>[^\s()=<>!~'"]+))"""
)
_SQL = {
    "=": "{} IS NOT DISTINCT FROM ?",
    "!=": "{} IS DISTINCT FROM ?",
    **{operator: f"{{}} {operator} ?" for operator in ("<", "<=", ">", ">=")},
    "~": "{} GLOB ?",
    "!~": "NOT coalesce({} GLOB ?, false)",
}
_MOST_NUMBER = (1 << 63) - 1


def condition(text: str, columns: Iterable[AnswerColumn]) -> tuple[str, Sequence[object]]:
    """Return the condition in SQL that a filter means, and its values.

    A comparison with a missing value is false, except with != and !~.

    Raises:
        UsageError: the text is not a filter, or is too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"A filter has at most {MOST_CHARACTERS:,} characters.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("The filter is not valid UTF-8.") from None
    parser = _Parser([*_tokens(text)], {column.name: column for column in columns})
    return parser.whole(), parser.values


def _tokens(text: str) -> Iterable[tuple[str, str]]:
    """Yield the tokens of a filter, each with its kind: symbol, quoted or word."""
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if not found or not found.lastgroup:
            raise UsageError(f"The filter cannot be read from {printable(text[at:].strip(), 20)!r} on.")
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


@dataclass(slots=True)
class _Parser:
    """Reads tokens as: or of and of [not] comparison or parenthesis."""

    tokens: list[tuple[str, str]]
    columns: dict[str, AnswerColumn]
    values: list[object] = field(default_factory=list)
    at: int = 0
    depth: int = 0

    def whole(self) -> str:
        sql = self._either()
        if self.at < len(self.tokens):
            raise UsageError(f"The filter has {printable(self.tokens[self.at][1])!r} where `and` or `or` was expected.")
        return sql

    def _either(self) -> str:
        parts = [self._both()]
        while self._take_word("or"):
            parts.append(self._both())
        return f"({' OR '.join(parts)})"

    def _both(self) -> str:
        parts = [self._one()]
        while self._take_word("and"):
            parts.append(self._one())
        return f"({' AND '.join(parts)})"

    def _one(self) -> str:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UsageError(f"A filter has at most {MOST_DEPTH} levels of `not` and parentheses.")
        if self._take_word("not"):
            sql = f"NOT {self._one()}"
        elif self._take(("symbol", "(")):
            sql = self._either()
            if not self._take(("symbol", ")")):
                raise UsageError("The filter has a parenthesis that is not closed.")
        else:
            sql = self._comparison()
        self.depth -= 1
        return sql

    def _comparison(self) -> str:
        if len(self.values) == MOST_COMPARISONS:
            raise UsageError(f"A filter has at most {MOST_COMPARISONS} comparisons.")
        name = self._next("word", "a column")
        if name not in self.columns:
            raise UsageError(f"There is no column {printable(name)!r}. The columns are {', '.join(self.columns)}.")
        operator = self._next("symbol", f"an operator behind {name}")
        is_text = self.columns[name].kind is Kind.TEXT
        if operator not in _SQL or (operator.endswith("~") and not is_text):
            kinds = "= != < <= > >=" + " ~ !~" * is_text
            raise UsageError(f"{printable(operator)!r} is no operator for {name}. Use one of {kinds}.")
        self.values.append(_value(self.columns[name], self._value_text(name)))
        column = f'"{name}"'
        return f"coalesce({_SQL[operator].format(column)}, false)"

    def _value_text(self, name: str) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind not in ("word", "quoted"):
            raise UsageError(f"The filter lacks a value for {name}. Put texts with spaces or symbols in quotes.")
        self.at += 1
        return text[1:-1] if kind == "quoted" else text

    def _next(self, kind: str, expected: str) -> str:
        if self.at == len(self.tokens) or self.tokens[self.at][0] != kind:
            found = printable(self.tokens[self.at][1]) if self.at < len(self.tokens) else "its end"
            raise UsageError(f"The filter has {found!r} where {expected} was expected.")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _take(self, token: tuple[str, str]) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def _take_word(self, word: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "word" and self.tokens[self.at][1].lower() == word:
            self.at += 1
            return True
        return False


def _value(column: AnswerColumn, text: str) -> object:
    """Return the value that a text means for a column."""
    match column.kind:
        case Kind.TEXT:
            return text
        case Kind.TIME:
            return moment(text, datetime.now(UTC))
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{printable(text)!r} is not a number, as {column.name} is.") from None
    if not abs(number) <= _MOST_NUMBER:
        raise UsageError(f"{printable(text)} is too large a number.")
    return number
