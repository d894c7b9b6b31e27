"""`make soak MINUTES=45`: two thousand connections come and go for so long, while sink, agent and pipeline fail.

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

from tests.e2e.test_counts import warm_up
from tests.lab.broker import Broker
from tests.lab.clients import ROOT, clients, running, topics
from tests.lab.processes import LabError, kill_family, start, stop, tail
from tests.lab.product import EVENTS, TRAFFIC, Agent, run_pipeline
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics, read_topic
from tests.lab.walker import walk
from tests.soak.accounts import Account, Requests, Told, account, told_by_agents

RESULT = ROOT / "build" / "soak.json"
FLAT_PERCENT = 5

CONNECTIONS, STAY_S, SILENCE_S = 2_000, 60, 30
VISITED = "visited"
RECORDS, RATE = 100, 5.0  # of each program with a library, before it is started anew
# As much as an agent keeps in memory at this load.
LONGEST_OUTAGE_S = 60.0
# In parts of the whole time.
OUTAGE = 0.08
EARLY, LATE = (0.40, 0.55), (0.85, 1.0)


class Soak:
    """The lab and what fails in it. `attached_us`: when each agent was attached."""

    def __init__(self, directory: Path, watched: Broker, sink: Broker, seconds: float) -> None:
        self.attached_us: list[int] = []
        self.began_us = 0
        self._directory = directory
        self._watched = watched
        self._sink = sink
        self._seconds = seconds
        self._over = Event()
        self._agent = self._new_agent()
        self._pipeline = self._new_pipeline()
        self._failures: tuple[tuple[float, Callable[[], None]], ...] = (
            (0.04, self._kill_agent),
            (0.10, self._kill_agent),
            (0.22, self._stop_sink),
            (0.35, self._kill_pipeline),
            (0.58, self._stop_sink),
            (0.70, self._kill_pipeline),
        )

    def run(self) -> None:
        """From the first connection to the last."""
        said = self._directory / "visitors.log"
        where = (self._watched.host, self._watched.port, CONNECTIONS, STAY_S, SILENCE_S, VISITED)
        visitors = start([sys.executable, "-m", "tests.soak.visitors", *map(str, where)], log=said, cwd=ROOT, told=True)
        try:
            with ThreadPoolExecutor(1) as pool:
                programs = pool.submit(self._programs)
                try:
                    self._fail()
                finally:
                    self._over.set()
                programs.result()
            assert visitors.stdin is not None
            visitors.stdin.close()
            if visitors.wait(2 * SILENCE_S):
                raise LabError(f"the visitors failed:\n{tail(said)}")
        finally:
            stop(visitors)

    def end(self) -> None:
        """Stop agent and pipeline in order; what is there is processed by then."""
        self._agent.stop()
        if (status := self._pipeline.poll()) is not None:
            raise LabError(f"the pipeline ended with status {status}:\n{tail(self._directory / 'pipeline.log')}")
        kill_family(self._pipeline)
        run_pipeline(self._sink.bootstrap, self._directory / "pipeline")

    def kill(self) -> None:
        """End everything without notice."""
        self._agent.kill()
        kill_family(self._pipeline)

    def at_us(self, part: float) -> float:
        """The time when so much of the whole was over."""
        return self.began_us + part * self._seconds * 1e6

    def _fail(self) -> None:
        self.began_us = time.time_ns() // 1000
        for part, failure in self._failures:
            self._wait_for(part)
            say(f"{part:4.0%} {failure.__doc__}")
            failure()
        self._wait_for(1.0)

    def _wait_for(self, part: float) -> None:
        self._over.wait(max(0.0, (self.at_us(part) - time.time_ns() / 1000) / 1e6))

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

    def _new_agent(self) -> Agent:
        flags = ("--bootstrap-servers", self._sink.bootstrap, "--ports", str(self._watched.port))
        more = ("--side", "accepting", "--requests", "all", "--interval-s", "2")
        agent = Agent(self._directory / f"agent-{len(self.attached_us) + 1}", *flags, *more).__enter__()
        self.attached_us.append(time.time_ns() // 1000)
        return agent

    def _new_pipeline(self) -> subprocess.Popen[bytes]:
        flags = ("--bootstrap-servers", self._sink.bootstrap, "--output", self._directory / "pipeline")
        command = (sys.executable, "-m", "kafka_probe_pipeline.job", "run", *flags, "--trigger-interval", "10")
        return start(command, log=self._directory / "pipeline.log")

    def _kill_agent(self) -> None:
        """The agent is killed, and started again."""
        self._agent.kill()
        self._agent = self._new_agent()

    def _kill_pipeline(self) -> None:
        """The pipeline is killed, and started again."""
        kill_family(self._pipeline)
        self._pipeline = self._new_pipeline()

    def _stop_sink(self) -> None:
        """The broker that takes the events stops for a while."""
        self._sink.stop()
        self._over.wait(min(LONGEST_OUTAGE_S, OUTAGE * self._seconds))
        self._sink.start()


def endure(minutes: float, directory: Path) -> dict[str, Any]:
    """The whole; returns what build/soak.json says."""
    with ExitStack() as stack:
        # The broker's connections to itself must not be closed and opened in between: JMX would count their requests.
        never = {"connections.max.idle.ms": "86400000"}
        watched = stack.enter_context(Broker(directory / "watched", properties=never))
        sink = stack.enter_context(Broker(directory / "sink", heap_mb=256))
        create_topics(watched.bootstrap, [*topics(clients("", directory, records=0, rate=1)), VISITED], partitions=3)
        warm_up(watched.bootstrap)
        before = watched.settled_request_counts()
        capture = stack.enter_context(Capture(directory / "lo.pcap", watched.port))
        soak = Soak(directory, watched, sink, minutes * 60)
        stack.callback(soak.kill)
        soak.run()
        after = watched.settled_request_counts()
        capture.stop()
        soak.end()
        say("Accounting for it ...")
        answered = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key)}
        wire = walk(capture.file, watched.port)
        told = told_by_agents(line for _, value in read_topic(sink.bootstrap, EVENTS) for line in value.splitlines())
        kept = account(wire.times, told, soak.attached_us)
        kept.equal("requests by the broker's own count", answered, wire.by_api)
        counted: Requests = sum((one.requests for one in told), Counter())
        kept.equal("requests in the pipeline's table", in_table(sink.bootstrap), counted)
    return figures(soak, told, kept, minutes)


def in_table(bootstrap: str) -> Requests:
    """Requests by API, version and client id: the last row of a key is right after any replay."""
    counts: Requests = Counter()
    for row in map(json.loads, dict(read_topic(bootstrap, TRAFFIC)).values()):
        if row["level"] == "api":
            counts[row["api"], row["api_version"], row["client_id"]] += row["requests"]
    return counts


def figures(soak: Soak, told: list[Told], kept: Account, minutes: float) -> dict[str, Any]:
    """What is worth to be kept, and judged."""
    early, late = (told[-1].memory_between(*map(soak.at_us, window)) for window in (EARLY, LATE))
    lifetime_us = soak.at_us(1.0) - soak.attached_us[-1]
    return {
        "minutes": minutes,
        "connections_at_a_time": CONNECTIONS,
        "agents": len(told),
        **{name.replace(" ", "_"): count for name, count in kept.counts.items()},
        "events": sum(one.events for one in told),
        "memory_early_mb": round(early / 1e6, 1),
        "memory_late_mb": round(late / 1e6, 1),
        "memory_change_percent": round(100 * (late / early - 1), 2),
        "agent_cpu_percent": round(100 * told[-1].cpu_us / lifetime_us, 2),
        "unexplained": len(kept.unexplained),
        "examples": kept.unexplained[:20],
    }


def holds(result: dict[str, Any]) -> bool:
    return not result["unexplained"] and abs(result["memory_change_percent"]) <= FLAT_PERCENT


def main(minutes: float) -> int:
    """Returns the exit status."""
    directory = ROOT / "build" / "soak"
    shutil.rmtree(directory, ignore_errors=True)
    result = endure(minutes, directory)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name.replace('_', ' '):32} {value}")
    return 0 if holds(result) else 1


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
