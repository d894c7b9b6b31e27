"""The progress that the job reports, in its log and to Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from kafka_probe.errors import StartError
from kafka_probe_pipeline.progress import METRICS, PREFIX, Progress
from kafka_probe_pipeline.source import MOST
from tests.builders.spark_events import BROKER, CLIENT, agent_event, closed, flow, opened
from tests.lab.broker import Broker
from tests.lab.http import get
from tests.lab.pipeline_job import Run
from tests.lab.processes import free_port

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def test_metrics_count_what_the_queries_processed(broker: Broker, tmp_path: Path, spark: SparkSession) -> None:
    run = Run(broker, tmp_path)
    exited = closed(CLIENT, 1, owner_exiting=True, closed_by="local")
    ends = (opened(CLIENT, 1), opened(BROKER, 1), exited, closed(BROKER, 1))
    run.send_events(
        flow(0),
        flow(1),
        flow(1),
        *ends,
        agent_event(CLIENT, until_s=100),
        agent_event(BROKER, until_s=100),
        flow(2**63 - 1),
        *(flow(seq, topics=[{"bytes": MOST}] * 2**12) for seq in range(2, 10)),
    )
    address = f"127.0.0.1:{free_port()}"
    run.progress.serve(address)
    run.once(spark, storm_minimum=1, storm_percent=0, reconnect_minimum=1)

    families = text_string_to_metric_families(get(f"http://{address}/metrics").text)
    samples = {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples["events_total", "traffic"] == 17
    assert samples["events_total", "diagnosis"] == 6  # it leaves out flows
    assert samples["batches_total", "traffic"] == samples["batches_total", "diagnosis"] == 1
    assert samples["malformed_lines_total", "seq below 0 or above 2^48"] == 1
    assert samples["repeated_events_total",] == 1
    assert samples["overflowed_rows_total",] == 2  # of the API, and of its topics
    assert samples["storms_active",] == 1
    assert sum(value for (name, *_), value in samples.items() if name == "verdicts_total") == 1
    assert samples["batch_seconds_total", "traffic"] > 0
    assert 0 <= samples["behind_seconds", "traffic"] < 3600
    assert {name for name, *_ in samples} >= METRICS.keys() - {"behind_records"}  # that is read while they run


def test_the_log_says_once_a_minute_how_fast_and_how_far_behind_each_query_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("time.time", lambda: 2000.0)
    seen = Progress()
    seen.batch("traffic", 600, 1_990_000_000, began_s=now_s)
    seen.batch("traffic", 0, 0, began_s=now_s)
    seen.lines({"not a JSON object": 3})
    seen.repeated(2)
    with caplog.at_level("INFO", "kafka_probe_pipeline"):
        seen.look([])
        now_s += 60
        seen.look([])
        seen.look([])
        now_s += 60
        seen.look([])
    assert caplog.messages == [
        "Query traffic processed 10.0 events/s and is 10 s and 0 records behind.",
        "3 lines since the start were not events; malformed: not a JSON object 3.",
        "2 flows and requests since the start were left out as repeated.",
        "Query traffic processed 0.0 events/s and is 10 s and 0 records behind.",
    ]


def test_an_address_in_use_is_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    Progress().serve(address)
    with pytest.raises(StartError, match=rf"^--listen {address} cannot be used: Address already in use\.$"):
        Progress().serve(address)
