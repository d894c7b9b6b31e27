"""The report: what is in the job's tables, for people (tables) and for programs (NDJSON).

Only reads. Traffic is summed over windows and batches; its API rows and topic rows are two tables, and the two sides of
a connection two rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafka_probe.events import is_internal
from kafka_probe.text import printable
from kafka_probe_pipeline.traffic import DIMENSIONS, LEVEL, summed, with_percentiles, without_overflows

FILE_WIDTH = 200
CELL_LIMIT = 1000  # characters: a list of topics is longer than a name

Cells = Mapping[str, Callable[[Row], Any]]


def totals(rows: DataFrame) -> DataFrame:
    """Return sums and percentiles per DIMENSIONS and LEVEL over all windows and batches; most requests first."""
    return (
        rows.transform(summed, (*DIMENSIONS, *LEVEL))
        .transform(with_percentiles)
        .orderBy("level", F.desc("requests"), *DIMENSIONS, *LEVEL)
        .transform(without_overflows)
    )


def of_others(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of traffic, connections or verdicts that are not kafka-probe's own."""
    return [row for row in rows if not _is_own(row)]


def print_json(totals: Iterable[Row], output: TextIO) -> None:
    """Write one JSON object per row and line."""
    output.writelines(
        json.dumps(row.asDict(recursive=True), separators=(",", ":"), default=_iso) + "\n" for row in totals
    )


def print_tables(totals: Iterable[Row], output: TextIO, *, internal: bool = False) -> None:
    """Print a table of APIs and a table of topics, as wide as the terminal, or `FILE_WIDTH` without one.

    internal: also kafka-probe's own traffic; else the number of its rows stands below.
    """
    rows = list(totals)
    for level, numbers in (("api", _API), ("topic", _TOPIC)):
        _print(f"Traffic by {level}", _WHO, numbers, [row for row in rows if row["level"] == level], output, internal)


def print_table(name: str, rows: Iterable[Row], output: TextIO, *, internal: bool = False) -> None:
    """Print the connections, verdicts or storms, one row each; internal: also kafka-probe's own."""
    texts, numbers = VIEWS[name]
    _print(name.capitalize(), texts, numbers, list(rows), output, internal)


def _print(title: str, texts: Cells, numbers: Cells, rows: list[Row], output: TextIO, internal: bool) -> None:
    shown = rows if internal else of_others(rows)
    own = len(rows) - len(shown)
    left_out = f"{own} of kafka-probe's own rows are left out; --internal shows them" if own else None
    table = Table(title=title, title_justify="left", caption=left_out, caption_justify="left")
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown:
        table.add_row(*(Text(_text(cell(row))) for cell in ({**texts, **numbers}).values()))
    Console(file=output, width=None if output.isatty() else FILE_WIDTH).print(table)


def _iso(time: datetime) -> str:
    """Return a time, which Spark gives in this process's time zone, in UTC."""
    return time.astimezone(UTC).isoformat()


def _is_own(row: Row) -> bool:
    if "internal" in row:
        return bool(row["internal"])
    return "client" in row and is_internal(_client(row))


def _workload(row: Row | Mapping[str, Any]) -> str:
    place = row["pod"] or row["container_name"] or (row["container_id"] or "")[:12] or row["cgroup"] or ""
    return f"{row['comm'] or '?'}[{row['pid']}] {place}"


def _api(row: Row) -> str:
    if row["internal"]:
        return "(kafka-probe itself)"
    if row["api"] is None:
        return f"({row['opaque'] or '?'})"
    return f"{row['api']} v{row['api_version']}"


def _topic(row: Row) -> str:
    return row["topic"] or row["topic_id"] or ""


def _errors(row: Row) -> int | None:
    """Return the number of errors; None where the count of one code overflowed."""
    counts = (row["errors"] or {}).values()
    return None if None in counts else sum(counts)


_WHO: Cells = {
    "node": lambda row: f"{row['node']} {row['side']}",
    "workload": _workload,
    "client": lambda row: row["client_id"],
    "library": lambda row: " ".join(filter(None, (row["software_name"], row["software_version"]))),
    "api": _api,
    "topic": _topic,
    "group": lambda row: row["group"],
}
_ERRORS: Cells = {"errors": _errors}
_API: Cells = {
    "requests": lambda row: row["requests"],
    "bytes out": lambda row: row["request_bytes"],
    "bytes back": lambda row: row["response_bytes"],
    **_ERRORS,
    "p50 µs": lambda row: row["p50_us"],
    "p99 µs": lambda row: row["p99_us"],
}
_TOPIC: Cells = {
    "requests": lambda row: row["requests"],
    "records": lambda row: row["records"],
    "bytes": lambda row: row["record_bytes"],
    **_ERRORS,
}


def _end(side: str) -> Callable[[Row], Any]:
    """Return a function for the cell of an end, with workload and address.

    Where the end is not watched, the cell has its address as the other end sees it.
    """
    other = {"client": "server", "server": "client"}[side]

    def cell(row: Row) -> object:
        end = row[side]
        if end is None:
            return f"? {row[other]['peer']}"
        return f"{_workload(_with_place(end['workload']))} {end['local']}"

    return cell


def _with_place(workload: Row | None) -> dict[str, Any]:
    names = ("comm", "pid", "pod", "container_name", "container_id", "cgroup")
    return {name: workload[name] if workload else None for name in names}


def _of_either(name: str) -> Callable[[Row], Any]:
    """Return a function for a value that the client's end has, else the server's."""
    return lambda row: next((row[side][name] for side in ("client", "server") if row[side]), None)


def _client(row: Row) -> str | None:
    clients = (row[side]["client"] for side in ("client", "server") if row[side])
    return next((str(client["id"]) for client in clients if client and client["id"]), None)


def _seconds(microseconds: int | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e6:.1f}"


_ENDS: Cells = {"client": _end("client"), "server": _end("server")}
# Name of a table: its columns of text and of numbers.
VIEWS: dict[str, tuple[Cells, Cells]] = {
    "connections": (
        {
            "state": lambda row: row["state"],
            "watched": lambda row: row["ends"],
            **_ENDS,
            "client id": _client,
            "topics": lambda row: ", ".join(_of_either("topics")(row) or ()),
        },
        {
            "requests": _of_either("requests"),
            "bytes out": _of_either("request_bytes"),
            "bytes back": _of_either("response_bytes"),
        },
    ),
    "verdicts": (
        {"cause": lambda row: row["cause"], **_ENDS, "evidence": lambda row: row["evidence"]},
        {"idle s": lambda row: _seconds(row["idle_us"])},
    ),
    "storms": (
        {
            "state": lambda row: row["state"],
            "kind": lambda row: row["kind"],
            "subject": lambda row: row["subject"],
            "scope": lambda row: row["scope"],
            "most affected": lambda row: ", ".join(f"{hit['name']} ({hit['count']})" for hit in row["workloads"] or ()),
        },
        {
            "closed": lambda row: row["count"],
            "of open": lambda row: row["population"],
            "idle s": lambda row: _seconds(row["idle_us"]),
        },
    ),
}


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return printable(value, CELL_LIMIT)


def listed(what: str, names: Counter[str] | dict[str, int] | tuple[str, ...]) -> str:
    """Return `; what: a, b` or `; what: a 3, b 1`; nothing if there is none."""
    if not names:
        return ""
    items = [f"{name} {count}" for name, count in names.items()] if isinstance(names, dict) else names
    return f"; {what}: {', '.join(items)}"
