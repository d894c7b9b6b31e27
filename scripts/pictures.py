"""Renders `top` and `trace` as SVG from the recorded events in docs/data/, by the functions that print them.

The pictures contain no address of a font or a page: a browser that shows them requests nothing else.
"""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kafka_probe import trace
from kafka_probe.top import LiveTop, TrafficTable

DATA = Path(__file__).parents[1] / "docs" / "data"
TOP_WIDTH, TRACE_WIDTH = 112, 170  # narrow enough to be read on a page; longer lines end with an ellipsis
TOP_HEIGHT = 18
# The format of rich without its fonts from the network and without its comment. Each text has its length, so that any
# monospaced font fits.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{
  font-size: 18px;
  font-weight: bold;
  font-family: sans-serif;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def top() -> str:
    """Return the live table of the recorded interval."""
    traffic = TrafficTable()
    traffic.add(_recorded("top"))
    console = _console(TOP_WIDTH)
    console.print(LiveTop(console=console).table(traffic))
    return _svg(console, "top")


def trace_lines() -> str:
    """Return the header and a line for each recorded request."""
    os.environ["TZ"] = "UTC"  # the lines contain local times
    time.tzset()
    lines = [trace.HEADER, *(trace.line(event).rstrip("\n") for event in _recorded("trace"))]
    console = _console(TRACE_WIDTH)
    for line in lines:
        console.print(Text(line), no_wrap=True, overflow="ellipsis")
    return _svg(console, "trace")


def _recorded(name: str) -> list[Any]:
    return [json.loads(line) for line in (DATA / f"{name}.ndjson").read_text().splitlines()]


def _console(width: int) -> Console:
    return Console(
        record=True, width=width, height=TOP_HEIGHT, file=io.StringIO(), color_system="truecolor", force_terminal=True
    )


def _svg(console: Console, command: str) -> str:
    svg = console.export_svg(title=f"kafka-probe {command}", code_format=FORMAT, unique_id=command)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"
