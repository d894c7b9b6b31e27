"""Implements the program that the Python libraries share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Protocol, TypeVar

Settings = dict[str, str | int]
Result = TypeVar("Result")


class Producer(Protocol):
    """A producer of any library, for one topic."""

    def send(self, value: bytes) -> None:
        """Send a record, and return when it was delivered or given up."""

    def close(self) -> None:
        """Close it in order."""


def obey(make: Callable[[str, Settings], Producer]) -> None:
    """Create the producers with `make(topic, settings)`, and carry out commands until there are no more."""
    client_id, count, topic, *rest = sys.argv[1:]
    settings = dict(map(_setting, rest))
    # Handle all clients at the same time, so that their ages and silences are equal.
    with ThreadPoolExecutor(int(count)) as pool:

        def made(number: int) -> Producer | None:
            return _tried(lambda: make(topic, {**settings, "client.id": f"{client_id}-{number}"}))

        producers = [one for one in pool.map(made, range(int(count))) if one]

        def each(action: Callable[[Producer], None]) -> None:
            for _ in pool.map(lambda one: _tried(lambda: action(one)), producers):
                pass

        _answer()
        for line in sys.stdin:
            match line.split():
                case ["send", size]:
                    each(methodcaller("send", bytes(int(size))))
                    _answer()
                case ["stop"]:
                    each(methodcaller("close"))
                    return
                case ["leave"]:
                    os._exit(0)
                case order:
                    raise ValueError(f"no such order: {order}")


def _tried(action: Callable[[], Result]) -> Result | None:
    try:
        return action()
    except Exception as error:  # of any type: the lab causes such errors on purpose
        print(repr(error), file=sys.stderr, flush=True)
        return None


def _answer() -> None:
    print("done", flush=True)


def _setting(text: str) -> tuple[str, str | int]:
    name, _, value = text.partition("=")
    return name, int(value) if value.lstrip("-").isdecimal() else value
