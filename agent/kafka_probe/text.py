"""Makes text from outside safe to print, to log and to send as text.

Client ids, topics, groups, command names and error messages are not trusted. `printable` escapes characters that move
a cursor, start a line, or hide or reorder text, and limits the length. This module never reads or writes files, and
never escapes markup (rich, HTML): callers must pass the result as text, not as markup.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from unicodedata import category

import orjson

NAME_LIMIT = 256
"""Most characters of a name; Kafka's topic names have up to 249."""
MESSAGE_LIMIT = 8192
"""Most characters of a log message or of one line of an error."""

_CUT = "…"
_NOT_PLAIN_ASCII = re.compile(rb"[\x7f-\xff]+")
_INVISIBLE = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159))
) | frozenset(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Letters, marks and symbols without a visible form, such as fillers and variation selectors."""
_MARKS_IN_A_ROW = 4
"""Most combining marks on one character; Vietnamese uses two, Hebrew three."""


def printable(value: object, limit: int = NAME_LIMIT) -> str:
    r"""Return the value as one line of at most `limit` visible characters; a cut text ends with `…`.

    Escapes as in Python (`\x1b`, `\u202e`): all characters of Unicode's categories Other and Separator except the space
    (control characters, line separators, bidirectional overrides, zero-width characters, lone surrogates), blank
    letters and symbols, and from the fifth on the combining marks on one character. A backslash is not escaped; JSON
    output contains the exact text.
    """
    text = _escaped(str(value)[: limit + 1], lambda char: ascii(char)[1:-1])
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def printable_lines(text: str) -> str:
    """Return a text of kafka-probe's own with each of its lines made printable; line breaks are kept."""
    return "\n".join(printable(line, MESSAGE_LIMIT) for line in text.split("\n"))


def printable_json(line: bytes) -> bytes:
    r"""Return the same JSON with `\u` escapes for all characters that `printable` escapes.

    JSON encoders escape only C0; JSON text may contain DEL, C1 and the like, but a terminal must not receive them.
    """
    if line.isascii() and b"\x7f" not in line:
        return line
    return _NOT_PLAIN_ASCII.sub(lambda found: _escaped(found[0].decode(), _json_escape).encode(), line)


def as_json(value: object, option: int = 0) -> bytes:
    """Return the value as `printable_json`. option: orjson's.

    Copied, because what orjson returns occupies its whole buffer: 8 KiB for an event of 1 KiB.
    """
    return bytes(memoryview(printable_json(orjson.dumps(value, option=option))))


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for char in text:
        marks = marks + 1 if category(char) in ("Mn", "Me") else 0
        visible = char.isprintable() and char not in _INVISIBLE and marks <= _MARKS_IN_A_ROW
        shown.append(char if visible else escape(char))
    return "".join(shown)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


class LineFormatter(logging.Formatter):
    """Formats log records as text: one line each, followed by the indented lines of an exception.

    Text from outside never begins a line, so that it cannot imitate a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.message = printable(record.getMessage(), MESSAGE_LIMIT)
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        below = (f"\n  {line}" for line in printable_lines(exception).splitlines())
        return "".join([self.formatMessage(record), *below])
