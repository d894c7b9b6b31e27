"""The report: the table's rows summed over windows and batches, for people (tables) and for programs (NDJSON).

Only reads. API rows and topic rows are two tables, the two sides of a connection are two rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TextIO

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from kafka_probe_pipeline.traffic import DIMENSIONS, LEVEL, summed, with_percentiles

FILE_WIDTH = 200

Cells = dict[str, Callable[[Row], object]]


def totals(rows: DataFrame) -> DataFrame:
    """Sums and percentiles per DIMENSIONS and LEVEL, whatever window and batch the rows are of; most requests first."""
    return (
        rows.transform(summed, (*DIMENSIONS, *LEVEL))
        .transform(with_percentiles)
        .orderBy("level", F.desc("requests"), *DIMENSIONS, *LEVEL)
    )


def print_json(totals: Iterable[Row], output: TextIO) -> None:
    """One JSON object per row and line."""
    output.writelines(json.dumps(row.asDict(recursive=True), separators=(",", ":")) + "\n" for row in totals)


def print_tables(totals: Iterable[Row], output: TextIO) -> None:
    """A table of APIs and a table of topics; as wide as the terminal, or `FILE_WIDTH` where there is none."""
    console = Console(file=output, width=None if output.isatty() else FILE_WIDTH)
    rows = list(totals)
    for level, numbers in (("api", _API), ("topic", _TOPIC)):
        table = Table(title=f"Traffic by {level}", title_justify="left")
        for name in _WHO:
            table.add_column(name, overflow="fold")
        for name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            if row["level"] == level:
                table.add_row(*(_text(cell(row)) for cell in ({**_WHO, **numbers}).values()))
        console.print(table)


def _workload(row: Row) -> str:
    place = row["pod"] or (row["container_id"] or "")[:12] or row["cgroup"] or ""
    return f"{row['comm'] or '?'}[{row['pid']}] {place}"


def _api(row: Row) -> str:
    if row["internal"]:
        return "(kafka-probe itself)"
    if row["api"] is None:
        return f"({row['opaque'] or '?'})"
    return f"{row['api']} v{row['api_version']}"


def _topic(row: Row) -> str:
    return row["topic"] or row["topic_id"] or ""


_WHO: Cells = {
    "node": lambda row: f"{row['node']} {row['side']}",
    "workload": _workload,
    "client": lambda row: row["client_id"],
    "library": lambda row: " ".join(filter(None, (row["software_name"], row["software_version"]))),
    "api": _api,
    "topic": _topic,
    "group": lambda row: row["group"],
}
_ERRORS: Cells = {"errors": lambda row: sum((row["errors"] or {}).values())}
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


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
