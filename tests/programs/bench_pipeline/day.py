"""Measures what a day of 50 nodes leaves in the tables, and the time of a question.

The job runs for HOURS. The rest of the day is loaded before: rows that the job committed, with earlier times, in as
many commits per hour as its own, compacted as often as the job does it and by its code.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from kafka_probe_pipeline import config, maintenance, spark_session
from kafka_probe_pipeline.tables import BATCH_ID, DATE, TABLES, Table
from tests.programs.bench_pipeline.facts import BROKERS
from tests.programs.bench_pipeline.job import Job
from tests.programs.bench_pipeline.lab import Lab, lab

HOURS = float(os.environ.get("HOURS", "2"))
NODES, CONNECTIONS = 50, 2_500
_FLOWS_PER_SECOND = 250  # both ends of each connection every 20 s give as many rows as every 5 s
_COPIED = timedelta(minutes=10)  # the job's interval of maintenance
_QUESTIONS = 10
_QUESTION = """
    SELECT client_id, sum(requests) FROM facts
    WHERE level = 'topic' AND topic = ? AND window_start >= ? AND window_start < ? GROUP BY ALL
"""


def day(directory: Path, *flags: str) -> dict[str, Any]:
    """Let a day pass. Return by table its files, files of its log, commits and rows, and the question's seconds."""
    with lab(directory, CONNECTIONS, _FLOWS_PER_SECOND, NODES - BROKERS) as made:
        with Job(directory, made.bootstrap, *flags) as job:
            made.open_ordinary()
            spend(made, job, _COPIED)
        load_all(job.output, timedelta(hours=24 - HOURS))
        with Job(directory, made.bootstrap, *flags) as job:
            spend(made, job, timedelta(hours=HOURS))
    tables = {name: path for name in TABLES if (path := job.output / name).exists()}
    read = {name: DeltaTable(path) for name, path in tables.items()}
    return {
        "hours": HOURS,
        "files": {name: len(table.file_uris()) for name, table in read.items()},
        "log_files": {name: sum(1 for _ in (path / "_delta_log").iterdir()) for name, path in tables.items()},
        "commits": {name: table.version() + 1 for name, table in read.items()},
        "rows": {name: table.to_pyarrow_dataset().count_rows() for name, table in read.items()},
        "hour_s": [question_s(tables["traffic"], ago) for ago in range(1, _QUESTIONS + 1)],
    }


def spend(made: Lab, job: Job, duration: timedelta) -> None:
    """Send the events of each second, with a brief connection, and let the job process all of them."""
    made.brief = 1
    made.until_s(time.time() + duration.total_seconds(), job)
    made.until_read(job)


def load_all(output: Path, duration: timedelta) -> None:
    """Load all tables below a job's output directory. The job does not run."""
    spark = spark_session.for_few_rows(spark_session.start())
    try:
        for name in TABLES:
            table = Table(spark, config.load({"output": str(output)}), name)
            if table.exists():
                load(table, duration)
    finally:
        spark_session.stop(spark)


def load(table: Table, duration: timedelta) -> None:
    """Append the rows of a table again, as if its job had committed the like for so long before.

    The first commit has what agents report once an hour.
    """
    path = Path(table.path)
    rows = DeltaTable(path).to_pyarrow_dataset().to_table()
    first, *others = (rows.filter(pc.field(BATCH_ID) == number) for number in sorted(set(rows[BATCH_ID].to_pylist())))
    for copy in range(round(duration / _COPIED), 0, -1):
        hourly = [first] if copy * _COPIED % timedelta(hours=1) == timedelta() else []
        for version, commit in enumerate([*hourly, *others], 1 + max(_versions(path).values())):
            _commit(path, version, _earlier(commit, TABLES[table.name].time, copy * _COPIED))
        table.compact(maintenance._SMALL_BYTES)
    _age(path, duration)


def _commit(path: Path, version: int, rows: pa.Table) -> None:
    """Append rows by the protocol of Delta Lake; its libraries read the log of all versions for each commit."""
    actions = []
    for date in rows[DATE].unique().to_pylist():
        file = path / f"{DATE}={date}" / f"part-{version:05}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(rows.filter(pc.field(DATE) == date).drop_columns(DATE), file)
        added = {"path": str(file.relative_to(path)), "partitionValues": {DATE: f"{date}"}, "size": file.stat().st_size}
        actions.append({"add": {**added, "modificationTime": time.time_ns() // 1_000_000, "dataChange": True}})
    (path / "_delta_log" / f"{version:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def _earlier(rows: pa.Table, time_column: str, by: timedelta) -> pa.Table:
    """Return rows with earlier times."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(index, field, pc.subtract(rows[field.name], pa.scalar(by, pa.duration("us"))))
    dates = pc.cast(pc.cast(rows[time_column], pa.timestamp("us")), pa.date32())
    return rows.set_column(rows.schema.get_field_index(DATE), DATE, dates)


def _age(path: Path, duration: timedelta) -> None:
    """Give the files of the log the times of a job that ran for so long, which removes old ones."""
    versions = _versions(path)
    newest = max(versions.values())
    for file, version in versions.items():
        at_s = time.time() - duration.total_seconds() * (1 - version / newest)
        os.utime(file, (at_s, at_s))


def _versions(path: Path) -> dict[Path, int]:
    """Return the files of a table's log with their versions."""
    return {file: int(file.name[:20]) for file in (path / "_delta_log").glob("[0-9]*")}


def question_s(traffic: Path, hours_ago: int) -> float:
    """Return how many seconds DuckDB needs to sum the requests of a topic in an hour, the table's log included.

    Raises:
        AssertionError: there is no answer.
    """
    since = datetime.now(UTC) - timedelta(hours=hours_ago)
    began_s = time.perf_counter()
    with duckdb.connect() as connection:
        connection.register("facts", DeltaTable(traffic).to_pyarrow_dataset())
        found = connection.execute(_QUESTION, (f"topic-{hours_ago}", since, since + timedelta(hours=1))).fetchall()
    assert found
    return time.perf_counter() - began_s
