"""Generates the load: Kafka's own generator with small records and no batching, as fast as the broker answers.

One record is one request, five are in flight, and the producer holds few more, so that latency is the broker's and not
that of a long queue.
"""

from __future__ import annotations

import re
import socket
import subprocess
from dataclasses import dataclass

from tests.lab.broker import Broker
from tests.lab.java import java

TOPIC = "load"
_PROPERTIES = ("acks=1", "linger.ms=0", "batch.size=0", "buffer.memory=32768", "client.id=load")
# ApiVersions 0: its length, API key, version, correlation id, and no client id.
_REQUEST = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
_RESULT = re.compile(r"^\d+ records sent, ([\d.]+) records/sec .* (\d+) ms 99th", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """The generator's measurements, and the number of requests that the broker answered meanwhile."""

    records_per_s: float
    p99_ms: float
    requests: int


def run_load(broker: Broker, records: int, *, rate: int = -1) -> Load:
    """Send `records` records of 100 bytes, `rate` per second at most."""
    flags = ["--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--num-records", str(records)]
    flags += ["--record-size", "100", "--throughput", str(rate), "--command-property", *_PROPERTIES]
    before = sum(broker.request_counts().values())
    command = java("org.apache.kafka.tools.ProducerPerformance", *flags)
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    # The summary comes last; the lines before it are about parts of the run.
    rate, p99 = _RESULT.findall(answer.stdout)[-1]
    return Load(float(rate), float(p99), sum(broker.request_counts().values()) - before)


def run_connections(broker: Broker, connections: int) -> None:
    """Connect, ask what the broker can do, and close, one connection after the other."""
    for _ in range(connections):
        with socket.create_connection((broker.host, broker.port)) as sock, sock.makefile("rb") as answer:
            sock.sendall(_REQUEST)
            answer.read(int.from_bytes(answer.read(4), "big"))
