"""Kafka-probe's own traffic is left out of every view; its rows are counted, and --internal shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.builders.spark_events import BROKER, CLIENT, agent_event, closed, flow, opened
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run

pytestmark = [pytest.mark.spark, pytest.mark.broker]

OWN, OTHER = "kafka-probe-agent-node-1", "client-1"


def test_console_and_show_leave_out_its_own_traffic_and_connections(
    broker: Broker, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(broker, tmp_path)
    own = {"client": {"id": OWN}}
    run.send_events(
        flow(0),
        flow(1, **own, internal=True, api=None),
        *(of(end, 1, client={"id": OTHER}) for of in (opened, closed) for end in (CLIENT, BROKER)),
        # Of its own sockets an agent sees nothing; a broker's end has the name.
        *(of(end, 2, **facts) for of in (opened, closed) for end, facts in ((CLIENT, {}), (BROKER, own))),
        agent_event(CLIENT, until_s=100),
        agent_event(BROKER, until_s=100),
    )
    run.once(spark, console=True)
    views = {table: run.shown(spark, table, as_json=False) for table in ("traffic", "connections", "verdicts")}
    for text in (capsys.readouterr().out, *views.values()):
        assert "1 of kafka-probe's own rows are left out; --internal shows them" in text
    for table in views:
        assert OWN not in views[table] + run.shown(spark, table)
        assert OWN in run.shown(spark, table, internal=True)
    assert all(OTHER in run.shown(spark, table) for table in views)
    assert "left out" not in run.shown(spark, as_json=False, internal=True)
