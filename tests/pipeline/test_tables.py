"""Tables of facts: each micro-batch once, whole, and read as it was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from kafka_probe.errors import StartError
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.errors import TakenOverError
from kafka_probe_pipeline.output import take_over
from kafka_probe_pipeline.tables import DAYS_AHEAD, DAYS_LATE, TABLES, Table
from kafka_probe_pipeline.traffic import traffic
from tests.builders.spark_events import NOON_US, events, flow
from tests.pipeline.frames import assert_same

pytestmark = pytest.mark.spark

DAY_US = 86_400_000_000


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    config = load({"output": str(tmp_path)})
    Path(config.checkpoint).mkdir()
    Path(config.checkpoint, "metadata").write_text('{"id": "a checkpoint"}')
    take_over(spark, config)
    return Table(spark, config, "traffic")


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    """Return rows of so many days after noon."""
    sent = (flow(seq, ts=NOON_US + number * DAY_US) for seq, number in enumerate(numbers))
    return events(spark, *sent).transform(traffic, 60)


def test_a_batch_that_is_done_again_is_there_once_and_as_it_was_written(spark: SparkSession, table: Table) -> None:
    assert not table.exists()
    assert table.read().count() == 0
    first = table.append(rows(spark, 0, 1), 7, NOON_US)
    columns = TABLES["traffic"].schema.names
    assert_same(first.select(*columns), rows(spark, 0, 1).select(*columns))
    assert_same(table.append(rows(spark, 3), 7, NOON_US), first)
    table.append(rows(spark, -1), 8, NOON_US)
    assert dates(table) == [("2025-12-31", 8), ("2026-01-01", 7), ("2026-01-02", 7)]


def test_a_wrong_clock_makes_no_date_of_its_own(spark: SparkSession, table: Table) -> None:
    table.append(rows(spark, -20_000, -40, -DAYS_LATE, DAYS_AHEAD, 2, 27_000), 0, NOON_US)
    assert dates(table) == [("2025-12-01", 0)] * 3 + [("2026-01-02", 0)] * 3
    years = sorted(row["window_start"].year for row in table.read().collect())
    assert (years[0], years[-1]) == (1971, 2099)


@pytest.fixture
def verdicts(table: Table) -> Table:
    """Return a table with columns inside columns, of one micro-batch with one row."""
    Path(table.config.connections_checkpoint).mkdir()
    Path(table.config.connections_checkpoint, "metadata").write_text('{"id": "another"}')
    verdicts = Table(table.spark, table.config, "verdicts")
    verdicts.append(verdict(table.spark, TABLES["verdicts"].schema), 0, NOON_US)
    return verdicts


def verdict(spark: SparkSession, columns: T.StructType) -> DataFrame:
    """Return a row whose client's process is `app`."""
    at = "timestamp '2026-01-01 12:00:00'"
    known = spark.range(1).selectExpr(
        f"{at} AS ts",
        "named_struct('workload', named_struct('comm', 'app'), 'is_new', true) AS client",
        "'x' AS is_new",
    )
    return known.to(columns)


def with_more(columns: T.StructType) -> T.StructType:
    """Return the columns of a newer release: one more, and one more in `client`."""
    client = columns["client"].dataType
    assert isinstance(client, T.StructType)
    more = T.StructField("is_new", T.BooleanType())
    others = (field for field in columns if field.name != "client")
    return T.StructType(
        [*others, T.StructField("client", T.StructType([*client, more])), T.StructField("is_new", T.StringType())]
    )


def test_what_a_newer_release_added_is_left_out_and_kept(verdicts: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    spark, kind = verdicts.spark, TABLES["verdicts"]
    with monkeypatch.context() as newer:
        newer.setitem(TABLES, "verdicts", kind._replace(schema=with_more(kind.schema)))
        assert [row["is_new"] for row in verdicts.read().collect()] == [None]
        verdicts.append(verdict(spark, with_more(kind.schema)), 1, NOON_US)
    verdicts.append(verdict(spark, kind.schema), 2, NOON_US)
    assert verdicts.read().columns == ["date", "batch_id", *kind.schema.names]
    found = spark.read.format("delta").load(verdicts.path).orderBy("batch_id").collect()
    assert [(row["is_new"], row["client"]["is_new"]) for row in found] == [(None, None), ("x", True), (None, None)]
    assert [row["client"]["workload"]["comm"] for row in verdicts.read().collect()] == ["app"] * 3


@pytest.mark.parametrize("other", [T.DateType(), T.StringType(), T.IntegerType()])
def test_a_column_of_another_type_is_refused_in_one_sentence(
    verdicts: Table, monkeypatch: pytest.MonkeyPatch, other: T.DataType
) -> None:
    kind = TABLES["verdicts"]
    columns = T.StructType([T.StructField(f.name, other if f.name == "idle_us" else f.dataType) for f in kind.schema])
    monkeypatch.setitem(TABLES, "verdicts", kind._replace(schema=columns))
    with pytest.raises(StartError, match="has columns of other types, written by another release: idle_us"):
        verdicts.require_checkpoint()


def test_a_table_that_another_job_took_over_gets_no_commit(spark: SparkSession, table: Table) -> None:
    table.append(rows(spark, 0), 0, NOON_US)
    Path(table.config.output, "job").write_text("another")
    with pytest.raises(TakenOverError, match="Another job has taken over"):
        table.append(rows(spark, 1), 1, NOON_US)
    assert dates(table) == [("2026-01-01", 0)]


@pytest.mark.parametrize("batch_id", [0, 5])
def test_a_table_that_is_missing_beside_its_checkpoint_is_refused(
    spark: SparkSession, table: Table, batch_id: int
) -> None:
    table.append(rows(spark, 0), batch_id, NOON_US)
    shutil.rmtree(table.path)
    with pytest.raises(StartError, match=r"is missing, but its checkpoint .* has batches"):
        table.require_checkpoint()


def test_a_batch_without_rows_commits_nothing(spark: SparkSession, table: Table) -> None:
    assert table.append(rows(spark), 0, NOON_US).count() == 0
    assert not table.exists()


def dates(table: Table) -> list[tuple[str, int]]:
    return sorted((str(row["date"]), row["batch_id"]) for row in table.read().collect())
