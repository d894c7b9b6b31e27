"""Opens the pipeline's tables for DuckDB, which can neither load anything else nor write.

Delta Lake's own reader lists the files; DuckDB gets them as Arrow data sets, and leaves out those whose partition or
statistics cannot match.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from threading import Event, Thread
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from kafka_probe_console.errors import TableError

SETTINGS: Mapping[str, Any] = {
    "memory_limit": "400MB",
    "threads": 2,
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
_AT_ONCE = 1024
_COMPARED = 50  # most values of a list that Arrow compares with statistics
_LISTED = 500  # most values of such lists together
_AGAIN_S = 0.2

Row = tuple[Any, ...]
_Returned = TypeVar("_Returned")


class OpenTables:
    """The tables below a directory or URI, for queries in SQL. Values are bound parameters, never text of SQL.

    Columns of maps, such as `errors`, are lists of structs with `key` and `value`.
    """

    def __init__(self, location: str, connection: duckdb.DuckDBPyConnection) -> None:
        self._location = location.rstrip("/")
        self._connection = connection
        self._data: dict[str, Dataset] = {}
        self._running: list[duckdb.DuckDBPyConnection] = []
        self._time_is_over = Event()

    def add(self, name: str) -> bool:
        """Let queries use a table by its name; return False if there is no such table.

        Raises:
            TableError: it cannot be read.
        """
        if name in self._data:
            return True
        path = f"{self._location}/{name}"
        try:
            table = DeltaTable(path)
            columns = pa.schema(map(_without_map, pa.schema(table.schema().to_arrow())))
            self._data[name] = table.to_pyarrow_dataset(filesystem=_on_disk(table.table_uri), schema=columns)
        except TableNotFoundError:
            return False
        except (DeltaError, OSError) as error:
            raise TableError(f"The table {path} cannot be read: {_first_line(error)}") from None
        return True

    def require(self, name: str) -> None:
        """Let queries use a table by its name.

        Raises:
            TableError: there is no such table, or it cannot be read.
        """
        if not self.add(name):
            raise TableError(
                f"There is no table {name} in {self._location}: set --tables, or `tables` in the file of --config, "
                "to the --output of `kafka-probe-pipeline run`."
            )

    def columns(self, name: str) -> set[str]:
        """Return the names of a table's columns: earlier releases may have written fewer."""
        return {*self._data[name].schema.names}

    def fields(self, name: str, column: str, *inner: str) -> set[str]:
        """Return the names in a column of structs, or in one inside: earlier releases may have written fewer."""
        kind = self._data[name].schema.field(column).type
        for one in inner:
            kind = kind.field(one).type
        return {field.name for field in kind}

    def rows(
        self, sql: str, values: Sequence[object] = (), *, only: Mapping[str, pc.Expression] | None = None
    ) -> Iterator[Row]:
        """Yield the rows of an answer, which is not held in memory as a whole.

        only: for tables by name a condition that rows must meet, as from `one_of`.

        Raises:
            TableError: a table lacks a column, a file cannot be read, or the time is over.
        """
        try:
            # A cursor of its own: rows of another answer may not have been read yet.
            with self._cursor() as cursor, ThreadPoolExecutor(1) as thread:
                for name, data in self._data.items():
                    cursor.register(name, data.filter(only[name]) if only and name in only else data)
                _run(cursor, thread, cursor.execute, sql, values)
                while rows := _run(cursor, thread, cursor.fetchmany, _AT_ONCE):
                    yield from rows
        except duckdb.InterruptException:
            raise TableError("This takes too long: choose a shorter period.") from None
        except duckdb.OutOfMemoryException:
            raise TableError(f"This takes more than {SETTINGS['memory_limit']}: choose a shorter period.") from None
        except duckdb.Error as error:
            raise TableError(f"The tables in {self._location} cannot be read: {_first_line(error)}") from None

    @contextmanager
    def time_limit(self, limit_s: float) -> Iterator[None]:
        """End the queries of the block with TableError once it has taken so long."""
        over = Event()
        Thread(target=self._end_all, args=(limit_s, over), daemon=True).start()
        try:
            yield
        finally:
            over.set()

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        if self._time_is_over.is_set():
            raise duckdb.InterruptException
        with self._connection.cursor() as cursor:
            self._running.append(cursor)
            try:
                yield cursor
            finally:
                self._running.remove(cursor)

    def _end_all(self, limit_s: float, over: Event) -> None:
        if over.wait(limit_s):
            return
        self._time_is_over.set()
        while not over.wait(_AGAIN_S):  # an interrupt of a cursor that has not begun yet has no effect
            for cursor in [*self._running]:
                with suppress(duckdb.Error):
                    cursor.interrupt()


@contextmanager
def opened(location: str) -> Iterator[OpenTables]:
    """Yield the tables below a directory or URI."""
    with duckdb.connect(":memory:", config=dict(SETTINGS)) as connection:
        yield OpenTables(location, connection)


def one_of(column: str, values: Iterable[str]) -> pc.Expression:
    """Return the condition that a column has one of some values. It leaves out files and row groups by statistics.

    Of more than 500 values it is only their range, since long lists take Arrow longer than they save. DuckDB's own
    condition `column IN (SELECT unnest(?))` is exact, but leaves out no file.
    """
    ordered = sorted({*values})
    if len(ordered) > _LISTED:
        return (pc.field(column) >= ordered[0]) & (pc.field(column) <= ordered[-1])
    parts = (ordered[at : at + _COMPARED] for at in range(0, len(ordered), _COMPARED))
    return reduce(or_, (pc.field(column).isin(part) for part in parts))


def _on_disk(uri: str) -> SubTreeFileSystem | None:
    """Return Arrow's own file system for a table on disk, None for any other: Delta Lake's reads through Python.

    A thread of Arrow that reads through Python while that exits ends the process by a signal.
    """
    parts = urlsplit(uri)
    return SubTreeFileSystem(unquote(parts.path), LocalFileSystem()) if parts.scheme == "file" else None


def _run(
    cursor: duckdb.DuckDBPyConnection, thread: Executor, ask: Callable[..., _Returned], *values: object
) -> _Returned:
    """Call a method of the cursor in another thread, and interrupt it on Ctrl-C. A second Ctrl-C ends the process.

    DuckDB notices Ctrl-C only between parts of a query, which may take minutes each.
    """
    query: Future[_Returned] | None = None
    try:
        query = thread.submit(ask, *values)
        return query.result()
    except KeyboardInterrupt:
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            while query and not query.done():  # an interrupt of a cursor that has not begun yet has no effect
                cursor.interrupt()
                wait([query], _AGAIN_S)
        finally:
            signal.signal(signal.SIGINT, before)
        raise


def _without_map(field: pa.Field) -> pa.Field:
    """Return the field of a map as that of a list, which DuckDB reads ten times as fast."""
    if not pa.types.is_map(field.type):
        return field
    entry = pa.struct([("key", field.type.key_type), ("value", field.type.item_type)])
    return field.with_type(pa.list_(entry))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
