"""Traffic: `flow` events in, sums per window, workload, client, API, group and topic out.

Two levels that must never be added: `api` rows are the totals of an API, `topic` rows are what was done to one topic
(one request may name many). Nor may the two sides of a connection. Everything else adds up: rows of several
micro-batches, windows or nodes, histograms bucket by bucket. So a late event is one more row, never a dropped one.
Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe.events import bucket_middle_us
from kafka_probe_pipeline.source import spark_schema, struct_of
from kafka_probe_pipeline.sums import OVERFLOWED, plus, shown, total

# Output column: where an event carries it.
DIMENSIONS = {
    **{name: name for name in ("node", "side", "cluster_id")},
    **{
        name: f"workload.{name}"
        for name in (
            *("pid", "start_time", "comm", "exe", "cgroup", "container_id", "container_name"),
            *("pod", "namespace", "owner_kind", "owner_name"),
        )
    },
    "client_id": "client.id",
    "software_name": "client.software_name",
    "software_version": "client.software_version",
    **{name: name for name in ("api", "api_key", "api_version", "acks", "group", "transactional_id")},
    **{name: name for name in ("internal", "opaque")},
}
LEVEL = ("level", "topic", "topic_id")
WINDOW = ("window_start", "window_end")
KEYS = (*WINDOW, *DIMENSIONS, *LEVEL)

# Output column: where an event, and where its entry for a topic, carries it. What a topic has of the wire's bytes,
# latency and throttling is unknown.
COUNTS = {
    "requests": ("requests", "requests"),
    "responses": ("responses", None),
    "request_bytes": ("request_bytes", None),
    "response_bytes": ("response_bytes", None),
    "records": (None, "records"),
    "batches": (None, "batches"),
    "record_bytes": (None, "bytes"),
    "uncounted_bytes": (None, "uncounted_bytes"),
    "refused_records": (None, "refused_records"),
    "refused_bytes": (None, "refused_bytes"),
    "throttle_ms": ("throttle_ms", None),
}
HISTOGRAMS = {
    "errors": ("errors", "errors"),
    "latency": ("latency", None),
    "latency_empty": ("latency_empty", None),
    "codecs": (None, "codecs"),
}
PERCENTILES = {"p50_us": 0.50, "p95_us": 0.95, "p99_us": 0.99}


def _type(path: str) -> T.DataType:
    """Return the type of a field of events; `path`: as `workload.pid`."""
    kind: T.DataType = spark_schema()
    for name in path.split("."):
        assert isinstance(kind, T.StructType)
        kind = kind[name].dataType
    return kind


SCHEMA = struct_of(
    {
        **dict.fromkeys(WINDOW, T.TimestampType()),
        **{name: _type(path) for name, path in DIMENSIONS.items()},
        **dict.fromkeys(LEVEL, T.StringType()),
        **dict.fromkeys(COUNTS, T.LongType()),
        **dict.fromkeys(HISTOGRAMS, T.MapType(T.StringType(), T.LongType())),
    }
)


def traffic(events: DataFrame, window_seconds: int, named: Callable[[DataFrame], DataFrame] | None = None) -> DataFrame:
    """Return sums of the flow events: columns `KEYS`, `COUNTS` and `HISTOGRAMS` (maps to counts).

    named: names the topics of the rows. Naming after the sum would need a second sum.
    """
    rows = events.where(F.col("kind") == "flow").transform(levels).transform(windowed, window_seconds)
    return (rows.transform(named) if named else rows).transform(summed, KEYS)


def levels(flows: DataFrame) -> DataFrame:
    """Return a row of level `api` per flow event and one of level `topic` per topic.

    They have ts, dimensions and measures.
    """
    rows = F.concat(
        F.array(_api_row()),
        F.coalesce(F.transform("topics", _topic_row), F.array()),
    )
    dimensions = [F.col(path).alias(name) for name, path in DIMENSIONS.items()]
    return flows.select("ts", *dimensions, F.explode(rows).alias("row")).select("*", "row.*").drop("row")


def windowed(rows: DataFrame, window_seconds: int) -> DataFrame:
    """Replace `ts` (µs since epoch) by the start and end of its window."""
    window = F.window(F.timestamp_micros("ts"), f"{window_seconds} seconds")
    return (
        rows.withColumn("window", window)
        .withColumns({"window_start": F.col("window.start"), "window_end": F.col("window.end")})
        .drop("ts", "window")
    )


def summed(rows: DataFrame, by: Iterable[str]) -> DataFrame:
    """Return all measures summed over the rows that agree in the columns `by`; null where no row has one."""
    return rows.groupBy(*by).agg(
        *(total(name).alias(name) for name in COUNTS),
        *(_sum_of_maps(name).alias(name) for name in HISTOGRAMS),
    )


def with_percentiles(rows: DataFrame) -> DataFrame:
    """Add `PERCENTILES` of `latency` in µs, within the 4.4 % of a bucket. Only of sums: percentiles do not add up."""
    return rows.withColumns({name: _percentile(F.col("latency"), share) for name, share in PERCENTILES.items()})


def without_overflows(rows: DataFrame) -> DataFrame:
    """Return the rows for a reader: null where a sum overflowed. They are not to be summed any more."""
    counts = {name: shown(F.col(name)) for name in COUNTS}
    return rows.withColumns(counts | {name: F.transform_values(name, lambda _, n: shown(n)) for name in HISTOGRAMS})


def has_overflow() -> Column:
    """Return whether a sum of the row overflowed."""
    counts = (F.col(name) == OVERFLOWED for name in COUNTS)
    histograms = (F.array_contains(F.map_values(name), F.lit(OVERFLOWED)) for name in HISTOGRAMS)
    return reduce(or_, (F.coalesce(each, F.lit(False)) for each in (*counts, *histograms)))


def _api_row() -> Column:
    def count(of_event: str | None, of_topic: str | None) -> Column:
        return F.col(of_event) if of_event else _sum_of_list(F.transform("topics", lambda topic: topic[of_topic]))

    def measure(of_event: str | None) -> Column:
        return F.col(of_event) if of_event else F.lit(None).cast("map<string,long>")

    none = F.lit(None).cast("string")
    return F.struct(
        F.lit("api").alias("level"),
        none.alias("topic"),
        none.alias("topic_id"),
        *(count(*fields).alias(name) for name, fields in COUNTS.items()),
        *(measure(of_event).alias(name) for name, (of_event, _) in HISTOGRAMS.items()),
    )


def _topic_row(topic: Column) -> Column:
    def measure(of_topic: str | None, kind: str) -> Column:
        return topic[of_topic] if of_topic else F.lit(None).cast(kind)

    return F.struct(
        F.lit("topic").alias("level"),
        topic["topic"].alias("topic"),
        topic["topic_id"].alias("topic_id"),
        *(measure(of_topic, "long").alias(name) for name, (_, of_topic) in COUNTS.items()),
        *(measure(of_topic, "map<string,long>").alias(name) for name, (_, of_topic) in HISTOGRAMS.items()),
    )


def _sum_of_list(numbers: Column) -> Column:
    """Return the sum; null if it overflows, as that of an event's topics cannot."""
    return F.aggregate(numbers, F.lit(0).cast("long"), lambda sum_, n: F.try_add(sum_, F.coalesce(n, F.lit(0))))


def _sum_of_maps(name: str) -> Column:
    """Return the aggregate union of the maps, values of equal keys added; null if all are empty."""

    def union(left: Column, right: Column) -> Column:
        return F.map_zip_with(left, right, lambda _, one, other: plus(one, other))

    merged = F.aggregate(F.collect_list(name), F.create_map().cast("map<string,long>"), union)
    return F.when(F.size(merged) > 0, merged)


def _percentile(histogram: Column, share: float) -> Column:
    """Return the middle of the first bucket up to which the counts reach `share` of all (nearest rank)."""
    buckets = F.array_sort(
        F.transform(
            F.map_entries(histogram),
            lambda entry: F.struct(entry["key"].try_cast("int").alias("bucket"), entry["value"].alias("n")),
        )
    )
    rank = share * _sum_of_list(F.map_values(histogram))
    start = F.struct(F.lit(0).cast("long").alias("seen"), F.lit(None).cast("int").alias("bucket"))

    def step(found: Column, entry: Column) -> Column:
        return F.struct(
            F.try_add(found["seen"], entry["n"]).alias("seen"),
            F.when(found["seen"] < rank, entry["bucket"]).otherwise(found["bucket"]).alias("bucket"),
        )

    bucket = F.aggregate(buckets, start, step, lambda found: found["bucket"])
    # The schema's own formula: its arithmetic is the same on a column.
    middle_us = cast("Callable[[Column], Column]", bucket_middle_us)
    return middle_us(bucket)
