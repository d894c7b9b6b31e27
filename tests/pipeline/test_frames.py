"""The archive's table: every sample that an agent sent is a row, once, also after its hour was merged."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_pipeline import source
from kafka_probe_pipeline.frames import SCHEMA, frames
from kafka_probe_pipeline.maintenance import Maintenance
from tests.builders.fed_agent import Fed, samples_of
from tests.builders.samples import opened, request, response, stream
from tests.builders.spark_events import NOON_US, Event, flow, frames_event, lines, records
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run

pytestmark = pytest.mark.spark

NOON = datetime.fromtimestamp(NOON_US / 1e6, UTC)


def reasons(spark: SparkSession, *events: Event) -> list[str | None]:
    rows = source.parsed(records(spark, lines(*events)), "frames").orderBy("line_number").collect()
    return [row["reason"] for row in rows]


def digest(samples: Iterable[Any]) -> str:
    """Return a hash of the sequence of samples, each a dictionary or a row."""
    names = ("flow_id", "conn_id", "monotonic_ns", "correlation_id", "tcp_seq", "flags", "part", "frame_bytes", "data")
    rows = sorted(tuple(bytes(one[n]) if n == "data" else one[n] for n in names) for one in samples)
    return hashlib.sha256(repr(rows).encode()).hexdigest()


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
def test_the_sequence_of_samples_is_what_the_agent_sent_also_after_hours_were_merged(
    broker: Broker, tmp_path: Path, spark: SparkSession
) -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(*(opened(conn, rx_base=conn, tx_base=2) for conn in range(1, 4)))
    for number in range(300):
        samples = stream(request(ApiKey.METADATA, 12, number % 3 + 1), response(ApiKey.METADATA, 12, number % 3 + 1))
        samples["correlation_id"], samples["ts_ns"] = number, number * 10**6
        fed.see(samples)
    sent = fed.archive_sink.events
    run = Run(broker, tmp_path, archive=True)
    parts = iter(sent)
    while part := [*islice(parts, 150)]:
        run.send_frames(*part)
        run.once(spark)
    run.send_lines("torn\n", topic=run.frames)
    run.once(spark)
    expected = digest(sample for event in sent for sample in samples_of(event))
    assert digest(run.table(spark, "frames").collect()) == expected
    assert run.progress.malformed == {"not a JSON object": 1}

    path = str(run.output / "frames")
    before = len(DeltaTable(path).file_uris())
    Maintenance(spark, run.config).run(datetime.now(UTC))
    assert len(DeltaTable(path).file_uris()) == before, "an hour that is not over is left as it is"
    Maintenance(spark, run.config).run(datetime.now(UTC) + timedelta(hours=1))
    files = DeltaTable(path).file_uris()
    assert len(files) < before
    assert len(files) == len({file.rpartition("/")[0] for file in files}), "one file per hour"
    merged = spark.read.parquet(files[0]).select("flow_id", "monotonic_ns").collect()
    assert [row["flow_id"] for row in merged] == sorted(row["flow_id"] for row in merged)
    assert digest(run.table(spark, "frames").collect()) == expected
    Maintenance(spark, run.config).run(datetime.now(UTC) + timedelta(hours=1))
    assert DeltaTable(path).file_uris() == files, "merged hours are left as they are"


@pytest.mark.broker
def test_events_of_the_other_topic_are_no_frames(broker: Broker, tmp_path: Path, spark: SparkSession) -> None:
    run = Run(broker, tmp_path, archive=True)
    run.send_frames(flow(0), frames_event(b64decode("AAAA")))
    run.once(spark)
    assert run.table(spark, "frames").count() == 1
    assert run.table(spark, "traffic").count() == 0
