"""Runs `kafka-probe follow` beside kafka-python's clients, and reads what it prints."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer

from tests.lab.processes import start, stop, wait_until

RECORDS = 20
GUIDE = Path(__file__).parents[2] / "docs/guide/host.md"
FETCHED = re.compile(rf"Fetch .*\n.*response after .*load\[0\]: high watermark {RECORDS}\b.* records {RECORDS}\b")
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
def following(directory: Path, port: int, side: str, *others: str, within: Sequence[str] = ()) -> Iterator[Path]:
    """Run `follow` for the clients of the load at one end of their connections; yield the file with its output.

    others: further flags; within: the words of a command that runs another command.
    """
    directory.mkdir()
    output, ready = directory / "output", directory / "ready"
    place = ("--side", side, "--ports", str(port), "--node", "clients-1")
    flags = ("--client", "load-*", *place, *others, "--ready-file", str(ready))
    command = (*within, sys.executable, "-m", "kafka_probe", "follow", *flags)
    process = start(command, log=directory / "log", stdout=output)
    try:
        wait_until(ready.exists, "the command to attach", timeout_s=60)
        yield output
    finally:
        stop(process)
    assert process.returncode == 0, (directory / "log").read_text()


def exchanges(text: str) -> tuple[Counter[tuple[str, str, int]], int]:
    """Return the number of requests by client, API and version, and that of all responses."""
    requests, responses, client = Counter[tuple[str, str, int]](), 0, ""
    for line in text.splitlines():
        if line.startswith("client load-"):
            client = re.split(r"[ ,]", line)[1]
        elif found := REQUEST.match(line):
            requests[client, found[1], int(found[2])] += 1
        elif RESPONSE.match(line):
            responses += 1
    return requests, responses


def wait_for_requests(output: Path, number: int) -> None:
    wait_until(lambda: exchanges(output.read_text())[0].total() >= number, "the frames")


def documented(owner: str) -> str:
    """Return the guide's output of `follow` in which this owner has the producer's connection."""
    (text,) = re.findall(
        rf"^```text\n(client load-producer [^\n]* {owner} .*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    return str(text)


def without_numbers(text: str) -> set[str]:
    """Return the lines of an output with all numbers, ids and units of time replaced."""
    alike = re.sub(r"flow [0-9a-f]{16}", "flow ID", text)
    return {re.sub(r"[\d.]+( m?s\b)?", "N", line) for line in alike.splitlines()}
