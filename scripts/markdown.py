"""Writes Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ("---",) * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
