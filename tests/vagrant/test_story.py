"""A real broker sees the gateway, the agent names the client behind it: the story of vagrant/README.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cgroups import cgroup, path_of
from tests.lab.java import JARS
from tests.lab.network import SCRIPTS, Namespace, nat
from tests.lab.processes import listens, start, stop, tail, wait_until
from tests.lab.product import Agent
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

Event = dict[str, Any]

PORT = 9092
LIBRARIES = {"kafka_python": "kafka-python", "librdkafka": "confluent-kafka-python"}
APIS = {"produce": "Produce", "consume": "Fetch"}


@dataclass(frozen=True, slots=True)
class Program:
    """A client behind the gateway: what is true about it."""

    library: str
    role: str
    pid: int
    cgroup: str
    address: str


@dataclass(frozen=True, slots=True)
class Story:
    """The programs of the story, and the events of one agent, which sees every network namespace of its host."""

    programs: Sequence[Program]
    broker_pid: int
    gateway_address: str
    output: Path

    def opened(self, pid: int) -> dict[str, Event]:
        """Return the ends of connections that a process owns, by flow_id."""
        return {event["flow_id"]: event for event in events_of(pid, self.output) if event["kind"] == "open"}


def events_of(pid: int, output: Path) -> Iterator[Event]:
    """Yield the agent's events so far about the connections of a process."""
    whole_lines, _, _ = output.read_text().rpartition("\n")
    events = map(json.loads, whole_lines.splitlines())
    return (event for event in events if (event.get("workload") or {}).get("pid") == pid)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("story")
    agent = Agent(directory, "--sink", "stdout", "--ports", str(PORT), "--interval-s", "1")
    with nat(clients=2) as network, agent, broker(network.broker, directory) as broker_pid:
        bootstrap = f"{network.broker.address}:{PORT}"
        with network.broker.inside():
            create_topics(bootstrap, ["orders"], partitions=1)
        with (
            client(network.clients[0], "kafka_python", "produce", bootstrap, directory) as producer,
            client(network.clients[1], "librdkafka", "consume", bootstrap, directory) as consumer,
        ):
            for program in (producer, consumer):
                works = partial(is_seen_at_work, program, agent.output)
                wait_until(works, f"the agent to see {program} at work", timeout_s=60, every_s=0.2)
    return Story((producer, consumer), broker_pid, network.gateway_address, agent.output)


def is_seen_at_work(program: Program, output: Path) -> bool:
    return any(event.get("api") == APIS[program.role] for event in events_of(program.pid, output))


@contextmanager
def broker(namespace: Namespace, directory: Path) -> Iterator[int]:
    """Run a broker in the namespace, by the script that runs it on a machine; yield its process id."""
    node = {"NODE_ID": "1", "ADDRESS": namespace.address, "VOTERS": f"1@{namespace.address}:9093"}
    directories = {"DATA": str(directory / "data"), "JARS": str(JARS)}
    log, endpoint = directory / "broker.log", (namespace.address, PORT)
    with namespace.inside():
        process = start(["bash", SCRIPTS / "broker.sh"], log=log, env=node | directories)
    try:
        with namespace.inside():
            wait_until(lambda: process.poll() is not None or listens(*endpoint), "the broker", timeout_s=60)
        assert process.poll() is None, tail(log)
        yield process.pid
    finally:
        stop(process)


@contextmanager
def client(namespace: Namespace, library: str, role: str, bootstrap: str, directory: Path) -> Iterator[Program]:
    """Run a client in the namespace, by the script that runs it on a machine."""
    variables = {"LIBRARY": library, "ROLE": role, "BOOTSTRAP": bootstrap, "PYTHON": sys.executable}
    log = directory / f"{role}.log"
    with cgroup(f"orders-{role}r-{os.getpid()}") as place:  # of our own: the lab may be up twice on a host
        with namespace.inside():
            process = start(["bash", SCRIPTS / "client.sh"], log=log, env=variables, inside=place)
        try:
            yield Program(library, role, process.pid, path_of(place), namespace.address)
            assert process.poll() is None, tail(log)
        finally:
            stop(process)


def test_the_broker_has_every_client_by_the_gateways_address(story: Story) -> None:
    accepted = story.opened(story.broker_pid)
    for program in story.programs:
        connected = story.opened(program.pid)
        assert connected
        assert connected.keys() <= accepted.keys()
        for flow_id, end in connected.items():
            assert (end["side"], accepted[flow_id]["side"]) == ("client", "server")
            assert host(end["local"]) == program.address
            assert host(accepted[flow_id]["peer"]) == story.gateway_address


def test_the_table_names_process_cgroup_and_library_of_each_connection(story: Story) -> None:
    with story.output.open() as events:
        who = subprocess.run([sys.executable, SCRIPTS / "who.py"], stdin=events, capture_output=True, text=True)
    assert who.returncode == 0, who.stderr
    rows = [line.split() for line in who.stdout.splitlines()]
    for program in story.programs:
        mine = [row for row in rows if str(program.pid) in row]
        assert len(mine) == len(story.opened(program.pid))
        for peer, local, *names in mine:
            assert (host(peer), host(local)) == (story.gateway_address, program.address)
            assert {program.cgroup, f"orders-{program.role}r", LIBRARIES[program.library]} <= {*names}


def host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
