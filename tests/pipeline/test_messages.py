from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe.events import CODECS
from kafka_probe_pipeline import source
from kafka_probe_pipeline.messages import DEAD_LETTER_CHARACTERS, dead_letters, traffic_messages
from kafka_probe_pipeline.traffic import DIMENSIONS, SCHEMA, traffic
from tests.builders.hostile import NAMES, unsafe
from tests.builders.spark_events import NOON_US, events, flow, records

pytestmark = pytest.mark.spark


def test_a_row_has_the_same_key_on_every_replay_and_another_in_every_window_batch_and_dimension(
    spark: SparkSession,
) -> None:
    rows = events(
        spark,
        flow(0, topics=[{"topic": "a"}, {"topic": "b"}]),
        flow(1, ts=NOON_US + 3_600_000_000),
        flow(2, client={"id": "client-2"}),
    ).transform(traffic, 60)

    def keys(batch_id: int) -> list[str]:
        return sorted(row["key"] for row in traffic_messages(rows.withColumn("batch_id", F.lit(batch_id))).collect())

    assert keys(0) == keys(0)
    assert len({*keys(0), *keys(1)}) == 2 * rows.count() == 10


def test_the_value_of_a_row_is_json_with_its_window_batch_and_maps(spark: SparkSession) -> None:
    rows = events(spark, flow(errors={"3": 1}, latency={"70": 2})).transform(traffic, 60)
    (message,) = traffic_messages(rows.withColumn("batch_id", F.lit(4))).collect()
    value = json.loads(message["value"])
    assert {name: value[name] for name in ("window_start", "window_end", "batch_id", "level", "client_id")} == {
        "window_start": "2026-01-01T12:00:00.000Z",
        "window_end": "2026-01-01T12:01:00.000Z",
        "batch_id": 4,
        "level": "api",
        "client_id": "client-1",
    }
    assert (value["errors"], value["latency"]) == ({"3": 1}, {"70": 2})


def test_the_rows_of_an_event_at_all_bounds_are_below_1_mib(spark: SparkSession) -> None:
    text = "\U0001f600" * source.TEXT_CHARACTERS  # 12 bytes of JSON for each
    counts = dict.fromkeys([*map(str, range(-999, 1000)), *CODECS], source.MOST)
    topic = {"topic": text, "topic_id": text, "errors": counts, "codecs": counts}
    event = flow(errors=counts, latency=counts, latency_empty=counts, topics=[topic])
    for name, path in DIMENSIONS.items():
        parent, _, field = path.rpartition(".")
        if SCHEMA[name].dataType == T.StringType():
            (event[parent] if parent else event)[field] = text
    rows = events(spark, event).transform(traffic, 60).withColumn("batch_id", F.lit(4))
    sizes = [len(message["value"].encode()) for message in traffic_messages(rows).collect()]
    assert len(sizes) == 2
    assert 1 << 19 < max(sizes) < 1 << 20


def test_names_are_safe_to_print_in_rows_and_dead_letters(spark: SparkSession) -> None:
    names = [name for name in NAMES if name and len(name) <= source.TEXT_CHARACTERS and "\n" not in name]
    sent = (flow(number, client={"id": name}) for number, name in enumerate(names))
    messages = traffic_messages(events(spark, *sent).transform(traffic, 60).withColumn("batch_id", F.lit(4))).collect()
    assert {json.loads(message["value"])["client_id"] for message in messages} == {*names}
    letters = source.malformed(source.parsed(records(spark, "\n".join(names)))).transform(dead_letters).collect()
    assert [json.loads(letter["value"])["line"] for letter in letters] == [name for name in names if name.strip(" ")]
    for message in (*messages, *letters):
        assert not unsafe(message["value"])
        assert "\n" not in message["value"]


def test_a_dead_letter_says_where_the_line_came_from_and_never_outgrows_what_a_broker_takes(
    spark: SparkSession,
) -> None:
    parsed = source.parsed(records(spark, "no\n" + "\U0001f600" * (DEAD_LETTER_CHARACTERS + 1)))
    letters = {row["key"]: row["value"] for row in source.malformed(parsed).transform(dead_letters).collect()}
    assert json.loads(letters["events-0-0-0"]) == {
        "reason": "not a JSON object",
        "line": "no",
        "length": 2,
        "topic": "events",
        "partition": 0,
        "offset": 0,
        "line_number": 0,
    }
    assert json.loads(letters["events-0-0-1"])["length"] == DEAD_LETTER_CHARACTERS + 1
    assert len(letters["events-0-0-1"].encode()) < 1_000_000
