"""Record the events from which `make docs` draws `top` and `trace`: clients of three libraries at a real broker.

    .venv/bin/python -m tests.programs.record_pictures

Takes a minute and needs root. Writes docs/data/top.ndjson, the events of one interval, and docs/data/trace.ndjson, the
first request of each client and API that names topics or has errors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.lab.broker import Broker
from tests.lab.clients import ROOT, clients, running, topics
from tests.lab.product import Agent
from tests.lab.topics import create_topics

DATA = ROOT / "docs" / "data"
RECORDS, RATE = 600, 20.0
FLAGS = ("--sink", "stdout", "--interval-s", "10", "--requests", "all")
# As on a node of clients; command lines would name directories of this machine.
NODE = ("--side", "client", "--node", "clients-1", "--cmdline", "false")


def main() -> int:
    with TemporaryDirectory() as name:
        directory = Path(name)
        with Broker(directory / "broker") as broker:
            lab = clients(broker.bootstrap, directory, records=RECORDS, rate=RATE)
            create_topics(broker.bootstrap, topics(lab), partitions=3)
            agent = Agent(directory, *FLAGS, *NODE, "--ports", str(broker.port))
            with agent, running(lab, directory) as started:
                for client in started:
                    client.wait(timeout_s=3 * RECORDS / RATE)
            ids = {client.client_id for client in lab}
            seen = [json.loads(line) for line in agent.output.read_text().splitlines()]
    write("top", steady_interval(seen, ids))
    write("trace", first_requests(seen, ids))
    return 0


def steady_interval(events: Iterable[Mapping[str, Any]], clients: set[str]) -> list[Mapping[str, Any]]:
    """Return the flows of the last interval in which all clients were active, and its `agent` event."""
    intervals: list[list[Mapping[str, Any]]] = [[]]
    for event in events:
        if event["kind"] == "agent":
            intervals[-1].append(event)
            intervals.append([])
        elif event["kind"] == "flow" and event["client"]["id"] in clients:
            intervals[-1].append(event)
    return [interval for interval in intervals if at_work(interval) == clients][-1]


def at_work(interval: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the clients that wrote or read records in an interval."""
    return {
        flow["client"]["id"]
        for flow in interval
        if flow["kind"] == "flow" and any(topic["records"] for topic in flow["topics"])
    }


def first_requests(events: Iterable[Mapping[str, Any]], clients: set[str]) -> list[Mapping[str, Any]]:
    """Return the first request of each client and API that has topics or errors, by time."""
    requests = [event for event in events if event["kind"] == "request" and event["client"]["id"] in clients]
    requests = [event for event in requests if event["topics"] or event["error_names"]]
    requests.sort(key=lambda event: int(event["ts"]))
    first = {(event["client"]["id"], event["api"]): event for event in reversed(requests)}
    return sorted(first.values(), key=lambda event: int(event["ts"]))


def write(name: str, events: Iterable[Mapping[str, Any]]) -> None:
    (DATA / f"{name}.ndjson").write_text("".join(f"{json.dumps(event)}\n" for event in events))


if __name__ == "__main__":
    sys.exit(main())
