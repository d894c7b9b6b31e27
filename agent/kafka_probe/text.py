"""Text from outside, made safe to print, to log and to send as text.

Client ids, topics, groups, command names and error messages come from strangers. `printable` escapes in them what
moves a cursor, starts a line, hides or reorders text, and bounds their length. Nothing here reads or writes; markup
(rich, HTML) is the matter of the caller, which passes text as text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from unicodedata import category

NAME_LIMIT = 256
"""Most characters of a name: Kafka's topics have up to 249."""
MESSAGE_LIMIT = 8192
"""Most characters of a log message or of one line of an error."""

_CUT = "…"
_NOT_PLAIN_ASCII = re.compile(rb"[\x7f-\xff]+")
_BLANK = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159))
) | frozenset(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Letters, marks and symbols without a visible form, such as fillers and variation selectors."""
_MARKS_IN_A_ROW = 4
"""Most marks above and below one character: Vietnamese has two, Hebrew three."""


def printable(value: object, limit: int = NAME_LIMIT) -> str:
    r"""Return the value as one line of at most `limit` visible characters; `…` ends a text that was cut.

    Escaped as in Python (`\x1b`, `\u202e`) are all characters of Unicode's categories Other and Separator but the
    space (control characters, line separators, bidirectional overrides, zero-width characters, lone surrogates), blank
    letters and symbols, and the marks on one character from the fifth on. A backslash stays as it is; JSON output has
    the exact text.
    """
    text = _escaped(str(value)[: limit + 1], lambda char: ascii(char)[1:-1])
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def printable_lines(text: str) -> str:
    """Return a text of our own that has several lines, each of them printable."""
    return "\n".join(printable(line, MESSAGE_LIMIT) for line in text.split("\n"))


def printable_json(line: bytes) -> bytes:
    r"""Return the same JSON with `\u` escapes for what `printable` escapes.

    JSON encoders escape C0 only; DEL, C1 and the like may stand in JSON text but not on a terminal.
    """
    if line.isascii() and b"\x7f" not in line:
        return line
    return _NOT_PLAIN_ASCII.sub(lambda found: _escaped(found[0].decode(), _json_escape).encode(), line)


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for char in text:
        marks = marks + 1 if category(char) in ("Mn", "Me") else 0
        visible = char.isprintable() and char not in _BLANK and marks <= _MARKS_IN_A_ROW
        shown.append(char if visible else escape(char))
    return "".join(shown)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


class LineFormatter(logging.Formatter):
    """Log records as text: one line each, and the lines of an exception indented below it.

    No text from outside begins a line, so that none can pass for a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.message = printable(record.getMessage(), MESSAGE_LIMIT)
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        below = (f"\n  {line}" for line in printable_lines(exception).splitlines())
        return "".join([self.formatMessage(record), *below])
