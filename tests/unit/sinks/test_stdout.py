"""Lines on a real pipe: a reader that closes it or does not read never delays the sender."""

from __future__ import annotations

import os
import threading
import time

import orjson

from kafka_probe.sinks.stdout import BUFFER_BYTES, StdoutSink
from tests.builders.events import event


def test_each_event_is_a_line_of_json() -> None:
    read, write = os.pipe()
    sink = StdoutSink(descriptor=write)
    sink.send([event(kind="flow", seq=0), event(kind="agent", seq=1)])
    sink.close(5)
    os.close(write)
    with os.fdopen(read, "rb") as output:
        assert [orjson.loads(line)["seq"] for line in output] == [0, 1]
    assert sink.counters()["sink_events"] == 2


def test_a_reader_that_has_gone_asks_the_agent_to_stop_and_the_rest_is_counted() -> None:
    read, write = os.pipe()
    os.close(read)
    gone = threading.Event()
    sink = StdoutSink(descriptor=write)
    sink.on_closed = gone.set
    assert sink.trouble() is None
    sink.send([event(seq=0)])
    assert gone.wait(5)
    assert sink.trouble() == "the reader closed the pipe"
    sink.send([event(seq=1)])
    sink.close(5)
    os.close(write)
    assert sink.losses()["sink_send_failed"] == 2


def test_a_reader_that_does_not_read_costs_events_but_no_time() -> None:
    read, write = os.pipe()
    sink = StdoutSink(descriptor=write)
    large = event(text="x" * 100_000)
    started = time.monotonic()
    for _ in range(BUFFER_BYTES // 100_000 + 10):
        sink.send([large])
    assert time.monotonic() - started < 5
    assert sink.losses()["sink_buffer_full"] > 0
    os.close(read)
    sink.close(5)
    os.close(write)


def test_closing_twice_is_closing_once() -> None:
    read, write = os.pipe()
    sink = StdoutSink(descriptor=write)
    sink.send([event(seq=0)])
    sink.close(5)
    sink.close(5)
    os.close(write)
    os.close(read)
    assert sink.counters()["sink_events"] == 1
    assert sum(sink.losses().values()) == 0
