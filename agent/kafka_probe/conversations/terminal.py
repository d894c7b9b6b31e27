"""Fits the lines of conversations to a terminal: wraps them below their times, and colors names and ends."""

from __future__ import annotations

import os
import re
import textwrap
from contextlib import suppress

import click

from kafka_probe.conversations.conversation import CLIENT, INDENT

LINE_LIMIT = 1 << 16
"""Most characters of a line: of each list it has up to 256 items."""
_LEAST_COLUMNS, _USUAL_COLUMNS = 40, 80
_END = re.compile(rf"{INDENT}(closed by |no response|[\d.]+ s of silence$)")


class Terminal:
    """The terminal of a file descriptor, by default standard output, or what replaces it, such as a pipe."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._columns = _USUAL_COLUMNS
        self._is_terminal = os.isatty(descriptor) and os.environ.get("TERM") != "dumb"
        self._colors = self._is_terminal and not os.environ.get("NO_COLOR")

    def fitted(self, line: str) -> str:
        """Return a printable line as it is shown, without its newline. On anything but a terminal it stays as it is."""
        if not self._is_terminal:
            return line
        with suppress(OSError):  # it is gone
            self._columns = max(os.get_terminal_size(self._descriptor).columns, _LEAST_COLUMNS)
        text = "\n".join(textwrap.wrap(line, self._columns, subsequent_indent=f"{INDENT}  ", break_on_hyphens=False))
        if self._colors and line.startswith(CLIENT):
            return click.style(text, bold=True)
        return click.style(text, fg="yellow") if self._colors and _END.match(line) else text
