"""A storm through a real broker, the job as a process and a real Alertmanager. The job is killed in its middle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.builders.spark_events import BROKER, CLIENT, agent_event, opened
from tests.builders.storm_events import dropped_at_once
from tests.lab.alertmanager import Receiver
from tests.lab.broker import Broker
from tests.lab.pipeline_job import LIMIT_S, Run
from tests.lab.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def in_a_batch_of_the_storm(run: Run) -> bool:
    """Return True if the verdicts of a batch are written, and Spark has not committed it."""
    batches = len([*(run.output / "connections_checkpoint" / "offsets").glob("[0-9]*")])
    done = len([*(run.output / "connections_checkpoint" / "commits").glob("[0-9]*")])
    return batches > done and run.written("verdicts") > 1


def test_killed_in_the_middle_of_a_storm_it_goes_on_with_the_same_alert_and_loses_no_close(
    broker: Broker, tmp_path: Path, spark: SparkSession
) -> None:
    run = Run(broker, tmp_path)
    ends = [opened(end, number) for number in range(300) for end in (CLIENT, BROKER)]
    with Receiver(tmp_path / "alertmanager") as receiver:
        url = ("--alertmanager-url", receiver.url)
        run.send_events(*ends, *dropped_at_once(range(100)), agent_event(BROKER, until_s=100))
        with run.job(*url) as process:
            wait_until(lambda: bool(receiver.alerts()), "the alert", timeout_s=LIMIT_S)
            run.send_events(*dropped_at_once(range(100, 300)), agent_event(BROKER, until_s=101))
            run.wait_until(in_a_batch_of_the_storm, process)
        with run.job(*url):
            wait_until(lambda: "300 connections closed" in summaries(receiver), "the whole storm", timeout_s=LIMIT_S)
            ((key, summary),) = {(key, str(message["summary"])) for key, message in run.received(run.alerts)[-1:]}
            wait_until(lambda: f"Alert {key} was updated: {summary}.\n" in run.log.read_text(), "the log to say so")
        assert len(receiver.alerts()) == 1
    with Receiver(tmp_path / "another") as receiver, run.job("--alertmanager-url", receiver.url):
        wait_until(lambda: "300 connections closed" in summaries(receiver), "the late one to get it", timeout_s=LIMIT_S)

    messages = run.received(run.alerts)
    assert {key for key, _ in messages} == {key}
    assert {key: message["count"] for key, message in messages} == {messages[0][0]: 300}
    run.once(spark)  # the job may have been killed before it committed the rows
    verdicts = run.table(spark, "verdicts")
    assert verdicts.groupBy("cause").count().collect() == [("middlebox_reset", 300)]
    assert verdicts.select("key").distinct().count() == 300
    for name, rows in (("opens", 600), ("closes", 300)):
        events = run.buffered(spark, name).select("agent_id", "seq")
        assert (events.count(), events.distinct().count()) == (rows, rows)

    assert json.loads(run.shown(spark, "storms"))["count"] == 300
    assert "middlebox_reset" in run.shown(spark, "verdicts", as_json=False)


def summaries(receiver: Receiver) -> str:
    return " ".join(alert["annotations"]["summary"] for alert in receiver.alerts())
