"""Opens the pipeline's tables for DuckDB, which can neither load anything else nor write.

Delta Lake's own reader lists the files; DuckDB gets them as Arrow data sets, and leaves out those whose partition or
statistics cannot match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from kafka_probe_console.errors import TableError

_SETTINGS: Mapping[str, Any] = {
    "memory_limit": "400MB",
    "threads": 2,
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
_AT_ONCE = 1024
_LONG_S = 1.0

Row = tuple[Any, ...]


class OpenTables:
    """The tables below a directory or URI, for questions in SQL. Values are bound parameters, never text of SQL."""

    def __init__(self, location: str, connection: duckdb.DuckDBPyConnection) -> None:
        self._location = location.rstrip("/")
        self._connection = connection
        self._registered: set[str] = set()

    def add(self, name: str) -> bool:
        """Let questions use a table by its name; return False if there is no such table.

        Raises:
            TableError: it cannot be read.
        """
        if name in self._registered:
            return True
        path = f"{self._location}/{name}"
        try:
            data = DeltaTable(path).to_pyarrow_dataset()
        except TableNotFoundError:
            return False
        except (DeltaError, OSError) as error:
            raise TableError(f"The table {path} cannot be read: {_first_line(error)}") from None
        self._connection.register(name, data)
        self._registered.add(name)
        return True

    def require(self, name: str) -> None:
        """Let questions use a table by its name.

        Raises:
            TableError: there is no such table, or it cannot be read.
        """
        if not self.add(name):
            raise TableError(
                f"There is no table {name} in {self._location}: set --tables to the --output of "
                "`kafka-probe-pipeline run`."
            )

    def rows(self, question: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Yield the rows of an answer, which is not held in memory as a whole.

        Raises:
            TableError: a table lacks a column, or a file cannot be read.
        """
        try:
            with _shown_if_long():
                answer = self._connection.execute(question, values)
            while rows := answer.fetchmany(_AT_ONCE):
                yield from rows
        except duckdb.Error as error:
            raise TableError(f"The tables in {self._location} cannot be read: {_first_line(error)}") from None


@contextmanager
def opened(location: str) -> Iterator[OpenTables]:
    """Yield the tables below a directory or URI."""
    with duckdb.connect(":memory:", config=dict(_SETTINGS)) as connection:
        yield OpenTables(location, connection)


@contextmanager
def _shown_if_long() -> Iterator[None]:
    """Show a bar on standard error, if that is a terminal, as soon as the block has taken _LONG_S."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    bar = Progress("Reading the tables", BarColumn(), TimeElapsedColumn(), console=console, transient=True)
    bar.add_task("", total=None)
    timer = Timer(_LONG_S, bar.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
