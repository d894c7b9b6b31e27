"""Starts real clients of three libraries as processes in their own cgroups, bounded in records and paced.

A client is data: how to start it and what the product should report about it. Each client counts its own records: the
Python clients write a file, Kafka's Java tools print their metrics.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from confluent_kafka import libversion

from tests.lab.cgroups import cgroup, path_of
from tests.lab.java import KAFKA_VERSION, SHORT_LIVED, java
from tests.lab.processes import PATIENCE, LabError, start, stop, tail

ROOT = Path(__file__).parents[2]
_GIVES_UP_S = round(30 * PATIENCE)  # a consumer, after this long without a record
# "producer-topic-metrics:byte-total:{client-id=a, topic=b}    : 123.000"
_JAVA_METRIC = re.compile(
    r"^\S+:(?P<name>[\w-]+):\{client-id=[^,}]+, topic=(?P<topic>[^,}]+)\}\s*: (?P<value>[\d.]+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class TopicCount:
    """A client's own count for one topic: records, and bytes of record sets if it counts these."""

    records: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Client:
    """The command that starts a client, and facts about it."""

    client_id: str
    api: Literal["Produce", "Fetch"]
    topics: tuple[str, ...]
    software_name: str
    software_version: str
    comm: str
    command: Sequence[str]
    report: Path


@dataclass(frozen=True, slots=True)
class RunningClient:
    """A started client; `cgroup` is the path as the kernel names it."""

    client: Client
    process: subprocess.Popen[bytes]
    cgroup: str
    log: Path

    def wait(self, timeout_s: float) -> dict[str, TopicCount]:
        """Wait until it has ended by itself, and return its own counts per topic.

        Raises:
            LabError: it did not end in time, or not with success.
        """
        timeout_s *= PATIENCE
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LabError(f"{self.client.client_id} still runs after {timeout_s:g} s:\n{tail(self.log)}") from None
        if status:
            raise LabError(f"{self.client.client_id} ended with status {status}:\n{tail(self.log)}")
        text = self.client.report.read_text()
        return counts_of_java(text) if self.client.comm == "java" else _counts_of_python(text)


def clients(bootstrap: str, directory: Path, *, records: int, rate: float) -> list[Client]:
    """Yield a producer and a consumer of each library, which send `records` per topic at `rate` per second.

    The librdkafka consumer reads the topics of two producers; the Java consumer uses the protocol of KIP-848.
    """
    python = [
        _python("kafka_python", "produce", ("orders",), bootstrap, directory, records, rate),
        _python("kafka_python", "consume", ("orders",), bootstrap, directory, records, rate),
        _python("librdkafka", "produce", ("payments",), bootstrap, directory, records, rate),
        _python("librdkafka", "consume", ("payments", "orders"), bootstrap, directory, records, rate),
    ]
    producer = _java(
        "java-producer",
        "Produce",
        directory,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", "clicks", "--num-records", str(records), "--print-metrics"),
        *("--record-size", "100", "--throughput", str(int(rate))),
        *("--command-property", "client.id=java-producer", f"max.block.ms={2 * _GIVES_UP_S}000"),
    )
    consumer = _java(
        "java-consumer",
        "Fetch",
        directory,
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", "clicks", "--num-records", str(records), "--print-metrics"),
        *("--group", "java", "--timeout", f"{_GIVES_UP_S}000", "--command-property", "client.id=java-consumer"),
        *("--command-property", "group.protocol=consumer"),
    )
    return [*python, producer, consumer]


def topics(of: Sequence[Client]) -> list[str]:
    """Return all topics that the clients use."""
    return sorted({topic for client in of for topic in client.topics})


@contextmanager
def running(to_start: Sequence[Client], logs: Path) -> Iterator[list[RunningClient]]:
    """Start clients, each in its own cgroup; at the end stop those that still run and remove the cgroups."""
    with ExitStack() as stack:
        started = []
        for client in to_start:
            directory = stack.enter_context(cgroup(client.client_id))
            log = logs / f"{client.client_id}.log"
            client.report.unlink(missing_ok=True)
            output = client.report if client.comm == "java" else None
            process = start(client.command, log=log, stdout=output, cwd=ROOT, inside=directory)
            stack.callback(stop, process)
            started.append(RunningClient(client, process, path_of(directory), log))
        yield started


def _python(
    library: str, role: str, names: tuple[str, ...], bootstrap: str, directory: Path, records: int, rate: float
) -> Client:
    client_id = f"{library.replace('_', '-')}-{role}r"
    distribution, client_version = {
        "kafka_python": ("kafka-python", version("kafka-python")),
        "librdkafka": ("confluent-kafka-python", f"{version('confluent-kafka')}-rdkafka-{libversion()[0]}"),
    }[library]
    report = directory / f"{client_id}.json"
    flags = {
        "--bootstrap": bootstrap,
        "--client-id": client_id,
        "--topics": ",".join(names),
        "--group": library,
        "--records": str(records),
        "--rate": str(rate),
        "--patience-s": str(_GIVES_UP_S),
        "--report": str(report),
    }
    command = [sys.executable, "-m", f"tests.lab.{library}_client", role]
    command += [part for flag in flags.items() for part in flag]
    api: Literal["Produce", "Fetch"] = "Produce" if role == "produce" else "Fetch"
    return Client(client_id, api, names, distribution, client_version, Path(sys.executable).name, command, report)


def _java(client_id: str, api: Literal["Produce", "Fetch"], directory: Path, main_class: str, *flags: str) -> Client:
    report = directory / f"{client_id}.txt"
    command = java(main_class, *flags, options=SHORT_LIVED)
    return Client(client_id, api, ("clicks",), "apache-kafka-java", KAFKA_VERSION, "java", command, report)


def _counts_of_python(report: str) -> dict[str, TopicCount]:
    return {topic: TopicCount(**count) for topic, count in json.loads(report).items()}


def counts_of_java(report: str) -> dict[str, TopicCount]:
    metrics = {(found["topic"], found["name"]): int(float(found["value"])) for found in _JAVA_METRIC.finditer(report)}
    counts = {}
    for (topic, name), value in metrics.items():
        if name == "record-send-total":
            counts[topic] = TopicCount(value, metrics[topic, "byte-total"])
        elif name == "records-consumed-total":
            counts[topic] = TopicCount(value, None)
    return counts
