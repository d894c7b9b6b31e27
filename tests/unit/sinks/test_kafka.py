"""The Kafka sink without a broker: settings, messages, and the state after a failed attempt."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import kafka
import pytest

from kafka_probe.config import load
from kafka_probe.sinks import kafka as sink_kafka
from kafka_probe.sinks.kafka import KafkaSink, reach
from tests.builders.events import event
from tests.lab.processes import free_port, wait_until


@pytest.fixture(autouse=True)
def _attempts_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_kafka, "CONNECT_TIMEOUT_MS", 200)
    # Set back after each test: pytest listens in on a logger that does not propagate, and keeps its sockets alive.
    monkeypatch.setattr(logging.getLogger("kafka"), "propagate", True)


def test_settings_reach_both_clients_under_kafka_pythons_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    answered = threading.Event()

    class Refusing:
        def __init__(self, **settings: Any) -> None:
            seen.append(settings)
            answered.set()
            raise kafka.errors.KafkaTimeoutError("enough")

    monkeypatch.setattr(kafka, "KafkaProducer", Refusing)
    monkeypatch.setenv("KAFKA_PROBE_SASL_PLAIN_PASSWORD", "secret")
    flags = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "ssl_cafile": "/ca.pem"}
    sink = KafkaSink(load({"bootstrap_servers": "a:1,b:2", "node": "n1", **flags}))
    sink.send([event(agent_id="x")])
    assert answered.wait(5)
    sink.close(0)

    assert flags.items() <= seen[0].items()
    assert seen[0]["sasl_plain_password"] == "secret"
    assert seen[0]["bootstrap_servers"] == ["a:1", "b:2"]
    assert seen[0]["client_id"] == "kafka-probe-agent-n1"
    assert (seen[0]["acks"], seen[0]["enable_idempotence"], seen[0]["compression_type"]) == ("all", True, "zstd")


def test_attempts_that_fail_leave_no_thread_and_no_descriptor_behind() -> None:
    config = load({"bootstrap_servers": f"127.0.0.1:{free_port()}"})

    def attempt() -> tuple[int, int]:
        with pytest.raises(ConnectionError, match="ECONNREFUSED"):
            reach(config)
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    first = attempt()
    assert [attempt() for _ in range(3)] == [first] * 3


def test_brokers_out_of_reach_are_logged_once_with_the_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = f"127.0.0.1:{free_port()}"
    sink = KafkaSink(load({"bootstrap_servers": servers}))
    sink.send([event(agent_id="x")])
    attempts: list[int] = []
    connect = sink._connect

    def counted() -> Any:
        attempts.append(1)
        return connect()

    monkeypatch.setattr(sink, "_connect", counted)
    wait_until(lambda: len(attempts) >= 3, "three attempts")
    sink.close(0)

    assert [record.name for record in caplog.records] == ["kafka_probe.sinks.kafka"]
    assert servers in caplog.text
    assert "ECONNREFUSED" in caplog.text
    assert sink.losses()["sink_unsent_at_exit"] == 1


def test_what_waits_at_the_end_stays_in_the_spool_for_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = load({"bootstrap_servers": f"127.0.0.1:{free_port()}", "spool_dir": str(tmp_path)})
    for files in (2, 4):
        sink = KafkaSink(config)
        sink.send([event(agent_id="x")] * 2)
        sink.send([event(agent_id="x")])
        wait_until(lambda: "do not accept events" in caplog.text, "a warning")
        sink.close(0)
        assert set(sink.losses().values()) == {0}
        assert len(list(tmp_path.iterdir())) == files
        assert sink.counters()["sink_waiting_bytes"] == 0
        assert sink.counters()["sink_spooled_bytes"] == files * 4096
    assert f"Up to 20 MiB of events wait in memory and 1 GiB in {tmp_path}; further events are lost" in caplog.text
    assert f"Sending 3 events from {tmp_path} first." in caplog.text


@pytest.mark.parametrize("breaks", ["__init__", "send"])
def test_what_breaks_inside_the_client_is_logged_and_another_producer_tried(
    breaks: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers: list[object] = []

    class Broken:
        """A stand-in: the real client does not break on demand."""

        def __init__(self, **_settings: object) -> None:
            producers.append(self)
            self._fail("__init__")
            self._sender = self

        def send(self, *_record: object, **_settings: object) -> None:
            self._fail("send")

        def close(self, _timeout_s: float) -> None:
            self._fail("send")

        def force_close(self) -> None:
            pass

        def _fail(self, method: str) -> None:
            assert method != breaks, "a task is closed while it runs"

    monkeypatch.setattr(kafka, "KafkaProducer", Broken)
    sink = KafkaSink(load({"bootstrap_servers": "a:1"}))
    sink._topic_ensured = True
    sink.send([event(agent_id="x")])
    wait_until(lambda: len(producers) == 2, "a second producer")
    assert sink.trouble() == "the brokers do not accept events; see the log"
    sink.close(0)
    assert "AssertionError: a task is closed while it runs" in caplog.text
    assert sink.losses()["sink_unsent_at_exit"] == 1


def test_an_attempt_cut_short_does_not_hide_why_the_one_before_failed() -> None:
    says, logger = sink_kafka._LastMessages(), logging.getLogger("kafka")
    for sentence in ("<BrokerConnection node_id=1>: ECONNREFUSED", "Connection attempt timed out", "Bootstrap failed"):
        logger.error(sentence)
    says.detach()
    assert says.last == "ECONNREFUSED"


AWAY = """
from kafka_probe.config import load
from kafka_probe.sinks.kafka import KafkaSink
sink = KafkaSink(load({{"bootstrap_servers": "127.0.0.1:{port}"}}))
sink.send([{{"agent_id": "x", "kind": "agent"}}])
sink.close(0.2)
print(sink.losses()["sink_unsent_at_exit"])
"""


def test_a_process_ends_in_time_and_without_complaint_while_an_attempt_is_on_its_way() -> None:
    sources = Path(sink_kafka.__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", AWAY.format(port=free_port())],
        env={**os.environ, "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        timeout=8,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")
