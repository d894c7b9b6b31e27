"""Other tools read the tables: DuckDB, pandas, polars, and Spark with nothing but Delta Lake."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_pipeline.tables import TABLES
from tests.builders.spark_events import (
    BROKER,
    CLIENT,
    NOON_US,
    agent_event,
    closed,
    flow,
    frames_event,
    offset_seen,
    offsets_event,
    opened,
    requested,
)
from tests.lab.answers import asked
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run

pytestmark = [pytest.mark.spark, pytest.mark.broker]

# Far beyond what nanoseconds can count.
YEAR_9000_US = 221_845_392_000_000_000
TOPIC_ID = "aa" * 16
ROOT = Path(__file__).parents[2]
ROWS = {
    "traffic": 4,
    "topic_names": 1,
    "requests": 2,
    "partition_ends": 2,
    "group_positions": 1,
    "opens": 6,
    "closes": 3,
    "verdicts": 1,
    "storms": 1,
    "agents": 2,
    "frames": 2,
}


@pytest.fixture(scope="module")
def output(broker: Broker, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """Return the directory of the tables of two micro-batches; the clock of one event is wrong."""
    run = Run(broker, tmp_path_factory.mktemp("readers"), archive=True)
    run.send_frames(frames_event(b"asked", b"answered"))
    topic = {"topic_id": TOPIC_ID, "topic": "orders", "requests": 7}
    run.send_events(flow(0, topics=[topic], requests=7), flow(1, ts=YEAR_9000_US))
    run.once(spark)
    killed: dict[str, Any] = {"owner_exiting": True, "closed_by": "local"}
    ends = [opened(CLIENT), opened(BROKER), closed(CLIENT, **killed), closed(BROKER), *(opened(CLIENT, 2),) * 2]
    listed: dict[str, Any] = {"flow_id": None, "found": "listed"}
    ends += [opened(BROKER, 3, **listed), opened(BROKER, 4, **listed), closed(BROKER, 4, **listed)]
    asked, created = requested(CLIENT), requested(CLIENT, api="CreateTopics", api_key=ApiKey.CREATE_TOPICS)
    reports = [agent_event(end, until_s=second) for end in (CLIENT, BROKER) for second in (121, 126)]
    position = offset_seen(70, group="billing", source="offset_commit")
    offsets = offsets_event(BROKER, [offset_seen(100), offset_seen(7, topic=None, topic_id=TOPIC_ID)], [position])
    run.send_events(flow(2), *ends, asked, asked, created, offsets, *reports)
    run.once(spark, storm_minimum=1, storm_percent=0, reconnect_minimum=1)
    return run.output


@pytest.mark.parametrize("name", TABLES)
def test_every_reader_finds_the_same_rows(output: Path, spark: SparkSession, name: str) -> None:
    path = str(output / name)
    table = DeltaTable(path)
    assert table.metadata().partition_columns == ["date", *TABLES[name].partitions]
    assert ask(output / name, "SELECT count(*) FROM facts") == [(ROWS[name],)]
    assert len(table.to_pandas()) == len(polars.read_delta(path)) == ROWS[name]
    assert spark.read.format("delta").load(path).count() == ROWS[name]


def test_duckdb_sums_traffic_by_time_and_topic(output: Path) -> None:
    requests = "SELECT topic, sum(requests) FROM facts WHERE level = 'topic' AND window_start = ? GROUP BY ALL"
    noon = datetime.fromtimestamp(NOON_US / 1e6, UTC)
    assert ask(output / "traffic", requests, noon) == [("orders", 7)]
    assert ask(output / "traffic", "SELECT max(year(window_start)) FROM facts") == [(9000,)]


def test_requests_storms_and_agents_have_the_fields_of_their_events(output: Path) -> None:
    ((topic,),) = ask(output / "requests", "SELECT topics[1] FROM facts WHERE api = 'Produce' AND latency_us = 1500")
    assert (topic["topic"], topic["partition"], topic["records"]) == ("orders", 3, 5)
    (storm,) = ask(output / "storms", "SELECT change, state, count, opened_ts = ts, workloads[1].name FROM facts")
    assert storm[:4] == ("opened", "active", 1, True)
    nodes = ask(output / "agents", "SELECT node, complete_until = ts, age(ts, since) FROM facts ORDER BY node")
    assert [node for node, *_ in nodes] == ["broker-node", "client-node"]
    assert {(complete, age) for _, complete, age in nodes} == {(True, timedelta(seconds=5))}


def test_the_documented_question_for_open_connections_finds_each_end_once(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/pipeline.md").read_text(), re.DOTALL)
    monkeypatch.chdir(output.parent)
    names: dict[str, Any] = {}
    exec(program.replace("kafka-probe-output", output.name), names)
    rows = names["found"].project("conn_id", "flow_id").fetchall()
    expected = [opened(CLIENT, 2), opened(BROKER, 3, flow_id=None)]
    assert sorted(rows) == sorted((end["conn_id"], end["flow_id"]) for end in expected)


def test_offsets_have_the_times_and_the_origin_of_their_events(output: Path) -> None:
    noon = datetime.fromtimestamp(NOON_US / 1e6, UTC)
    ask_for = (
        'SELECT node, cluster_id, topic, topic_id, "partition", "offset", source, seen_ts, ts FROM facts ORDER BY 6'
    )
    of_event = "broker-node", "east"
    when = noon, noon + timedelta(seconds=1)
    assert ask(output / "partition_ends", ask_for) == [
        (*of_event, None, TOPIC_ID, 0, 7, "fetch", *when),
        (*of_event, "orders", None, 0, 100, "fetch", *when),
    ]
    assert ask(output / "group_positions", 'SELECT "group", "offset", source FROM facts') == [
        ("billing", 70, "offset_commit")
    ]


@pytest.mark.parametrize(
    "question",
    [
        *("admin", "agents", "clients", "connections", "disconnects", "groups", "map", "map --dot", "producers"),
        *("storms", "topic orders", "topics", "upgrade --to 4.0", "who java", "why"),
    ],
)
def test_each_question_is_answered_from_the_tables_of_the_job(output: Path, question: str) -> None:
    name, *flags = question.split()
    command = getattr(import_module(f"kafka_probe_console.{name}_command"), {"map": "connection_map"}.get(name, name))
    since = datetime.fromtimestamp(NOON_US / 1e6, UTC) - timedelta(days=1)
    found = asked(command, output, *flags, "--from", since.isoformat())
    assert (found.exit_code, len(found.stdout.splitlines()) > 1) == (0, True)


def ask(table: Path, question: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the answer of DuckDB to a question about the table `facts`."""
    with duckdb.connect() as connection:
        connection.register("facts", DeltaTable(str(table)).to_pyarrow_dataset())
        return connection.execute(question, values).fetchall()


def test_pandas_and_polars_read_times_and_nested_columns(output: Path) -> None:
    table = DeltaTable(str(output / "verdicts"))
    (row,) = table.to_pandas().to_dict("records")
    assert str(row["ts"].tz) == "UTC"
    close = row["client"]["close"]
    assert row["ts"] == close["closing_ts"] <= close["ended_ts"]
    assert (row["client"]["workload"]["comm"], row["server"]["side"]) == ("app", "server")
    (same,) = polars.read_delta(str(output / "verdicts")).to_dicts()
    assert (same["cause"], same["ts"], same["client"]["local"]) == (row["cause"], row["ts"], row["client"]["local"])
