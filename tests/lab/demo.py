"""`make demo`: who is talking to my Kafka, and about what. A real broker, clients of three libraries, agent, pipeline.

Takes about a minute. With KEEP=1 broker and agent stay up afterwards until Ctrl-C. BOOTSTRAP=host:port takes a broker
that is there already. Exit status: 0 all clients were seen, 1 something is missing (it says what), 3 this machine
cannot run the agent.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from kafka_probe.check import require_capture
from kafka_probe.errors import KafkaProbeError
from tests.lab.broker import Broker
from tests.lab.clients import ROOT, RunningClient, clients, running, topics
from tests.lab.processes import LabError, listens
from tests.lab.product import EVENTS, TRAFFIC, Agent, Report, report, run_pipeline
from tests.lab.topics import create_topics, existing

DIRECTORY = ROOT / "build" / "demo"
RESULT = ROOT / "build" / "demo.json"
RECORDS, RATE = 600, 20.0
INTERRUPTED = 130
COLUMNS = {
    "client id": "client_id",
    "pid": "pid",
    "command": "comm",
    "cgroup": "cgroup",
    "library": "library",
    "api": "api",
    "topic": "topic",
    "requests": "requests",
    "per s": "rate",
    "records": "records",
    "bytes": "bytes",
}


def main() -> int:
    """Run the demo; returns the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        require_capture()
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        given = os.environ.get("BOOTSTRAP")
        with nullcontext(given) if given else own_broker() as bootstrap:
            return demo(bootstrap, keep=bool(os.environ.get("KEEP")))
    except (KafkaProbeError, LabError) as error:
        print(f"kafka-probe demo: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, KafkaProbeError) else 1
    except KeyboardInterrupt:
        say("Interrupted: everything is stopped.")
        return INTERRUPTED


@contextmanager
def own_broker() -> Iterator[str]:
    """A broker on this host; its address."""
    say("Starting a real Apache Kafka broker ...")
    with Broker(DIRECTORY / "broker", port=0 if listens("127.0.0.1", 9092) else 9092, keep=True) as broker:
        yield broker.bootstrap


def demo(bootstrap: str, *, keep: bool) -> int:
    """From a broker that has seen no demo to the printed table."""
    host, _, port = bootstrap.rpartition(":")
    lab = clients(bootstrap, DIRECTORY, records=RECORDS, rate=RATE)
    if not (port.isdecimal() and listens(host.strip("[]"), int(port))):
        raise LabError(f"there is no broker at {bootstrap}: BOOTSTRAP is the host:port of one")
    if there := existing(bootstrap, [*topics(lab), EVENTS, TRAFFIC]):
        raise LabError(
            f"{bootstrap} has {', '.join(there)} already: take another broker, or delete what an earlier demo left"
        )
    create_topics(bootstrap, topics(lab), partitions=3)
    flags = ("--bootstrap-servers", bootstrap, "--ports", port, "--node", "demo")
    say(f"Starting the agent: kafka-probe run {' '.join(flags)} ...")
    with Agent(DIRECTORY, *flags), running(lab, DIRECTORY) as started:
        say(f"{len(started)} clients at work, for about {RECORDS / RATE:.0f} s:")
        for client in started:
            print(f"    {client.client.client_id}, process {client.process.pid} in {client.cgroup}")
        for client in started:
            client.wait(timeout_s=3 * RECORDS / RATE)
        say("The clients are done. Stopping the agent ...")
    say("Summing up: kafka-probe-pipeline run --once ...")
    run_pipeline(bootstrap, DIRECTORY / "pipeline")
    seen = report(bootstrap)
    rows = table(seen)
    losses = seen.losses
    RESULT.write_text(json.dumps({"clients": rows, "losses": losses}, indent=2) + "\n")
    show(rows)
    missing = [*shortcomings(rows, started), *(f"{n} lost: {reason}" for reason, n in losses.items() if n)]
    print(f"\nLost: {'nothing' if not any(losses.values()) else losses}. The same as JSON: {RESULT.relative_to(ROOT)}")
    print(f"Raw events: {export_events(seen).relative_to(ROOT)}, or topic {EVENTS} while the broker is up")
    print(f"Parquet table: {(DIRECTORY / 'pipeline' / 'traffic').relative_to(ROOT)}, topic of the sums: {TRAFFIC}")
    for sentence in missing:
        print(f"kafka-probe demo: {sentence}", file=sys.stderr)
    if keep:
        with Agent(DIRECTORY, *flags):
            say(f"Broker {bootstrap} and agent stay up. Try: kafka-probe top --ports {port}; Ctrl-C ends.")
            Event().wait()
    return 1 if missing else 0


def table(seen: Report) -> list[dict[str, Any]]:
    """One row per client, API and topic, from the clients' end of the connections: Produce and Fetch."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    who = ("client_id", "pid", "comm", "cgroup", "software_name", "software_version", "api", "topic")
    for part in seen.select(level="topic", side="connecting"):
        if part["api"] not in ("Produce", "Fetch"):
            continue
        identity = {name: part.get(name) for name in who}
        row = rows.setdefault(tuple(map(str, identity.values())), {**identity, "requests": 0, "records": 0, "bytes": 0})
        for total, column in (("requests", "requests"), ("records", "records"), ("bytes", "record_bytes")):
            row[total] += part.get(column) or 0
    for row in rows.values():
        row["rate"] = round(row["requests"] / seen.seconds(row["client_id"]), 1)
    return [rows[key] for key in sorted(rows)]


def shortcomings(rows: Sequence[dict[str, Any]], started: Sequence[RunningClient]) -> list[str]:
    """What the table should say about the clients and does not, one sentence each."""
    found = {(row["client_id"], row["api"], row["topic"]): row for row in rows}
    sentences = []
    for one in started:
        client = one.client
        truth = {
            "pid": one.process.pid,
            "comm": client.comm,
            "cgroup": one.cgroup,
            "software_name": client.software_name,
            "software_version": client.software_version,
        }
        for topic in client.topics:
            row = found.get((client.client_id, client.api, topic))
            if row is None:
                sentences.append(f"no row for {client.client_id}, {client.api} {topic}")
                continue
            for name, value in truth.items():
                if row[name] != value:
                    sentences.append(f"{client.client_id}: {name} should be {value}, the table says {row[name]}")
            if row["records"] < RECORDS:  # a consumer may fetch some twice
                sentences.append(f"{client.client_id}: {row['records']} records of {topic} instead of {RECORDS}")
    return sentences


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table, numbers to the right."""
    lines = [dict(zip(COLUMNS.values(), COLUMNS, strict=True))]
    for row in rows:
        texts = {name: f"{value:,}" if isinstance(value, int | float) else str(value) for name, value in row.items()}
        lines.append({**texts, "pid": str(row["pid"]), "library": f"{row['software_name']} {row['software_version']}"})
    numbers = {"pid", "requests", "rate", "records", "bytes"}
    widths = {name: max(len(line[name]) for line in lines) for name in COLUMNS.values()}
    print()
    for line in lines:
        cells = (
            line[name].rjust(width) if name in numbers else line[name].ljust(width) for name, width in widths.items()
        )
        print("  ".join(cells).rstrip())


def export_events(seen: Report) -> Path:
    """Write the raw events as NDJSON, so that they outlast the broker."""
    file = DIRECTORY / "events.ndjson"
    file.write_text("".join(f"{json.dumps(event)}\n" for event in seen.events))
    return file


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
