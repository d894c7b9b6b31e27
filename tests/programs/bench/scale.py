"""Measures cost against the number of open connections and against the rate of requests, for the plots in docs/.

The connections are there before the agent, and silent but for one exchange each. Its start is complete with the first
`agent` event that counts them all: `open` events come before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from tests.lab.bpf_programs import map_bytes
from tests.lab.broker import Broker
from tests.lab.cgroups import cgroup
from tests.lab.crowd import Crowd
from tests.lab.http import get
from tests.lab.network import Namespace
from tests.lab.processes import free_port, wait_until
from tests.lab.product import Agent
from tests.programs.bench.load import run_load
from tests.programs.bench.observers import Observer, agent

CONNECTIONS = (0, 1_000, 10_000, 100_000)
RATES = (250, 500, 1_000, 2_000)  # requests per second
IDLE_S = 20.0
_PORT = 9092
_START_S = 120

Figures = dict[str, float]


def with_connections(count: int, directory: Path) -> Figures:
    """Measure an agent with this number of connections.

    Return start_s, the bytes of the kernel's maps and of the agent, and when all connections are silent the CPU in
    percent of a core and the number of connections in the agent's API.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with closing(Namespace()) as inside:
        inside.run("sysctl", "-qw", "net.ipv4.tcp_max_tw_buckets=0")  # nobody waits for a hundred thousand ports
        address = f"127.0.0.1:{free_port()}"
        watched = ("--ports", str(_PORT), "--netns", inside.path, "--side", "server", "--sink", "stdout")
        with cgroup("agent-scale") as group, Crowd(inside, _PORT, count, directory) as crowd:
            started = time.monotonic()
            with (
                Agent(directory, *watched, "--listen", address, inside=group) as running,
                running.output.open("rb") as output,
            ):
                reports = _reports(output)
                wait_until(lambda: next(reports)[1] == count, f"{count} connections to be reported", timeout_s=_START_S)
                start_s = time.monotonic() - started
                observer = Observer(group)
                crowd.speak()
                number, _ = next(reports)
                wait_until(lambda: next(reports)[0] >= number + 2, "the requests to be reported", timeout_s=_START_S)
                observer.wait_until_quiet()
                before_us, since = observer.cpu_us, time.monotonic()
                wait_until(lambda: time.monotonic() - since >= IDLE_S, "time to pass", timeout_s=2 * IDLE_S)
                idle_cpu_percent = (observer.cpu_us - before_us) / (time.monotonic() - since) / 1e4
                return {
                    "start_s": start_s,
                    "kernel_bytes": map_bytes(running.pid),
                    "agent_bytes": observer.rss_bytes,
                    "idle_cpu_percent": idle_cpu_percent,
                    "connections": get(f"http://{address}/api/v1/connections?limit=1").json()["total"],
                }


def with_rate(rate: int, seconds: float, broker: Broker, sink: Broker, directory: Path) -> Figures:
    """Measure the agent's CPU in percent of a core at this rate of requests, if the broker reaches it."""
    with agent(directory, broker.port, sink, "server") as observer:
        run_load(broker, rate, rate=rate)
        observer.wait_until_quiet()
        before_us = observer.cpu_us
        load = run_load(broker, int(rate * seconds), rate=rate)
        observer.wait_until_quiet()
        percent = (observer.cpu_us - before_us) / 1e4 * load.records_per_s / (rate * seconds)
    return {"requests_per_s": load.records_per_s, "cpu_percent": percent}


def _reports(output: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the number of `agent` events so far, and the number of connections in the newest."""
    number, newest, rest = 0, -1, b""
    while True:
        *lines, rest = (rest + output.read()).split(b"\n")
        for line in lines:
            if b'"kind":"agent"' in line:
                number, newest = number + 1, json.loads(line)["connections"]
        yield number, newest
