"""Names that strangers choose are text in all that the job logs and sends to a real Alertmanager."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_probe.text import LineFormatter
from kafka_probe_pipeline import storms
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.alerts import alert
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.source import TEXT_CHARACTERS
from kafka_probe_pipeline.versions import Versions
from tests.builders.hostile import NAMES, unsafe
from tests.builders.spark_events import BROKER, CLIENT, agent_event
from tests.builders.storm_events import crash_of
from tests.lab.alertmanager import Receiver
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run
from tests.lab.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

SENT = [name[:TEXT_CHARACTERS] for name in NAMES]


def test_log_and_alerts_have_names_as_text(
    broker: Broker, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(broker, tmp_path)
    events = [event for number, name in enumerate(SENT) for event in crash_of(number, name)]
    run.send_events(*events, agent_event(CLIENT, until_s=100), agent_event(BROKER, until_s=100))
    with caplog.at_level("INFO"):
        run.once(spark, storm_minimum=1, storm_percent=0, reconnect_minimum=1)
    formatter = LineFormatter("%(message)s")
    lines = [formatter.format(record) for record in caplog.records if record.message.startswith("Alert ")]
    assert len(lines) == len(SENT)
    assert not [line for line in lines if "\n" in line or unsafe(line)]

    newest = Versions(spark, load({"output": str(run.output)}).storms, storms.SCHEMA).newest()
    assert newest is not None
    found = [alert(row) for row in newest.collect()]
    assert not [one.message() for one in found if "\n" in one.message() or unsafe(one.message())]
    with Receiver(tmp_path / "alertmanager") as receiver, Alertmanager(receiver.url) as sender:
        sender.send(found)
        wait_until(lambda: len(receiver.alerts()) == len(SENT), "the alerts")
        for one in receiver.alerts():
            values = [*one["labels"].values(), *one["annotations"].values()]
            assert not [value for value in values if "\n" in value or unsafe(value) or len(value) > 2000]
