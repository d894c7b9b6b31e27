"""Runs `make demo`: prints which clients use Kafka, for which topics, and why their connections close.

It starts a broker, clients of three libraries, a gateway between them, an agent on each side, and the pipeline. The
gateway hides the clients behind one address, and drops the state of idle connections. With KEEP=1 clients, network,
broker and agents continue until Ctrl-C. BOOTSTRAP=host:port uses an existing broker, without the gateway. Exit status:
0 everything was reported, 1 something is missing (the output names it), 3 this machine cannot run the agent.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

from deltalake import DeltaTable

from kafka_probe.check import require_capture
from kafka_probe.errors import KafkaProbeError
from tests.demo import tables
from tests.demo.stage import BROKER, CLIENTS, Stage, own_stage
from tests.lab.clients import ROOT, Client, RunningClient, clients, running, topics
from tests.lab.network import Network
from tests.lab.processes import LabError, listens, wait_until
from tests.lab.product import (
    ALERTS,
    EVENTS,
    TRAFFIC,
    Report,
    read_events,
    report,
    reported_until_us,
    run_pipeline,
)
from tests.lab.storm import Herd, Storm, herd, storm
from tests.lab.topics import create_topics, existing, read_topic

DIRECTORY = ROOT / "build" / "demo"
RESULT = ROOT / "build" / "demo.json"
RECORDS, RATE = 600, 20.0
ENDLESS = 1_000_000_000
AUDIT = "audit"  # topic of those that are silent
PROCESSES, EACH = 2, 15
INTERRUPTED = 130
_LATER_US = 3_000_000


def main() -> int:
    """Run the demo; return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    try:
        require_capture()
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir(parents=True)
        given = os.environ.get("BOOTSTRAP")
        if not given:
            say("Making a network, and starting a real Apache Kafka broker in it ...")
        with nullcontext(Stage(DIRECTORY, given)) if given else own_stage(DIRECTORY) as stage:
            return demo(stage, keep=bool(os.environ.get("KEEP")))
    except (KafkaProbeError, LabError) as error:
        print(f"kafka-probe demo: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, KafkaProbeError) else 1
    except KeyboardInterrupt:
        say("Interrupted: everything is stopped.")
        return INTERRUPTED


def interrupted(_number: int, _frame: object) -> NoReturn:
    """End the demo on a signal; further signals do not interrupt the cleanup."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def demo(stage: Stage, *, keep: bool) -> int:
    """Run the demo from a fresh broker to the printed tables."""
    lab = clients(stage.bootstrap, DIRECTORY, records=RECORDS, rate=RATE)
    with stage.at(CLIENTS):
        prepare(stage, topics(lab))
    forgotten = None
    with stage.agents() as agents, silent(stage) as crowd:
        say("An agent on each node:" if stage.network else "An agent:")
        for agent in agents:
            print(f"    kafka-probe run {agent.flags}")
        started = work(stage, lab)
        if crowd:
            forgotten = speak_again(stage, crowd)
    say("Summing up: kafka-probe-pipeline run --once ...")
    with stage.at(BROKER):
        run_pipeline(stage.bootstrap, DIRECTORY / "pipeline")
        seen = report(stage.bootstrap)
        alerts = [json.loads(value) for value in dict(read_topic(stage.bootstrap, ALERTS)).values()]
    missing = print_traffic(seen, lab, started)
    result: dict[str, Any] = {"clients": tables.traffic(seen, topics(lab)), "losses": seen.losses, "alerts": alerts}
    if stage.network and forgotten:
        result["behind"] = tables.behind(verdicts(DIRECTORY / "pipeline"), started)
        missing += print_behind(result["behind"], started, stage.network) + print_alerts(alerts, forgotten)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nThe same as JSON: {named(RESULT)}; raw events: {named(export_events(seen))}")
    print(f"More: .venv/bin/kafka-probe why --tables {named(DIRECTORY / 'pipeline')} --client 'herd-*'")
    for sentence in missing:
        print(f"kafka-probe demo: {sentence}", file=sys.stderr)
    if keep:
        go_on(stage)
    return 1 if missing else 0


def go_on(stage: Stage) -> None:
    """Keep clients and agents at work until Ctrl-C, and print what to try."""
    directory = DIRECTORY / "kept"
    directory.mkdir()
    lab = clients(stage.bootstrap, directory, records=ENDLESS, rate=RATE)
    names = {client.client_id for client in lab}
    with stage.agents(listening=True) as agents, stage.at(CLIENTS), running(lab, directory) as started:
        say(f"{len(started)} clients go on, and an agent on each node ...")
        wait_until(
            lambda: all(names <= stage.clients_seen(agent) for agent in agents), "every agent to see them", timeout_s=90
        )
        for agent in agents:
            print(f"    agent of {agent.node}: {agent.url}")
        print("Try, in another terminal:")
        print(f"    .venv/bin/kafka-probe top --ports {stage.port}")
        for agent in agents:
            print(f"    {stage.command_at(agent.node, f'curl -s {agent.url}/api/v1/clients')}")
        say("Ctrl-C ends.")
        with suppress(KeyboardInterrupt):
            Event().wait()
        say("Stopping ...")


def prepare(stage: Stage, names: Sequence[str]) -> None:
    """Make the topics; `LabError` if the broker is not there, or has seen a demo."""
    host, _, port = stage.bootstrap.rpartition(":")
    if not (port.isdecimal() and listens(host.strip("[]"), int(port))):
        raise LabError(f"there is no broker at {stage.bootstrap}: BOOTSTRAP is the host:port of one")
    if there := existing(stage.bootstrap, [*names, EVENTS, TRAFFIC, ALERTS]):
        advice = "take another broker, or delete what an earlier demo left"
        raise LabError(f"{stage.bootstrap} has {', '.join(there)} already: {advice}")
    create_topics(stage.bootstrap, [*names, *([AUDIT] if stage.network else [])], partitions=3)


@contextmanager
def silent(stage: Stage) -> Iterator[Herd | None]:
    """Run clients that are silent after one exchange for the duration of the block; none without a firewall."""
    if not stage.network:
        yield None
        return
    with herd(stage.network, [stage.bootstrap], DIRECTORY, topic=AUDIT, processes=PROCESSES, each=EACH) as crowd:
        yield crowd


def work(stage: Stage, lab: Sequence[Client]) -> list[RunningClient]:
    """Run the clients from start to end."""
    with stage.at(CLIENTS), running(lab, DIRECTORY) as started:
        say(f"{len(started)} clients at work, for about {RECORDS / RATE:.0f} s:")
        for client in started:
            print(f"    {client.client.client_id}, process {client.process.pid} in {client.cgroup}")
        for client in started:
            client.wait(timeout_s=3 * RECORDS / RATE)
        say("The clients are done.")
        return started


def speak_again(stage: Stage, crowd: Herd) -> Storm:
    """Let the silent clients send; return when the agents have reported the result."""
    say(f"{PROCESSES * EACH} others, silent since then, speak again. The firewall has forgotten them, and resets ...")
    forgotten = storm(crowd)
    until_us = time.time_ns() // 1000 + _LATER_US
    with stage.at(BROKER):
        wait_until(
            lambda: reported_until_us(read_events(stage.bootstrap)) > until_us,
            "the agents' reports",
            timeout_s=60,
            every_s=1,
        )
    return forgotten


def print_traffic(seen: Report, lab: Sequence[Client], started: Sequence[RunningClient]) -> list[str]:
    """Print the traffic by client and topic; return what is missing."""
    lines, losses = tables.traffic(seen, topics(lab)), seen.losses
    # A client that closes a connection before it reads the first answer has proven nothing at its own end.
    unproven = losses.pop("before_proof", 0)
    print(f"\n{tables.text(lines, tables.TRAFFIC_COLUMNS)}")
    print(f"\nLost: {'nothing' if not any(losses.values()) else losses}.")
    if unproven:
        print(f"Not shown: {unproven} frames of connections that ended before an answer proved them to be Kafka's.")
    lost = [f"{count} lost: {reason}" for reason, count in losses.items() if count]
    return tables.missing_traffic(lines, started, RECORDS) + lost


def print_behind(lines: Sequence[tables.Line], started: Sequence[RunningClient], network: Network) -> list[str]:
    """Print the clients behind the gateway; return what is missing."""
    print(f"\nOn the broker all of them come from {network.gateway_address}. Who they are:\n")
    print(tables.text(lines, tables.BEHIND_COLUMNS))
    return tables.missing_behind(lines, started)


def print_alerts(alerts: Sequence[dict[str, Any]], forgotten: Storm) -> list[str]:
    """Print the alerts; return what is missing."""
    for alert in alerts:
        print(f"\nAlert {alert['id']}: {alert['summary']}.\n{alert['remedy']}\nEvidence: {alert['evidence']}.")
    count = sum(len(victim.connections) for victim in forgotten.victims)
    found = [(alert["kind"], alert["cause"], alert["count"]) for alert in alerts]
    expected = [("idle_disconnects", "middlebox_reset", count)]
    return [] if found == expected else [f"the alerts are {found} instead of {expected}"]


def verdicts(output: Path) -> list[dict[str, Any]]:
    """Return the pipeline's verdicts."""
    rows: list[dict[str, Any]] = DeltaTable(str(output / "verdicts")).to_pyarrow_table().to_pylist()
    return rows


def export_events(seen: Report) -> Path:
    """Write the raw events as NDJSON, so that they outlast the broker."""
    file = DIRECTORY / "events.ndjson"
    file.write_text("".join(f"{json.dumps(event)}\n" for event in seen.events))
    return file


def named(path: Path) -> Path:
    """Return a path as in the checkout."""
    return path.relative_to(ROOT)


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
