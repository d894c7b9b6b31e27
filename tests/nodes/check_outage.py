"""Brokers out of reach for an hour: a busy node's events wait on disk and are delivered once, in order.

The hour's events pass as fast as the disk takes them. Part of `make test-nodes`: they are two gigabytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_probe.sinks.kafka import KafkaSink
from tests.builders.events import numbered
from tests.lab.broker import Broker
from tests.lab.numbered_events import config, read_all
from tests.lab.processes import wait_until
from tests.lab.topics import create_topics

pytestmark = pytest.mark.broker

EVENTS_PER_S, EVENT_BYTES = 411, 1420  # of a node with `--requests all`: docs/guide/outages.md
HOUR = 3600 * EVENTS_PER_S
AT_ONCE = EVENTS_PER_S * 5  # an interval's
TOPIC = "events"


def test_an_hour_without_brokers_is_delivered_whole_and_in_order(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, [TOPIC], partitions=1)
        settings = config(broker, TOPIC, spool_dir=tmp_path / "spool")
        broker.stop()
        sink = KafkaSink(settings)
        for first in range(0, HOUR, AT_ONCE):
            sink.send([numbered(seq, padding=EVENT_BYTES - 60) for seq in range(first, min(first + AT_ONCE, HOUR))])
            wait_until(
                lambda: sink.counters()["sink_waiting_bytes"] < settings.sink_buffer_bytes * 3 // 4,
                "the disk to keep up",
                every_s=0.005,
            )
        assert sink.counters()["sink_events"] == 0
        assert 0 < sink.counters()["sink_spooled_bytes"] < settings.spool_bytes
        broker.start()
        wait_until(
            lambda: sink.counters()["sink_events"] == HOUR, "all of it to be delivered", timeout_s=600, every_s=1
        )
        sink.close(30)
        assert set(sink.losses().values()) == {0}
        assert sink.counters()["sink_spooled_bytes"] == 0
        assert read_all(broker.bootstrap, TOPIC) == list(range(HOUR))
