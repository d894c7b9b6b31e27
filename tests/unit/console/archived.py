"""Writes the archive of three connections, and runs the command `inspect` on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kafka_probe.errors import KafkaProbeError
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_console.inspect_command import inspect
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.samples import Samples, closed, gone, opened, request, response, stream
from tests.builders.tables import write_tables

API_VERSIONS, METADATA, HEARTBEAT, PRODUCE = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.HEARTBEAT,
    ApiKey.PRODUCE,
)
NAT = {"local": "192.0.2.9:41000", "peer": "192.0.2.1:9092"}
HOSTILE = "=1+1\x1b[31m[/x]"


def exchange(
    correlation_id: int, api_key: int, version: int, conn: int = 1, *, at_s: float, took_us: int = 1500
) -> Samples:
    asked = request(api_key, version, conn, frame_bytes=60)
    answered = response(api_key, version, conn, latency_us=took_us, frame_bytes=300)
    asked["ts_ns"], answered["ts_ns"] = at_s * SECOND_NS, at_s * SECOND_NS + took_us * 1000
    samples = stream(asked, answered)
    samples["correlation_id"] = correlation_id
    return samples


@dataclass(frozen=True, slots=True)
class Archive:
    """Tables in a directory, and the events that they have."""

    path: Path
    events: list[dict[str, Any]]

    def inspect(self, *flags: str) -> Result:
        result = CliRunner().invoke(inspect, ["--tables", str(self.path), *flags])
        if result.exception and not isinstance(result.exception, SystemExit | KafkaProbeError):
            raise result.exception
        return result

    def rows(self, *flags: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.inspect("--json", *flags).output.splitlines()]

    def ids(self, *flags: str) -> list[int]:
        return [row["correlation_id"] for row in self.rows(*flags)]


def write_archive(path: Path) -> Archive:
    """Write the archive of three connections, of which one was reset and one has a hostile client id."""
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2, handshake_us=400))
    fed.see(exchange(1, API_VERSIONS, 3, at_s=10), exchange(2, METADATA, 12, at_s=11, took_us=250_000))
    fed.see(exchange(3, HEARTBEAT, 4, at_s=45), request(PRODUCE, 9, correlation_id=4, ts_ns=50 * SECOND_NS))
    fed.see(opened(2, server_side=True, local=("10.0.0.1", 9092), peer=("10.9.9.9", 555), rx_base=5, tx_base=6))
    fed.see(exchange(9, METADATA, 1, conn=2, at_s=20), opened(3, rx_base=8, tx_base=9))
    fed.see(request(METADATA, 1, 3, client_id=HOSTILE, correlation_id=30, ts_ns=30 * SECOND_NS))
    fed.see(
        closed(1, ts_ns=80 * SECOND_NS, error=104, first_state=7, closing_ns=80 * SECOND_NS, sent_ns=50 * SECOND_NS),
        gone(1),
    )
    fed.report()
    events = [
        {**event, **({"nat": NAT} if event["kind"] == "open" and event["conn_id"] == f"{1:016x}" else {})}
        for event in fed.events()
        if event["kind"] in ("open", "close")
    ]
    (flow_id,) = {event["flow_id"] for event in events if event["conn_id"] == f"{1:016x}"}
    verdict = {"flow_id": flow_id, "cause": "middlebox_reset", "evidence": "neither end sent the reset"}
    write_tables(path, events, fed.archive_sink.events, [verdict])
    return Archive(path, events)
