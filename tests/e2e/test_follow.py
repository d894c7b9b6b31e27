"""The command `follow` beside a real broker: it shows all exchanges of kafka-python's clients, seen at either end."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.lab.broker import Broker
from tests.lab.processes import start, stop, wait_until
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics
from tests.lab.walker import walk

pytestmark = [pytest.mark.root, pytest.mark.broker]

GUIDE = Path(__file__).parents[2] / "docs/guide/host.md"
RECORDS = 20
REQUEST = re.compile(r"\d\d:\d\d:\d\d\.\d{6}  (\w+) (\d+) #(\d+), \d+ bytes\b")
RESPONSE = re.compile(
    r" {17}response after [\d.]+ m?s, \d+ bytes\b|\d\d:\d\d:\d\d\.\d{6}  response after [\d.]+ m?s to \w+ "
)


def load(bootstrap: str) -> None:
    """Write records with one client, and read them with another."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="load-producer")
    for number in range(RECORDS):
        producer.send("load", b"record %d" % number).get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(
        "load", bootstrap_servers=bootstrap, client_id="load-consumer", group_id="load", auto_offset_reset="earliest"
    )
    for _ in zip(range(RECORDS), consumer, strict=False):
        pass
    consumer.close()


@contextmanager
def following(directory: Path, port: int, side: str) -> Iterator[Path]:
    """Run `follow` for the clients of the load at one end of their connections; yield the file with its output."""
    directory.mkdir()
    output, ready = directory / "output", directory / "ready"
    place = ("--side", side, "--ports", str(port), "--node", "clients-1")
    flags = ("--client", "load-*", *place, "--ready-file", str(ready))
    command = (sys.executable, "-m", "kafka_probe", "follow", *flags)
    process = start(command, log=directory / "log", stdout=output)
    try:
        wait_until(ready.exists, "the command to attach", timeout_s=60)
        yield output
    finally:
        stop(process)
    assert process.returncode == 0, (directory / "log").read_text()


def exchanges(text: str) -> tuple[Counter[tuple[str, str, int]], int]:
    """Return the number of requests by client, API and version, and that of all answers."""
    requests, answers, client = Counter[tuple[str, str, int]](), 0, ""
    for line in text.splitlines():
        if line.startswith("client load-"):
            client = re.split(r"[ ,]", line)[1]
        elif found := REQUEST.match(line):
            requests[client, found[1], int(found[2])] += 1
        elif RESPONSE.match(line):
            answers += 1
    return requests, answers


def wait_for_requests(output: Path, number: int) -> None:
    wait_until(lambda: exchanges(output.read_text())[0].total() >= number, "the frames")


def without_numbers(text: str) -> set[str]:
    """Return the lines of an output with all numbers, ids and units of time replaced."""
    alike = re.sub(r"flow [0-9a-f]{16}", "flow ID", text)
    return {re.sub(r"[\d.]+( m?s\b)?", "N", line) for line in alike.splitlines()}


def test_it_shows_every_request_with_its_answer_at_either_end(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, ["load"], partitions=1)
        with (
            following(tmp_path / "client", broker.port, "client") as client,
            following(tmp_path / "server", broker.port, "server") as server,
        ):
            with Capture(tmp_path / "lo.pcap", broker.port) as capture:
                load(broker.bootstrap)
                capture.stop()
            wire = Counter(
                {
                    (name, api, version): count
                    for (api, version, name), count in walk(capture.file, broker.port).requests.items()
                    if (name or "").startswith("load-")
                }
            )
            for output in (client, server):
                wait_for_requests(output, wire.total())
    for output in (client, server):
        requests, answers = exchanges(output.read_text())
        assert requests == wire
        assert answers == wire.total()
    text = client.read_text()
    assert "load-producer (kafka-python " in text
    assert re.search(
        rf"Fetch .*\n.*response after .*load\[0\]: high watermark {RECORDS}\b.* records {RECORDS}\b", text
    ), text
    assert "JoinGroup" in text
    (documented,) = re.findall(r"^```text\n(client load-producer .*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert without_numbers(documented) - without_numbers(text) == set()
    assert "closed by the client (fin)" in text
    assert "closed by the client (fin)" in server.read_text()
    hidden = re.search(
        r"Fetch .*\n.*response after .*load\[0\]: .* (\d+) bytes of records, records not counted", server.read_text()
    )
    assert hidden, server.read_text()
