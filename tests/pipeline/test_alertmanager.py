"""Delivery to a real Alertmanager that is there, is not there, and comes back without memory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Row

from kafka_probe_pipeline import alertmanager
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.alerts import Alert, alert
from kafka_probe_pipeline.storms import SCHEMA
from tests.lab.processes import wait_until
from tests.pipeline.receiver import Receiver


def storm(name: str) -> Alert:
    """An idle storm that began a minute ago."""
    began = round((time.time() - 60) * 1e6)
    facts = {
        "id": name,
        "kind": "idle_disconnects",
        "subject": "middlebox_silent_drop",
        "state": "active",
        "opened_us": began,
        "count": 300,
        "population": 400,
        "share": 0.75,
        "scope": "broker 10.0.0.9:9092",
        "idle_us": 30_000_000,
        "both_ends": 290,
        "evidence": "what the client sent was never acknowledged",
        "workloads": [Row(count=200, name="java team/orders-1")],
    }
    return alert(Row(**{column: facts.get(column) for column in SCHEMA.names}))


def resolved(one: Alert) -> Alert:
    return replace(one, resolved=True, resolved_us=round(time.time() * 1e6))


def named(receiver: Receiver) -> list[str]:
    return sorted(one["labels"]["storm"] for one in receiver.alerts())


def test_an_alert_stands_there_with_its_cause_and_remedy_until_it_is_resolved(tmp_path: Path) -> None:
    one = storm("a")
    with Receiver(tmp_path / "am") as receiver, Alertmanager(receiver.url) as told:
        told.tell([one])
        wait_until(lambda: named(receiver) == ["a"], "the alert")
        (there,) = receiver.alerts()
        assert there["labels"]["alertname"] == "KafkaIdleDisconnectStorm"
        assert there["annotations"]["summary"].startswith("300 connections closed after 30.0 s of silence")
        assert "connections.max.idle.ms of at most 24000" in there["annotations"]["remedy"]
        assert there["annotations"]["workloads"] == "java team/orders-1 (200)"
        told.tell([resolved(one)])
        wait_until(lambda: named(receiver) == [], "its end")


def test_what_could_not_be_delivered_arrives_when_the_receiver_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(tmp_path / "am")
    one, other = storm("a"), storm("b")
    with Alertmanager(receiver.url) as told, caplog.at_level("INFO"):
        told.tell([one, other])
        wait_until(lambda: "does not take alerts" in caplog.text, "the first attempt")
        told.tell([resolved(other)])
        with receiver:
            wait_until(lambda: named(receiver) == ["a"], "the alert that is not over")
            wait_until(lambda: "takes alerts again" in caplog.text, "the word that it goes on")
    said = ["takes alerts again" in message for message in caplog.messages]
    assert said == [bool(number % 2) for number in range(len(said))]


def test_one_that_forgot_is_told_again_before_the_alert_would_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alertmanager, "RENEW_S", 0.2)
    with Receiver(tmp_path / "am") as receiver, Alertmanager(receiver.url) as told:
        told.tell([storm("a")])
        wait_until(lambda: named(receiver) == ["a"], "the alert")
        receiver.stop()
        receiver.start()
        wait_until(lambda: named(receiver) == ["a"], "the alert once more")


def test_the_end_of_the_job_delivers_what_was_told_last(tmp_path: Path) -> None:
    with Receiver(tmp_path / "am") as receiver:
        with Alertmanager(receiver.url) as told:
            told.tell([storm("a")])
        assert named(receiver) == ["a"]
