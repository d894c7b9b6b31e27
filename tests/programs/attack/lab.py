"""Provides the lab of the attacks: brokers, honest clients, the agent in its own cgroup, its pages and a capture.

The honest clients and their broker are on loopback. A flood has a port of its own that is watched, too, and an address
of its own in a network namespace, unless it comes from theirs.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import orjson

from tests.builders.hostile import unsafe
from tests.builders.wire import MARKER
from tests.lab.broker import Broker
from tests.lab.cgroups import Peak, memory_cgroup
from tests.lab.clients import ROOT, clients, running, topics
from tests.lab.http import get
from tests.lab.network import Namespace
from tests.lab.processes import LabError, free_port, start, stop, tail, wait_until
from tests.lab.product import EVENTS, Agent
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics, warm_up
from tests.programs.attack.topic import last_values

ADDRESS = "10.66.0.1"  # of floods, in their namespace
RATE = 50.0  # records per second of each honest producer
_WITHOUT_END = 1 << 30
_HEALTH_S, _SCRAPE_S = 0.5, 5.0
_PAGES = ("metrics", "api/v1/clients", "api/v1/connections")
# Until the agent has reported all of a flood.
_LONGEST_REPORT_S = 180
# Of agents older than --memory-limit, so that the machine goes on.
_MOST_MEMORY_BYTES = 8 << 30


@dataclass(slots=True)
class Phase:
    """One flood: its times in µs since epoch, its result, and the agent's state meanwhile."""

    name: str
    began_us: int
    ended_us: int = 0
    done: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0
    restarts: int = 0
    unhealthy_in_a_row: int = 0
    slowest_health_s: float = 0.0
    unhealthy: Counter[str] = field(default_factory=Counter)  # health by what was answered instead of 200
    pages: Counter[str] = field(default_factory=Counter)  # by status
    bad_pages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Lab:
    """The lab, from up to gone: `with Lab(directory, sources) as lab:`; `sources` are those of the attacked agent."""

    def __init__(self, directory: Path, sources: Path) -> None:
        self.directory = directory
        self.environment = {"PYTHONPATH": f"{sources / 'agent'}:{sources / 'pipeline'}:{ROOT}"}
        self.phases: list[Phase] = []
        self.logs: list[Path] = []
        self.flood_port = free_port()
        self._listen_port = free_port()
        self._stack = ExitStack()
        self._over = Event()
        self._phase = Phase("start", 0)

    @property
    def listen(self) -> tuple[str, int]:
        """Return the address of the agent's HTTP server."""
        return "127.0.0.1", self._listen_port

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.watched = stack.enter_context(Broker(self.directory / "watched", lasting=True))
            self.sink = stack.enter_context(Broker(self.directory / "sink", keep=True, lasting=True))
            honest = clients(self.watched.bootstrap, self.directory, records=_WITHOUT_END, rate=RATE)
            create_topics(self.watched.bootstrap, topics(honest), partitions=1)
            warm_up(self.watched.bootstrap)
            self._namespace = Namespace()
            stack.callback(self._namespace.close)
            self._namespace.run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
            self._cgroup, self._peak = stack.enter_context(_bounded_cgroup())
            self._agent = self._new_agent()
            stack.callback(lambda: self._agent.kill())
            self.capture = stack.enter_context(Capture(self.directory / "lo.pcap", self.watched.port))
            self._honest = stack.enter_context(running(honest, self.directory))
            for each in (self._ask_health, self._scrape):
                thread = Thread(target=each, daemon=True)
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._over.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure a flood that runs in the block, until the agent has reported all of it."""
        self._peak.reset()
        self._phase = phase = Phase(name, _now_us())
        yield phase
        phase.ended_us = _now_us()
        try:
            wait_until(self._has_reported, "the agent to report", timeout_s=_LONGEST_REPORT_S, every_s=0.5)
        except LabError as error:
            phase.problems.append(str(error))
        phase.peak_bytes = self._peak.read()
        if not self._agent.is_running():
            phase.restarts += 1
            self._agent.kill()
            self._agent = self._new_agent()
        for one in self._honest:
            if one.process.poll() is not None:
                raise LabError(f"{one.client.client_id} ended:\n{tail(one.log)}")
        self.phases.append(phase)

    def flood(self, name: str, rate: int, seconds: float, *, from_honest_address: bool = False) -> dict[str, Any]:
        """Run a flood of the watched port to its end; return its result."""
        arguments = (self.flood_port, int(rate * seconds), seconds)
        if from_honest_address:
            return self.program("tests.programs.attack.flood", name, "127.0.0.1", *arguments)
        with self._namespace.inside():
            return self.program("tests.programs.attack.flood", name, ADDRESS, *arguments)

    def program(self, module: str, *arguments: object) -> dict[str, Any]:
        """Run a program of this folder to its end; return its output.

        Raises:
            LabError: it failed.
        """
        log, output = self.directory / f"{module}.log", self.directory / f"{module}.out"
        output.unlink(missing_ok=True)
        process = start([sys.executable, "-m", module, *map(str, arguments)], log=log, stdout=output, cwd=ROOT)
        try:
            status = process.wait(600)
        finally:
            stop(process)
        if status:
            raise LabError(f"{module} {arguments} ended with status {status}:\n{tail(log)}")
        result: dict[str, Any] = json.loads(output.read_text())
        return result

    @contextmanager
    def ring(self, found: dict[str, Any]) -> Iterator[None]:
        """Check everything that leaves the kernel for the duration of the block; `found` is filled at the end."""
        log, output = self.directory / "ring.log", self.directory / "ring.out"
        output.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.programs.attack.ring", str(self.flood_port)]
        process = start(command, log=log, stdout=output, cwd=ROOT)
        try:
            yield
        finally:
            status = stop(process, timeout_s=60)
        if status:
            raise LabError(f"the second capture ended with status {status}:\n{tail(log)}")
        found |= json.loads(output.read_text())

    def agent(self, name: str, *flags: str, inside: Path | None = None) -> Agent:
        """Return an agent of the attacked sources that is not started yet; `name` is its node's name."""
        flags = ("--bootstrap-servers", self.sink.bootstrap, "--node", name, *flags)
        agent = Agent(self.directory / name, *flags, inside=inside, environment=self.environment)
        self.logs.append(agent.log)
        return agent

    def stop(self) -> None:
        """Stop the observers in order, so that the events topic and the capture are complete."""
        self._over.set()
        for one in self._honest:
            stop(one.process)
        try:
            self._agent.stop()
        except LabError as error:
            self._phase.problems.append(str(error))
        self.capture.stop()

    def _new_agent(self) -> Agent:
        ports = f"{self.watched.port},{self.flood_port}"
        spool = self.directory / "spool"
        server = ("--listen", f"127.0.0.1:{self._listen_port}")
        flags = ("--ports", ports, "--spool-dir", str(spool), *server)
        self._node = f"attacked-{len(self.logs)}"
        return self.agent(self._node, *flags, inside=self._cgroup).__enter__()

    def _has_reported(self) -> bool:
        """Return True if an interval that began after the flood is in the topic, or the agent has ended."""
        since = (self._interval_began_us(value) for value in last_values(self.sink.bootstrap, EVENTS))
        return not self._agent.is_running() or max(since, default=0) >= self._phase.ended_us

    def _interval_began_us(self, value: bytes) -> int:
        """Return the start of the interval of a record's last event if that is the attacked agent's `agent` event."""
        with suppress(ValueError):  # forged
            event = orjson.loads(value.splitlines()[-1])
            if isinstance(event, dict) and event.get("node") == self._node and event["kind"] == "agent":
                return int(event["since"])
        return 0

    def _ask_health(self) -> None:
        in_a_row = 0
        while not self._over.wait(_HEALTH_S):
            phase, asked_s = self._phase, time.monotonic()
            try:
                outcome = str(get(f"http://127.0.0.1:{self._listen_port}/healthz").status)
            except (OSError, HTTPException) as error:
                outcome = repr(error)
            if outcome == str(HTTPStatus.OK.value):
                in_a_row = 0
            else:
                in_a_row += 1
                phase.unhealthy[outcome] += 1
                phase.unhealthy_in_a_row = max(phase.unhealthy_in_a_row, in_a_row)
            phase.slowest_health_s = max(phase.slowest_health_s, time.monotonic() - asked_s)

    def _scrape(self) -> None:
        while not self._over.wait(_SCRAPE_S):
            for page in _PAGES:
                phase = self._phase
                try:
                    answer = get(f"http://127.0.0.1:{self._listen_port}/{page}")
                except (OSError, HTTPException, ValueError) as error:
                    phase.pages[type(error).__name__] += 1
                    continue
                phase.pages[str(answer.status)] += 1
                phase.bad_pages += [f"{page}: {what}" for what in suspicious(answer.text.encode())]


def suspicious(text: bytes) -> list[str]:
    """Return the parts of an agent's page or log that must not be in it."""
    found = ["markers"] if MARKER in text else []
    return found + [f"character {one!a}" for one in sorted({*unsafe(text.decode(errors="surrogateescape"))})]


@contextmanager
def _bounded_cgroup() -> Iterator[tuple[Path, Peak]]:
    with memory_cgroup("attacked") as (directory, peak):
        limit = directory / "memory.limit_in_bytes"
        (limit if limit.exists() else directory / "memory.max").write_text(str(_MOST_MEMORY_BYTES))
        yield directory, peak


def _now_us() -> int:
    return time.time_ns() // 1000
