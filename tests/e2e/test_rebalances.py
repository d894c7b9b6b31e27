"""Real clients join and leave groups, in order and not; `rebalances` answers who did, and why.

Rows of an agent's events stand in for a pipeline's table.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer

from kafka_probe_console.rebalances_command import rebalances
from tests.builders.tables import write_rows
from tests.lab.answers import answered
from tests.lab.broker import Broker
from tests.lab.java import SHORT_LIVED, java
from tests.lab.processes import stop, wait_until
from tests.lab.product import Watched
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

TOPIC, SOME = "orders", 20
SESSION = {"session.timeout.ms": 6000}
LATER_US = 180_000_000
CONSUME = "org.apache.kafka.tools.consumer.ConsoleConsumer"
POLLING = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "client.id": sys.argv[3],
                     "session.timeout.ms": 6000, "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
while True:
    consumer.poll(0.1)
"""


def console_consumer(broker: Broker, group: str, *flags: str, **properties: object) -> list[str]:
    where = ("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--group", group, "--from-beginning")
    given = {"client.id": f"{group}-java", **{name.replace("_", "."): value for name, value in properties.items()}}
    settings = [text for name, value in given.items() for text in ("--command-property", f"{name}={value}")]
    return java(CONSUME, *where, *settings, *flags, options=SHORT_LIVED)


@contextmanager
def running(command: list[str], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **streams)
    try:
        yield process
    finally:
        stop(process)
        if process.stdout:
            process.stdout.close()


def write_requests(directory: Path, events: list[dict[str, Any]]) -> None:
    """Write the rows of `request` events as the pipeline does."""
    rows = []
    for event in events:
        at = datetime.fromtimestamp(event["ts"] / 1e6, UTC)
        rows.append({**event, "ts": at, "received_ts": at, "topics": None, "seq": 0})
    write_rows(directory, "requests", rows)


def test_who_joined_and_left_and_why(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker", properties={"group.initial.rebalance.delay.ms": "0"}) as broker:
        create_topics(broker.bootstrap, [TOPIC], partitions=2)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        for _ in range(300):
            producer.send(TOPIC, b"x" * 1000)
        producer.close(timeout=30)
        watched = Watched(tmp_path, broker.port)

        def found(group: str) -> list[set[tuple[str, str, str | None]]]:
            """Return the changes of a group, those that are complete within a second of each other together."""
            write_requests(tmp_path, watched.events(kind="request"))
            rows = answered(rebalances, tmp_path, "--filter", f"group = {group}")[::-1] if requests() else []
            steps, last_s = list[set[tuple[str, str, str | None]]](), 0.0
            for row in rows:
                at_s = datetime.fromisoformat(row["time"]).timestamp()
                if at_s - last_s > 1:
                    steps.append(set())
                steps[-1].add((row["client"], row["change"], row["reason"]))
                last_s = at_s
            return steps

        def requests() -> bool:
            return any("membership" in event for event in watched.events(kind="request"))

        def shows(group: str, *expected: set[tuple[str, str, str | None]]) -> None:
            wait_until(lambda: found(group) == [*expected], f"the changes of {group}", timeout_s=60, every_s=1)

        def includes(group: str, *expected: tuple[str, str, str | None]) -> None:
            wait_until(lambda: {*expected} <= {*chain(*found(group))}, f"the changes of {group}", every_s=1)

        with watched.agent:
            # It waits for somebody to read its output for longer than its poll interval.
            slow = console_consumer(broker, "slow", max_poll_interval_ms=4000)
            with running(slow, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL):
                shows("slow", {("slow-java", "joined", None)}, {("slow-java", "left", "poll_timeout")})
            few = ("--max-messages", str(SOME))
            for group, protocol in (("closing", "classic"), ("newer", "consumer")):
                command = console_consumer(broker, group, *few, group_protocol=protocol)
                subprocess.run(command, timeout=120, check=True, capture_output=True)
            includes("closing", ("closing-java", "left", "close"))
            includes("newer", ("newer-java", "joined", None), ("newer-java", "left", None))
            python = KafkaConsumer(TOPIC, bootstrap_servers=broker.bootstrap, group_id="python", client_id="python")
            wait_until(lambda: python.poll(100) is not None and bool(python.assignment()), "partitions")
            python.close()
            includes("python", ("python", "joined", None), ("python", "left", None))
            lasting = Consumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": "killed", "client.id": "lasting", **SESSION}
            )
            lasting.subscribe([TOPIC])

            def has(partitions: int) -> bool:
                lasting.poll(0.1)
                return len(lasting.assignment()) == partitions

            wait_until(lambda: has(2), "both partitions")
            command = [sys.executable, "-c", POLLING, broker.bootstrap, "killed", "second"]
            with running(command) as second:
                wait_until(lambda: has(1), "one partition")
                second.kill()
                wait_until(lambda: has(2), "both partitions")
        lasting.close()
        # A generation is judged two minutes after it began.
        events = watched.events(kind="request")
        write_requests(tmp_path, [{**event, "ts": event["ts"] - LATER_US} for event in events])
        rows = answered(rebalances, tmp_path, "--filter", "group = killed")[::-1]
        assert {("lasting", "joined"), ("lasting", "rejoined"), ("second", "joined"), ("second", "timed_out")} == {
            (row["client"], row["change"]) for row in rows
        }, (watched.events(kind="agent")[-1]["losses"], [event for event in events if event.get("group") == "killed"])
        (timed_out,) = [row for row in rows if row["change"] == "timed_out"]
        last_joined = max(row["time"] for row in rows if row["client"] == "lasting")
        began, joined = (datetime.fromisoformat(time) for time in (timed_out["time"], last_joined))
        assert abs((joined - began).total_seconds()) < 0.1
        stood_still = [row["stood_still_s"] for row in rows if row["change"].endswith("joined")]
        assert all(0 < seconds < 30 for seconds in stood_still)
