"""`make soak MINUTES=45`: two thousand connections come and go for so long, while sink, agent and pipeline fail.

Twice a flood of short connections hits the agent from an address of its own.

Then all is accounted for: requests by the broker's own count, by a frame walker and by the agents, one by one; the
pipeline's table; the agent's memory early and late. Writes build/soak.json. Exit status 0: nothing is unexplained, and
memory is flat.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from tests.builders.api_names import api_name
from tests.lab.broker import COUNTED, Broker
from tests.lab.clients import ROOT, clients, running, topics
from tests.lab.http import get
from tests.lab.network import Namespace
from tests.lab.processes import LabError, free_port, kill_family, start, stop, tail, wait_until
from tests.lab.product import EVENTS, TRAFFIC, Agent, run_pipeline
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics, read_topic, warm_up
from tests.lab.walker import walk
from tests.programs.soak.accounts import (
    Account,
    AgentReports,
    Interval,
    Requests,
    account,
    account_flood,
    reports_of_nodes,
)

RESULT = ROOT / "build" / "soak.json"
FLAT_PERCENT = 5

CONNECTIONS, STAY_S, SILENCE_S = 2_000, 60, 30
VISITED = "visited"
INTERVAL_S = 2.0
RECORDS, RATE = 100, 5.0  # of each program with a library, before it is started anew
# Long enough for the pipeline's streams to give up.
LONGEST_OUTAGE_S = 120.0
OUTAGE = 0.08  # of the whole time
# Of the pipeline at the end, where other programs had the processors, too.
_CATCH_UP_S = 900
AGENTS = 3  # of which two are killed
SCRAPE_S = 5.0
# Between two failures at least: on a busy machine they are late.
CALM_S = 12.0
FIRST_ROUND = 5  # failures
FLOOD_ADDRESS = "10.66.0.1"  # in its namespace
FLOOD_S, FLOOD_RATE = 8.0, 1_000


class Soak:
    """The lab and what fails in it.

    attached_us: when each agent was attached; killed_us: when each but the last was killed; calm_us: when nothing
    failed; pages: what their servers answered, by status.
    """

    def __init__(self, directory: Path, watched: Broker, sink: Broker, flooded_from: Namespace, seconds: float) -> None:
        self.attached_us: list[int] = []
        self.killed_us: list[int] = []
        self.calm_us: list[Interval] = []
        self._directory = directory
        self._watched = watched
        self._sink = sink
        self._seconds = seconds
        self._over = Event()
        self.nodes: list[str] = []
        self.pages: Counter[int] = Counter()
        self._address = f"127.0.0.1:{free_port()}"
        self.flood_port = free_port()
        self.flooded = 0
        self._flooded_from = flooded_from
        self._agent = self._new_agent()
        self._pipeline = self._new_pipeline()
        self._failures: tuple[tuple[float, Callable[[], None]], ...] = (
            (0.04, self._kill_agent),
            (0.10, self._kill_agent),
            (0.20, self._stop_sink),
            (0.32, self._kill_pipeline),
            (0.45, self._flood_for_long),
            (0.60, self._stop_sink),
            (0.72, self._kill_pipeline),
            (0.85, self._flood),
        )

    def run(self) -> None:
        """Run from the first connection to the last."""
        log = self._directory / "visitors.log"
        where = (self._watched.host, self._watched.port, CONNECTIONS, STAY_S, SILENCE_S, VISITED)
        command = [sys.executable, "-m", "tests.programs.soak.visitors", *map(str, where)]
        visitors = start(command, log=log, cwd=ROOT, piped_input=True)
        try:
            with ThreadPoolExecutor(2) as pool:
                programs, scrapes = pool.submit(self._programs), pool.submit(self._scrape)
                try:
                    self._fail()
                finally:
                    self._over.set()
                programs.result()
                scrapes.result()
            assert visitors.stdin is not None
            visitors.stdin.close()
            if visitors.wait(2 * SILENCE_S):
                raise LabError(f"the visitors failed:\n{tail(log)}")
        finally:
            stop(visitors)

    def end(self) -> None:
        """Stop agent and pipeline in order, after which all events are processed."""
        self._agent.stop()
        self._require_pipeline()
        kill_family(self._pipeline)
        run_pipeline(self._sink.bootstrap, self._directory / "pipeline", timeout_s=_CATCH_UP_S)

    def kill(self) -> None:
        """Kill everything without notice."""
        self._agent.kill()
        kill_family(self._pipeline)

    def _fail(self) -> None:
        began_s = time.time()
        for part, failure in self._failures:
            self._be_calm(began_s + part * self._seconds)
            say(f"{part:4.0%} {failure.__doc__}")
            failure()
        self._be_calm(began_s + self._seconds)

    def _be_calm(self, until_s: float) -> None:
        since_s = time.time()
        self._over.wait(max(until_s - since_s, CALM_S))
        self.calm_us.append((int(since_s * 1e6), int(time.time() * 1e6)))

    def _programs(self) -> None:
        lab = [
            one
            for one in clients(self._watched.bootstrap, self._directory, records=RECORDS, rate=RATE)
            if one.comm != "java"
        ]
        while not self._over.is_set():
            with running(lab, self._directory) as started:
                for one in started:
                    one.wait(timeout_s=10 * RECORDS / RATE)

    def _scrape(self) -> None:
        """Request the agent's pages, as Prometheus and an operator do."""
        while not self._over.wait(SCRAPE_S):
            with suppress(OSError):  # there is none while it starts again
                for page in ("metrics", "api/v1/clients", "api/v1/connections"):
                    self.pages[get(f"http://{self._address}/{page}").status] += 1

    def _new_agent(self) -> Agent:
        self.nodes.append(f"agent-{len(self.nodes) + 1}")
        spool: Sequence[str] = ()
        if len(self.nodes) == AGENTS:  # of one that is killed a successor would send some events again
            spool = ("--spool-dir", str(self._directory / "spool"))
        flags = ("--bootstrap-servers", self._sink.bootstrap, "--ports", f"{self._watched.port},{self.flood_port}")
        more = ("--node", self.nodes[-1], "--side", "server", "--requests", "all", "--interval-s", str(INTERVAL_S))
        server = ("--listen", self._address)
        agent = Agent(self._directory / self.nodes[-1], *flags, *more, *server, *spool).__enter__()
        self.attached_us.append(time.time_ns() // 1000)
        return agent

    def _require_pipeline(self) -> None:
        if (status := self._pipeline.poll()) is not None:
            raise LabError(f"the pipeline ended with status {status}:\n{tail(self._directory / 'pipeline.log')}")

    def _commits(self) -> int:
        """Return the number of finished micro-batches."""
        return len([*(self._directory / "pipeline" / "checkpoint" / "commits").glob("[0-9]*")])

    def _new_pipeline(self) -> subprocess.Popen[bytes]:
        self._committed = self._commits()
        flags = ("--bootstrap-servers", self._sink.bootstrap, "--output", self._directory / "pipeline")
        command = (sys.executable, "-m", "kafka_probe_pipeline.job", "run", *flags, "--trigger-interval", "10")
        return start(command, log=self._directory / "pipeline.log")

    def _kill_agent(self) -> None:
        """Kill the agent, and start it again."""
        self._agent.kill()
        self.killed_us.append(time.time_ns() // 1000)
        self._agent = self._new_agent()

    def _kill_pipeline(self) -> None:
        """Kill the pipeline, and start it again."""
        self._require_pipeline()
        wait_until(lambda: self._commits() > self._committed, "the pipeline to count something", timeout_s=_CATCH_UP_S)
        kill_family(self._pipeline)
        self._pipeline = self._new_pipeline()

    def _stop_sink(self) -> None:
        """Stop the broker of the events for a while."""
        self._sink.stop()
        self._over.wait(min(LONGEST_OUTAGE_S, OUTAGE * self._seconds))
        self._sink.start()

    def _flood_for_long(self) -> None:
        """Flood the agent with short connections, twice as long as later."""
        self._flood(2 * FLOOD_S)  # memory that this one needs is enough for the other

    def _flood(self, seconds: float = FLOOD_S) -> None:
        """Flood the agent with short connections."""
        flood = ("connections", FLOOD_ADDRESS, self.flood_port, int(seconds * FLOOD_RATE), seconds)
        command = (sys.executable, "-m", "tests.programs.attack.flood", *map(str, flood))
        log, output = self._directory / "flood.log", self._directory / "flood.out"
        output.unlink(missing_ok=True)
        with self._flooded_from.inside():
            process = start(command, log=log, stdout=output, cwd=ROOT)
        try:
            if process.wait(10 * seconds):
                raise LabError(f"the flood failed:\n{tail(log)}")
        finally:
            stop(process)
        self.flooded += json.loads(output.read_text())["requests"]


def endure(minutes: float, directory: Path) -> dict[str, Any]:
    """Run all of it; return the contents of build/soak.json."""
    with ExitStack() as stack:
        watched = stack.enter_context(Broker(directory / "watched", properties=COUNTED, lasting=True))
        sink = stack.enter_context(Broker(directory / "sink", heap_mb=256, keep=True, lasting=True))
        flooded_from = stack.enter_context(closing(Namespace()))
        flooded_from.run("ip", "address", "add", f"{FLOOD_ADDRESS}/32", "dev", "lo")
        create_topics(watched.bootstrap, [*topics(clients("", directory, records=0, rate=1)), VISITED], partitions=3)
        warm_up(watched.bootstrap)
        before = watched.settled_request_counts()
        capture = stack.enter_context(Capture(directory / "lo.pcap", watched.port))
        soak = Soak(directory, watched, sink, flooded_from, minutes * 60)
        stack.callback(soak.kill)
        soak.run()
        after = watched.settled_request_counts()
        capture.stop()
        soak.end()
        say("Accounting for it ...")
        answered = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key)}
        wire = walk(capture.file, watched.port)
        lines = (line for _, value in read_topic(sink.bootstrap, EVENTS) for line in value.splitlines())
        agents = reports_of_nodes(lines, soak.nodes, soak.flood_port)
        kept = account(wire.times, agents, soak.attached_us, soak.killed_us)
        account_flood(kept, agents, soak.flooded)
        unread, unsure = (
            Counter((str(api_name(key)), version) for key, version in map(wire.times.asked.__getitem__, requests))
            for requests in (kept.unread, kept.unsure)
        )
        kept.equal("requests by the broker's own count", answered, Counter(wire.by_api) - unread, unsure)
        counted: Requests = sum((one.requests for one in agents), Counter())
        refused = {status: count for status, count in soak.pages.items() if status != HTTPStatus.OK}
        kept.equal("pages that were refused, by status", refused, {})
        kept.equal("requests in the pipeline's table", in_table(sink.bootstrap), counted)
    return figures(soak, agents, kept, minutes)


def in_table(bootstrap: str) -> Requests:
    """Return the requests by API, version and client id; the last row of a key is right after any replay."""
    counts: Requests = Counter()
    for row in map(json.loads, dict(read_topic(bootstrap, TRAFFIC)).values()):
        if row["level"] == "api":
            counts[row.get("api"), row.get("api_version"), row.get("client_id")] += row["requests"]
    return counts


def figures(soak: Soak, agents: list[AgentReports], kept: Account, minutes: float) -> dict[str, Any]:
    """Return the figures to keep and to judge."""
    # After each kind of failure once, and at the end: it is the same agent.
    early, late = (agents[-1].memory_between(*soak.calm_us[number]) for number in (FIRST_ROUND, -1))
    began_us, ended_us = soak.calm_us[0][0], soak.calm_us[-1][1]
    memory = agents[-1].memory[:: max(1, len(agents[-1].memory) // 60)]
    return {
        "minutes": minutes,
        "connections_at_a_time": median(agents[-1].connections),
        "agents": sum(1 for one in agents if one.events),
        "pages_of_their_servers": soak.pages[HTTPStatus.OK],
        **{name.replace(" ", "_"): count for name, count in kept.counts.items()},
        "events": sum(one.events for one in agents),
        "memory_early_mb": round(early / 1e6, 1),
        "memory_late_mb": round(late / 1e6, 1),
        "memory_change_percent": round(100 * (late / early - 1), 2),
        "agent_cpu_percent": round(100 * agents[-1].cpu_us / (ended_us - soak.attached_us[-1]), 2),
        "memory_by_minute": [[round((us - began_us) / 6e7, 1), round(size / 1e6, 1)] for us, size in memory],
        "unexplained": len(kept.unexplained),
        "examples": kept.unexplained[:20],
    }


def holds(result: dict[str, Any]) -> bool:
    flat = abs(result["memory_change_percent"]) <= FLAT_PERCENT
    return flat and not result["unexplained"] and result["agents"] == AGENTS and result["pages_of_their_servers"] > 0


def main(minutes: float) -> int:
    """Run the soak; return the exit status."""
    directory = ROOT / "build" / "soak"
    shutil.rmtree(directory, ignore_errors=True)
    result = endure(minutes, directory)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name.replace('_', ' '):32} {value}")
    return 0 if holds(result) else 1


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
