"""Defines the command line that the Python clients of the lab share, and their pace."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BURST = 5


@dataclass(frozen=True, slots=True)
class Arguments:
    """A client's task; `records` counts per topic, `rate` is records per topic and second.

    `settings` go to the library under its own names.
    """

    role: str
    bootstrap: str
    client_id: str
    topics: tuple[str, ...]
    group: str
    records: int
    rate: float
    patience_s: int
    settings: dict[str, str | int]
    report: Path


def parse() -> Arguments:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("produce", "consume"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--client-id", required=True)
    parser.add_argument("--topics", required=True, type=lambda names: tuple(names.split(",")))
    parser.add_argument("--group", default="")
    parser.add_argument("--records", required=True, type=int)
    parser.add_argument("--rate", default=20.0, type=float)
    parser.add_argument(
        "--patience-s", default=30, type=int, help="a consumer gives up after this long without a record"
    )
    parser.add_argument("--set", action="append", default=[], type=_setting, dest="settings", metavar="NAME=VALUE")
    parser.add_argument("--report", required=True, type=Path)
    arguments = vars(parser.parse_args())
    return Arguments(**{**arguments, "settings": dict(arguments["settings"])})


def _setting(text: str) -> tuple[str, str | int]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value


def paced(arguments: Arguments) -> Iterator[int]:
    """Yield the numbers of the records at the requested rate, in bursts small enough to batch."""
    start = time.monotonic()
    for number in range(arguments.records):
        if number % _BURST == 0:
            time.sleep(max(0.0, start + number / arguments.rate - time.monotonic()))
        yield number
