from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from kafka_probe import events as schema
from kafka_probe.sending import Sender
from kafka_probe.sinks.outbox import encode
from kafka_probe_pipeline import source
from tests.builders.full_events import full_event
from tests.builders.spark_events import Event, events, flow, lines, offset_seen, records
from tests.pipeline.frames import assert_same

pytestmark = pytest.mark.spark

STRANGE_OFFSET = "an offset, its partition or its time is missing or out of bounds"
ORIGIN = ("v", "node", "agent_id", "seq")  # what an agent's `Sender` adds


def without_nulls(value: object) -> object:
    match value:
        case dict():
            return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
        case list():
            return [without_nulls(inner) for inner in value]
        case _:
            return value


def test_every_field_of_every_kind_arrives_as_it_was_written(spark: SparkSession) -> None:
    written = [full_event(kind, source.MOST) for kind in schema.KINDS]
    read = events(spark, *written).drop("position").collect()
    assert [without_nulls(row.asDict(recursive=True)) for row in read] == written


def test_lines_of_other_kinds_are_left_out_and_all_fields_of_the_others_read(spark: SparkSession) -> None:
    written = [full_event(kind, source.MOST) for kind in schema.KINDS]
    of_event: Any = ({name: value for name, value in event.items() if name not in ORIGIN} for event in written)
    sent: list[schema.Event] = []
    sink: Any = SimpleNamespace(send=sent.extend)
    Sender("node-1", sink).send(of_event)
    assert len(sent) == len(schema.KINDS)
    text = "".join(encode(event).decode() for event in sent)
    rows = source.parsed(records(spark, f"{text}torn\n"), "open", "close").persist()
    assert rows.where("event IS NULL").count() == 1
    read = [without_nulls(row["event"].asDict(recursive=True)) for row in rows.where("event IS NOT NULL").collect()]
    assert read == [event for event in sent if event["kind"] in ("open", "close")]


def test_the_spark_schema_has_each_field_once_and_typed(spark: SparkSession) -> None:
    fields = source.spark_schema().fields
    assert [field.name for field in fields] == list(
        dict.fromkeys(field.name for kind in schema.KINDS for field in schema.KINDS[kind])
    )
    types = {field.name: field.dataType for field in fields}
    assert (types["ts"], types["kind"], types["internal"]) == (T.LongType(), T.StringType(), T.BooleanType())
    assert types["latency"] == T.MapType(T.StringType(), T.LongType())
    assert events(spark, flow()).drop("position").schema == source.spark_schema()


def test_a_field_with_two_types_in_the_schema_is_refused() -> None:
    with pytest.raises(TypeError, match="the field x has two types"):
        source._struct((schema.Field("x", "long", ""), schema.Field("x", "string", "")))


def test_lines_of_one_record_become_events_in_place_and_blank_lines_are_none(spark: SparkSession) -> None:
    value = lines(flow(0), flow(1)) + "\n  \n" + lines(flow(2))
    parsed = source.parsed(records(spark, value, lines(flow(3))))
    assert_same(
        parsed.select("topic", "partition", "offset", "line_number", "event.seq"),
        spark.createDataFrame(
            [("events", 0, 0, 0, 0), ("events", 0, 0, 1, 1), ("events", 0, 0, 4, 2), ("events", 0, 1, 0, 3)],
            "topic string, partition int, offset long, line_number int, seq long",
        ),
    )


MANY_LABELS = {f"label-{number}": "" for number in range(300)}
BAD_LINES = {
    "hello": "not a JSON object",
    "5": "not a JSON object",
    "null": "not a JSON object",
    "[" + json.dumps(flow()) + "]": "not a JSON object",
    json.dumps(flow())[:-9]: "not a JSON object",
    json.dumps(flow()) + json.dumps(flow(1)): "not a JSON object",
    json.dumps(flow()) + "," + json.dumps(flow(1)): "not a JSON object",
    json.dumps(flow()) + " tail": "not a JSON object",
    json.dumps(flow(requests="many")): "a value of another type than the schema's",
    json.dumps(flow(requests=2**63)): "a value of another type than the schema's",
    json.dumps(flow(errors={"3": "x"})): "a value of another type than the schema's",
    json.dumps(flow(topics={"topic": "a"})): "a value of another type than the schema's",
    json.dumps(flow(v=2)): "schema version other than 1",
    "{}": "schema version other than 1",
    json.dumps(flow(kind=None)): "no kind",
    json.dumps(flow(agent_id=None)): "no agent_id",
    json.dumps(flow(seq=None)): "no seq",
    json.dumps(flow(ts=None)): "no ts",
    json.dumps(flow(kind="flood")): "unknown kind",
    json.dumps(flow(ts=-1)): "ts before 1970 or after 9999",
    json.dumps(flow(ts=2**63 - 1)): "ts before 1970 or after 9999",
    json.dumps(flow(seq=-1)): "seq below 0 or above 2^48",
    json.dumps(flow(seq=2**63 - 1)): "seq below 0 or above 2^48",
    json.dumps(flow(seq=2**48 + 1)): "seq below 0 or above 2^48",
    json.dumps(flow(kind="agent", complete_until=2**62)): "a time other than ts before 1970 or after 9999",
    json.dumps(flow(kind="agent", open=[{}] * (source.MOST_OPEN + 1))): "more than 514 open counts",
    json.dumps(flow(requests=-5)): "a count below 0 or beyond 2^48",
    json.dumps(flow(requests=2**63 - 1)): "a count below 0 or beyond 2^48",
    json.dumps(flow(requests=2**48 + 1)): "a count below 0 or beyond 2^48",
    json.dumps(flow(latency={"3": -(2**60)})): "a count below 0 or beyond 2^48",
    json.dumps(flow(topics=[{"bytes": 1}, {"bytes": 2**49}])): "a count below 0 or beyond 2^48",
    json.dumps(flow(topics=[{"codecs": {"gzip": 2**49}}])): "a count below 0 or beyond 2^48",
    json.dumps(flow(kind="close", age_us=-(2**63))): "a count below 0 or beyond 2^48",
    json.dumps(flow(kind="agent", open=[{"count": 2**62}])): "a count below 0 or beyond 2^48",
    json.dumps(flow(kind="agent", losses={"ring_full": -1})): "a count below 0 or beyond 2^48",
    json.dumps(flow(kind="close", sent_bytes=2**63 - 1)): "a count below 0 or beyond 2^48",
    json.dumps(flow(kind="close", in_flight=-1)): "a count below 0 or beyond 2^48",
    json.dumps(flow(topics=[{}] * (source.MOST_TOPICS + 1))): "more than 4097 topics",
    json.dumps({**flow(), "kind": "request", "members": [{}] * (source.MOST_MEMBERS + 1)}): "more than 512 members",
    json.dumps(flow(latency={"1e9": 1})): "a count whose key is not an error code, bucket or codec",
    json.dumps(flow(errors={"12345": 1})): "a count whose key is not an error code, bucket or codec",
    json.dumps(flow(errors={"05": 1})): "a count whose key is not an error code, bucket or codec",
    json.dumps(flow(errors={"5\n": 1})): "a count whose key is not an error code, bucket or codec",
    json.dumps(flow(topics=[{"codecs": {"x" * 99: 1}}])): "a count whose key is not an error code, bucket or codec",
    json.dumps(flow(client={"id": "x" * 2049})): "a text of more than 2048 characters",
    json.dumps(flow(client={"id": "\x01" * 2049})): "a text of more than 2048 characters",
    json.dumps(flow(workload={"labels": {'\\"' * 1025: ""}})): "a text of more than 2048 characters",
    json.dumps(flow(topics=[{"topic": '"' * 2049}])): "a text of more than 2048 characters",
    json.dumps(flow(client={"id": ["a"] * 1025})): "a text of more than 2048 characters",
    json.dumps(flow(client={"id": [[1] * 1025]})): "a text of more than 2048 characters",
    json.dumps(flow(client={"id": {"a": {"b": [{}] * 1025}}})): "a text of more than 2048 characters",
    json.dumps(flow(agent_id=[1.5] * 1025)): "a text of more than 2048 characters",
    json.dumps(flow(topics=[{"topic": [None] * 1025}])): "a text of more than 2048 characters",
    json.dumps(flow(workload={"labels": {"a": [[]] * 1025}})): "a text of more than 2048 characters",
    json.dumps(flow()).replace('"agent-1"', "'" + 'a"' * 1025 + "'"): "a value of another type than the schema's",
    json.dumps(flow(kind="reset", local="1" * 65)): "an address of more than 64 characters",
    json.dumps(flow(kind="reset", peer="1" * 65)): "an address of more than 64 characters",
    json.dumps(flow(kind="offsets", partition_ends=[offset_seen(-1)])): STRANGE_OFFSET,
    json.dumps(flow(kind="offsets", partition_ends=[offset_seen(1), offset_seen(1, partition=-1)])): STRANGE_OFFSET,
    json.dumps(flow(kind="offsets", group_positions=[offset_seen(1, partition=None)])): STRANGE_OFFSET,
    json.dumps(flow(kind="offsets", group_positions=[offset_seen(1, seen=source.YEAR_9999_US + 1)])): STRANGE_OFFSET,
    json.dumps(flow(kind="offsets", group_positions=[None])): STRANGE_OFFSET,
    json.dumps(flow(kind="offsets", partition_ends=[offset_seen(1)] * 1001)): "more than 1000 offsets",
    json.dumps(flow(workload={"labels": MANY_LABELS})): "labels of more than 2048 characters",
    json.dumps(flow(open=[{}, {"workload": {"labels": MANY_LABELS}}])): "labels of more than 2048 characters",
    json.dumps(flow())[:-1] + ', "workload": {"labels": {' + '"": "", ' * 2048 + '"": ""}}}': (
        "labels of more than 2048 characters"
    ),
}


def test_a_line_that_is_no_event_keeps_its_text_and_has_a_reason(spark: SparkSession) -> None:
    parsed = source.parsed(records(spark, "".join(f"{line}\n" for line in BAD_LINES) + lines(flow(1))))
    dead = source.malformed(parsed).orderBy("line_number").collect()
    assert [(row["line_number"], row["line"], row["reason"]) for row in dead] == [
        (number, line, reason) for number, (line, reason) in enumerate(BAD_LINES.items())
    ]
    assert [event["seq"] for event in source.received(parsed).collect()] == [1]


@pytest.mark.parametrize("char", ["x", "\\", '"', "\x01", "\u00fc"])
def test_a_text_is_as_long_as_its_characters_however_they_are_escaped(spark: SparkSession, char: str) -> None:
    longest = char * source.TEXT_CHARACTERS
    event = flow(client={"id": longest}, topics=[{"topic": longest}, *[{}] * source.TEXT_CHARACTERS])
    assert [row["client"]["id"] for row in events(spark, event).collect()] == [longest]


def test_an_event_at_every_bound_is_one(spark: SparkSession) -> None:
    labels = {"x" * (source.TEXT_CHARACTERS // 2): "x" * (source.TEXT_CHARACTERS // 2)}
    addresses = dict.fromkeys(source.ADDRESSES, "1" * source.ADDRESS_CHARACTERS)
    topics = [{"bytes": -source.MOST}, *[{}] * (source.MOST_TOPICS - 1)]
    counts: list[Event] = [{}] * source.MOST_OPEN
    event = flow(source.MOST_SEQ, requests=source.MOST, topics=topics, workload={"labels": labels}, **addresses)
    latest = offset_seen((1 << 63) - 1, partition=source.MOST, seen=source.YEAR_9999_US)
    offsets = flow(kind="offsets", partition_ends=[latest] * source.MOST_OFFSETS, group_positions=[latest])
    assert events(spark, event, flow(kind="agent", open=counts), offsets).count() == 3


@pytest.mark.parametrize(
    ("more_bytes", "found"), [(0, [None] * 2), (1, [f"a record of more than {(4 << 20) + 1} bytes"])]
)
def test_a_record_above_the_bound_is_one_line_that_is_not_parsed(
    spark: SparkSession, more_bytes: int, found: list[str | None]
) -> None:
    text = lines(flow(0), flow(1))
    blank = " " * (source.MOST_RECORD_BYTES - len(text) + more_bytes)
    rows = records(spark, text + blank).transform(source.parsed).collect()
    assert [row["reason"] for row in rows] == found
    assert [row["line"] for row in rows if row["reason"]] == [text + blank] * more_bytes


def test_the_longest_texts_of_an_agent_make_an_event(spark: SparkSession) -> None:
    address = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
    tags = "\U000e0041" * 256  # beyond Latin-1 an agent sends a quarter of the characters, each as two escapes
    labels = {f"{number:02}": "\x01" * 62 for number in range(16)}
    texts = {"cmdline": "\x01" * 1024, "exe": tags, "labels": labels}
    assert events(spark, flow(local=address, peer=address, workload=texts)).count() == 1


def test_bytes_that_are_no_text_are_malformed_and_nothing_more(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [("events", 0, 0, datetime.now(UTC), bytearray(b"\xff\xfe\x00\n" + lines(flow()).encode()))],
        "topic string, partition int, offset long, timestamp timestamp, value binary",
    )
    parsed = source.parsed(raw)
    assert [row["reason"] for row in source.malformed(parsed).collect()] == ["not a JSON object"]
    assert source.received(parsed).count() == 1
