"""Shows on a terminal that a search takes long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Timer
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

LONG_S = 1.0
Printed = TypeVar("Printed")


class Waiting:
    """`with Waiting() as waiting:` shows a bar on standard error, if it is a terminal, once the block takes LONG_S."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Progress("Reading the tables", BarColumn(), TimeElapsedColumn(), console=console, transient=True)
        self._bar.add_task("", total=None)
        self._timer = Timer(LONG_S, self._bar.start) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._timer:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def until_first(self, items: Iterable[Printed]) -> Iterator[Printed]:
        """Yield the items; the first ends the bar, so that it can be printed."""
        for item in items:
            self.end()
            yield item

    def end(self) -> None:
        """Remove the bar."""
        if self._timer:
            self._timer.cancel()
            self._timer.join()
            self._bar.stop()
            self._timer = None
