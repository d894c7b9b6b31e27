"""Chooses the sink of `kafka-probe top`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from kafka_probe.top import LiveTop, PlainTop

if TYPE_CHECKING:
    from kafka_probe.interactive_top import InteractiveTop


def top_sink(
    once_s: float | None = None, as_json: bool = False, *, internal: bool = False, ports: str = "all ports"
) -> PlainTop | LiveTop | InteractiveTop:
    """Return a live sink on a terminal; a plain one for pipes, JSON, one table, or a dumb terminal.

    The live one takes keys if Textual is installed, which draws on standard error. ports: a text about those watched.
    """
    if once_s is not None or as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainTop(once_s, as_json, internal=internal)
    if sys.stdin.isatty() and sys.stderr.isatty():
        with suppress(ImportError):
            from kafka_probe.interactive_top import InteractiveTop

            return InteractiveTop(internal=internal, ports=ports)
    return LiveTop(internal=internal)
