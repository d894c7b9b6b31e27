from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe.events import bucket_of
from kafka_probe_pipeline import source
from kafka_probe_pipeline.messages import traffic_messages
from kafka_probe_pipeline.source import MOST, spark_schema
from kafka_probe_pipeline.source import TEXT_CHARACTERS as TEXT_LIMIT
from kafka_probe_pipeline.traffic import (
    COUNTS,
    DIMENSIONS,
    HISTOGRAMS,
    KEYS,
    PERCENTILES,
    has_overflow,
    summed,
    traffic,
    with_percentiles,
    without_overflows,
)
from tests.builders.full_events import longest_flow
from tests.builders.spark_events import MINUTE_US, NOON_US, Event, events, flow, records
from tests.pipeline.frames import assert_same

pytestmark = pytest.mark.spark

HALF = 2**62  # of what a sum cannot hold any more


def test_the_totals_of_an_api_and_what_was_done_to_each_topic_are_rows_of_two_levels(spark: SparkSession) -> None:
    orders = {"topic": "orders", "requests": 2, "records": 10, "bytes": 1000, "uncounted_bytes": 7, "errors": {"3": 1}}
    orders |= {"batches": 6, "codecs": {"zstd": 6}, "refused_records": 4, "refused_bytes": 400}
    sales = {"topic": "sales", "requests": 1, "records": 4, "bytes": 300, "uncounted_bytes": 0}
    event = flow(
        requests=2,
        responses=1,
        request_bytes=1500,
        response_bytes=90,
        throttle_ms=5,
        errors={"3": 1},
        latency={"70": 1},
        topics=[orders, sales],
    )
    assert_same(
        events(spark, event)
        .transform(traffic, 60)
        .select("level", "topic", *(name for name in COUNTS), *(name for name in HISTOGRAMS)),
        spark.createDataFrame(
            [
                ("api", None, 2, 1, 1500, 90, 14, 6, 1300, 7, 4, 400, 5, {"3": 1}, {"70": 1}, None, None),
                (
                    "topic",
                    "orders",
                    2,
                    None,
                    None,
                    None,
                    10,
                    6,
                    1000,
                    7,
                    4,
                    400,
                    None,
                    {"3": 1},
                    None,
                    None,
                    {"zstd": 6},
                ),
                ("topic", "sales", 1, None, None, None, 4, None, 300, 0, None, None, None, None, None, None, None),
            ],
            "level string, topic string, "
            + ", ".join(f"{name} long" for name in COUNTS)
            + ", "
            + ", ".join(f"{name} map<string,long>" for name in HISTOGRAMS),
        ),
    )


def test_events_of_the_same_key_add_up_and_histograms_add_bucket_by_bucket(spark: SparkSession) -> None:
    rows = events(
        spark,
        flow(0, requests=2, latency={"70": 1, "71": 1}, errors={"3": 1}),
        flow(1, requests=3, latency={"71": 2}, latency_empty={"140": 1}),
    ).transform(traffic, 60)
    (row,) = rows.collect()
    assert (row["requests"], row["latency"]) == (5, {"70": 1, "71": 3})
    assert (row["latency_empty"], row["errors"]) == ({"140": 1}, {"3": 1})


def differing_in(dimension: str, seq: int) -> Event:
    """Return a flow that differs from `flow()` in one dimension."""
    kinds: dict[str, Any] = {field.name: field.dataType for field in spark_schema()}
    place, _, inner = DIMENSIONS[dimension].partition(".")
    kind = kinds[place][inner].dataType if inner else kinds[place]
    value = {"string": "other", "bigint": 99, "boolean": True}[kind.simpleString()]
    event = flow(seq)
    return event | {place: {**event[place], inner: value} if inner else value}


def test_rows_that_differ_in_one_dimension_are_never_added(spark: SparkSession) -> None:
    others = [differing_in(dimension, seq) for seq, dimension in enumerate(DIMENSIONS, start=1)]
    rows = events(spark, flow(0), *others).transform(traffic, 60).collect()
    assert [row["requests"] for row in rows] == [1] * (1 + len(DIMENSIONS))


def test_a_topic_known_only_by_id_keeps_the_id(spark: SparkSession) -> None:
    ids = [{"topic_id": "aa" * 16, "records": 1}, {"topic_id": "bb" * 16, "records": 2}]
    rows = events(spark, flow(topics=ids)).transform(traffic, 60).where("level = 'topic'").collect()
    assert {(row["topic"], row["topic_id"], row["records"]) for row in rows} == {
        (None, "aa" * 16, 1),
        (None, "bb" * 16, 2),
    }


def test_an_event_belongs_to_the_window_of_its_own_time_however_late_or_early(spark: SparkSession) -> None:
    times = [NOON_US - 1, NOON_US, NOON_US + MINUTE_US - 1, 0, NOON_US + 10 * 365 * 24 * 60 * MINUTE_US]
    rows = events(spark, *(flow(seq, ts=ts) for seq, ts in enumerate(times))).transform(traffic, 60).collect()
    assert {row["window_start"].astimezone(UTC): row["requests"] for row in rows} == {
        datetime(2026, 1, 1, 11, 59, tzinfo=UTC): 1,
        datetime(2026, 1, 1, 12, 0, tzinfo=UTC): 2,
        datetime(1970, 1, 1, tzinfo=UTC): 1,
        datetime(2035, 12, 30, 12, 0, tzinfo=UTC): 1,
    }
    assert {(row["window_end"] - row["window_start"]).total_seconds() for row in rows} == {60}


def test_other_kinds_of_events_are_no_traffic(spark: SparkSession) -> None:
    others = [flow(seq, kind=kind) for seq, kind in enumerate(("request", "open", "close", "agent"))]
    assert events(spark, *others).transform(traffic, 60).count() == 0


def test_counts_too_large_to_add_become_unknown_and_do_not_stop_the_job(spark: SparkSession) -> None:
    absurd = (flow(seq, topics=[{"bytes": MOST}] * 2**12) for seq in range(8))
    rows = events(spark, *absurd).transform(traffic, 60).transform(without_overflows).collect()
    assert {(row["level"], row["record_bytes"]) for row in rows} == {("api", None), ("topic", None)}
    counted = {"requests": MOST, "errors": {"3": MOST}}
    (api,) = events(spark, flow(0, **counted), flow(1, **counted)).transform(traffic, 60).collect()
    assert (api["requests"], api["errors"]) == (2 * MOST, {"3": 2 * MOST})


def counted(spark: SparkSession, *requests: int) -> DataFrame:
    """Return partial rows of one key with these counts of requests, and the same counts of error 3."""
    row = events(spark, flow()).transform(traffic, 60)
    each = F.explode(F.lit(list(requests)).cast("array<long>"))
    return row.withColumn("requests", each).withColumn("errors", F.create_map(F.lit("3"), F.abs("requests")))


@pytest.mark.parametrize("later", [1, -HALF])
def test_a_sum_that_overflowed_stays_unknown_whatever_is_added(spark: SparkSession, later: int) -> None:
    unknown = [(None, {"3": None})]
    measures = ("requests", "errors")
    batch = counted(spark, HALF, HALF, 1).transform(summed, KEYS)
    for _ in range(2):
        assert batch.transform(without_overflows).select(*measures).collect() == unknown
        batch = batch.union(counted(spark, later)).transform(summed, KEYS)
    assert batch.where(has_overflow()).count() == 1
    partial = counted(spark, HALF).transform(summed, KEYS).union(counted(spark, HALF))
    assert partial.transform(summed, KEYS).transform(without_overflows).select(*measures).collect() == unknown


def test_no_reader_gets_the_number_of_a_sum_that_overflowed(spark: SparkSession) -> None:
    rows = counted(spark, HALF, HALF).transform(summed, KEYS).persist()
    (message,) = traffic_messages(rows.withColumn("batch_id", F.lit(0))).collect()
    value = json.loads(message["value"])
    assert (value.get("requests"), value["errors"]) == (None, {"3": None})


def test_a_row_with_the_longest_texts_and_all_keys_is_a_record_that_kafka_takes(spark: SparkSession) -> None:
    by_code = {str(code): MOST for code in range(-999, 1000)}
    for text in ("\x01" * TEXT_LIMIT, "€" * TEXT_LIMIT, "\U0001f600" * TEXT_LIMIT):
        worst = flow(**longest_flow(text, by_code) | {"local": None, "peer": None})
        line = json.dumps(worst, ensure_ascii=False)
        rows = records(spark, line).transform(source.parsed).persist().transform(source.received).transform(traffic, 60)
        messages = traffic_messages(rows.withColumn("batch_id", F.lit(0)))
        sizes = [len(row["value"].encode()) for row in messages.collect()]
        assert len(sizes) == 2
        assert max(sizes) < 1_000_000


def test_partial_rows_of_two_batches_sum_to_what_one_batch_would_have_given(spark: SparkSession) -> None:
    sent = [flow(seq, latency={str(seq % 3): 1}, topics=[{"topic": "t", "records": seq}]) for seq in range(10)]
    whole = events(spark, *sent).transform(traffic, 60)
    parts = events(spark, *sent[:4]).transform(traffic, 60).union(events(spark, *sent[4:]).transform(traffic, 60))
    assert_same(parts.transform(summed, KEYS), whole)


def test_percentiles_of_summed_histograms_are_within_five_percent_of_the_latencies(spark: SparkSession) -> None:
    rng = np.random.default_rng(7)
    latencies = {f"{scale} µs": 1 + rng.lognormal(np.log(scale), 1.0, 20_000) for scale in (30, 3_000, 500_000)}
    sent = (
        flow(seq, client={"id": client}, latency=Counter(str(bucket_of(latency)) for latency in part))
        for client, values in latencies.items()
        for seq, part in enumerate(np.split(values, 8), start=100 * list(latencies).index(client))
    )
    rows = events(spark, *sent).transform(traffic, 60).transform(with_percentiles).collect()
    measured = {row["client_id"]: [row[name] for name in PERCENTILES] for row in rows}
    for client, values in latencies.items():
        exact = np.quantile(values, [*PERCENTILES.values()], method="inverted_cdf")
        np.testing.assert_allclose(measured[client], exact, rtol=0.05)


def test_without_latencies_there_are_no_percentiles(spark: SparkSession) -> None:
    (row,) = events(spark, flow()).transform(traffic, 60).transform(with_percentiles).collect()
    assert [row[name] for name in PERCENTILES] == [None, None, None]
