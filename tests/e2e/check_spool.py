"""The spool of the Kafka sink with a real broker: what outlasts the agent's memory, or the agent, arrives later."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_probe.sinks.kafka import KafkaSink
from tests.builders.events import numbered
from tests.lab.broker import Broker
from tests.lab.numbered_events import config, read_all
from tests.lab.processes import start, wait_until

# kafka-python leaves the sockets of refused connections to the garbage collector.
pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("clients_end"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


KILLED = """
import signal, sys
from kafka_probe.config import load
from kafka_probe.sinks.kafka import KafkaSink
from tests.builders.events import numbered
from tests.lab.processes import wait_until
bootstrap, spool = sys.argv[1:]
settings = {"topic": "spooled", "spool_dir": spool, "sink_buffer_bytes": "200000", "node": "test"}
sink = KafkaSink(load({"bootstrap_servers": bootstrap, **settings}))
for seq in range(100):
    sink.send([numbered(seq, 10_000, "killed")])
    wait_until(lambda: sink.counters()["sink_waiting_bytes"] <= 100_000, "space in memory", every_s=0.01)
wait_until(lambda: sink.counters()["sink_waiting_bytes"] == 0, "the disk to have it all")
print(sink.losses()["sink_buffer_full"], flush=True)
signal.pause()
"""


def test_an_outage_that_outlasts_memory_and_the_agent_itself_costs_no_event(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafka_probe")
    spool, output = tmp_path / "spool", tmp_path / "output"
    broker.stop()
    command = [sys.executable, "-c", KILLED, broker.bootstrap, str(spool)]
    killed = start(command, log=tmp_path / "log", stdout=output, env={"PYTHONPATH": ":".join(sys.path)})
    wait_until(lambda: output.exists() and output.read_text() == "0\n", "all events of the first agent on disk")
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    sink = KafkaSink(config(broker, "spooled", spool_dir=spool, sink_buffer_bytes=200_000))
    for seq in range(100):
        sink.send([numbered(seq, padding=10_000, agent="next")])
        wait_until(lambda: sink.counters()["sink_waiting_bytes"] <= 100_000, "space in memory", every_s=0.01)
    broker.start()
    sink.close(60)

    assert read_all(broker.bootstrap, "spooled", "killed") == list(range(100))
    assert read_all(broker.bootstrap, "spooled", "next") == list(range(100))
    assert sink.counters()["sink_spooled_bytes"] == 0
    assert set(sink.losses().values()) == {0}
    assert "Sending 100 events from" in caplog.text
    assert list(spool.iterdir()) == []


def test_what_is_on_its_way_when_the_agent_ends_waits_for_the_next_one(broker: Broker, tmp_path: Path) -> None:
    settings = config(broker, "on-its-way", spool_dir=tmp_path / "spool")
    sink = KafkaSink(settings)
    sink.send([numbered(0)])
    wait_until(lambda: sink.counters()["sink_events"] == 1, "the first one to arrive")
    broker.stop()
    sink.send([numbered(1)])
    wait_until(lambda: sink.trouble() is not None, "the second one to be missed")
    sink.close(0.1)
    assert set(sink.losses().values()) == {0}

    broker.start()
    following = KafkaSink(settings)
    following.send([numbered(2)])
    following.close(60)
    assert read_all(broker.bootstrap, "on-its-way") == [0, 1, 2]
