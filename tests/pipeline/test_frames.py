"""The archive's table: every sample that an agent sent is a row, and what is no sample is malformed."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_pipeline import source
from kafka_probe_pipeline.frames import SCHEMA, frames
from tests.builders.spark_events import NOON_US, Event, flow, frames_event, lines, records
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run

pytestmark = pytest.mark.spark

NOON = datetime.fromtimestamp(NOON_US / 1e6, UTC)


def reasons(spark: SparkSession, *events: Event) -> list[str | None]:
    rows = source.parsed(records(spark, lines(*events)), "frames").orderBy("line_number").collect()
    return [row["reason"] for row in rows]


def test_a_row_has_what_the_kernel_copied_and_where(spark: SparkSession) -> None:
    event = frames_event(b"\0\xff", b"", wall_offset_ns=NOON_US * 1000 + 999)
    parsed = source.parsed(records(spark, lines(event)), "frames").persist()
    first, second = source.received(parsed).transform(frames).collect()
    assert first.asDict().keys() == {*SCHEMA.names}
    assert (bytes(first["data"]), bytes(second["data"])) == (b"\0\xff", b"")
    assert (first["flow_id"], first["side"], first["api_key"], first["flags"]) == (
        "f" * 16,
        "client",
        ApiKey.METADATA,
        0,
    )
    assert (second["ts"] - first["ts"], second["monotonic_ns"]) == (timedelta(milliseconds=1), 1_000_000)
    assert first["ts"].replace(tzinfo=UTC) == NOON
    assert first["hour"] == NOON.hour


def wrong(**samples: object) -> Event:
    event = frames_event(b"one", b"two")
    return {**event, "samples": {**event["samples"], **samples}}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (frames_event(b"one"), None),
        (wrong(monotonic_ns=[1]), "samples in lists of different lengths"),
        (wrong(data=None), "samples in lists of different lengths"),
        (wrong(end=[0, 1]), "a sample of no end"),
        (wrong(end=[0, -1]), "a sample of no end"),
        (wrong(end=[0, None]), "a sample of no end"),
        (wrong(part=[0, None]), "a sample without a number"),
        (wrong(data=["AAAA", "%"]), "a sample that is not base64"),
        (wrong(data=["AAAA", None]), "a sample that is not base64"),
        (wrong(monotonic_ns=[0, 2**62]), "samples before 1970 or after 9999"),
        (frames_event(b"one", wall_offset_ns=2**63 - 1), "samples before 1970 or after 9999"),
        (frames_event(b"one", wall_offset_ns=None), "samples before 1970 or after 9999"),
        (frames_event(b"one", ends=None), "a sample of no end"),
        (frames_event(b"one", ends=[None]), "a sample of no end"),
        (frames_event(*[b""] * (source.MOST_SAMPLES + 1)), f"more than {source.MOST_SAMPLES} samples or ends"),
        ({**frames_event(), "kind": "other"}, "unknown kind"),
        ({**frames_event(), "samples": None}, "samples in lists of different lengths"),
    ],
)
def test_an_event_that_would_make_no_rows_is_malformed(spark: SparkSession, event: Event, reason: str | None) -> None:
    assert reasons(spark, event) == [reason]


@pytest.mark.broker
def test_events_of_the_other_topic_are_no_frames(broker: Broker, tmp_path: Path, spark: SparkSession) -> None:
    run = Run(broker, tmp_path, archive=True)
    run.send_frames(flow(0), frames_event(b64decode("AAAA")))
    run.once(spark)
    assert run.table(spark, "frames").count() == 1
    assert run.table(spark, "traffic").count() == 0
