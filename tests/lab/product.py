"""Runs the product as processes, `kafka-probe run` and `kafka-probe-pipeline run`, and reads their output.

It starts them by their module names, because a guest has the sources and no installed commands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.processes import PATIENCE, LabError, start, stop, tail, wait_until
from tests.lab.topics import read_topic

EVENTS, TRAFFIC, ALERTS = "kafka-probe.events", "kafka-probe.traffic", "kafka-probe.alerts"
COULD_NOT_START = 3
_AGENT = (sys.executable, "-m", "kafka_probe", "run")
_ALONE = ("--listen", "off")
_CACHE_DIR = "KAFKA_PROBE_CACHE_DIR"  # a variable, because older revisions refuse the flag
_PIPELINE = (sys.executable, "-m", "kafka_probe_pipeline.job")


class Agent:
    """`with Agent(directory, flags) as agent:` runs an agent from attached to orderly stopped; its log is `log`.

    By default it has no HTTP server, because several of them share this host, and no cache of compiled programs unless
    LAB_CACHE_DIR names one.

    Raises:
        LabError: it did not start, or did not end with status 0; the text ends with the log's tail.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        inside: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = directory / "agent.log"
        self._ready = directory / "agent.ready"
        self._flags = flags
        self._inside = inside
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.output = directory / "agent.out"

    @property
    def pid(self) -> int:
        """Return the process id of the running agent."""
        if self._process is None:
            raise LabError("the agent is not running")
        return self._process.pid

    def is_running(self) -> bool:
        """Return True from its start until its end."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop it as a service manager would, and return when it has sent all events."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if status := stop(process, timeout_s=30):
            raise LabError(f"the agent ended with status {status}:\n{tail(self.log)}")

    def kill(self) -> None:
        """Kill it without notice: SIGKILL."""
        if self._process is not None:
            process, self._process = self._process, None
            stop(process, by=signal.SIGKILL)

    def __enter__(self) -> Self:
        for leftover in (self._ready, self.log, self.output):
            if not leftover.is_fifo():  # that somebody reads
                leftover.unlink(missing_ok=True)
        command: list[str | Path] = [*_AGENT, *_ALONE, "--ready-file", self._ready, *self._flags]
        environment = {_CACHE_DIR: os.environ.get("LAB_CACHE_DIR", "off"), **(self._environment or {})}
        self._process = start(command, log=self.log, stdout=self.output, env=environment, inside=self._inside)
        try:
            wait_until(self._is_ready, "the agent to attach")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        if self._process is not None and (status := self._process.poll()) is not None:
            raise LabError(f"the agent ended with status {status}:\n{tail(self.log)}")
        return self._ready.exists()


class Watched:
    """An agent on one port, and its events so far."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *flags: str,
        interval_s: float | None = 0.3,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create an agent that is not started yet; `interval_s` None leaves the interval to the other settings."""
        interval = () if interval_s is None else ("--interval-s", str(interval_s))
        given = ("--sink", "stdout", "--ports", str(port), *interval, *flags)
        self.agent = Agent(directory, *given, environment=environment)

    def events(self, **equal: object) -> list[dict[str, Any]]:
        """Return the events with these values, the client's before the server's."""
        *whole, _ = self.agent.output.read_text().split("\n")
        found = [event for event in map(json.loads, whole) if all(event[name] == equal[name] for name in equal)]
        return sorted(found, key=lambda event: event.get("side") or "neither")

    def wait_for(self, count: int, what: str, **equal: object) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.events(**equal)) >= count, what, timeout_s=30)
        return self.events(**equal)


def run_pipeline(bootstrap: str, directory: Path, *, events: str = EVENTS, timeout_s: float = 180) -> None:
    """Process all events that are in the topic `events`, into `directory` and the traffic topic.

    Raises:
        LabError: it failed; the text ends with the log's tail.
    """
    log = directory.with_suffix(".log")
    flags = ("--once", "--bootstrap-servers", bootstrap, "--events-topic", events, "--output", directory)
    process = start((*_PIPELINE, "run", *flags), log=log)
    try:
        status = process.wait(timeout_s * PATIENCE)
    finally:
        stop(process)
    if status:
        raise LabError(f"the pipeline ended with status {status}:\n{tail(log)}")


@dataclass(frozen=True, slots=True)
class Report:
    """The product's output: the rows of the traffic topic and the events behind them, as parsed JSON."""

    rows: Sequence[dict[str, Any]]
    events: Sequence[dict[str, Any]]

    def select(self, **equal: object) -> Iterator[dict[str, Any]]:
        """Return the traffic rows whose columns have these values."""
        return (row for row in self.rows if all(row.get(name) == value for name, value in equal.items()))

    @property
    def losses(self) -> dict[str, int]:
        """Return the losses of the agents, by reason."""
        total: Counter[str] = Counter()
        for losses in losses_by_agent(self.events).values():
            total.update(losses)
        return dict(total)

    def seconds(self, client_id: str) -> float:
        """Return the length of the intervals in which the client was seen, from the first to the last."""
        flows = [e for e in self.events if e["kind"] == "flow" and (e.get("client") or {}).get("id") == client_id]
        start_us, end_us = min(flow["since"] for flow in flows), max(flow["ts"] for flow in flows)
        return float(end_us - start_us) / 1e6


def report(bootstrap: str) -> Report:
    """Read what the product wrote to its topics."""
    # The last row of a key is right after any replay.
    rows = dict(read_topic(bootstrap, TRAFFIC))
    return Report([json.loads(value) for value in rows.values()], read_events(bootstrap))


def read_events(bootstrap: str, topic: str = EVENTS) -> list[dict[str, Any]]:
    """Return the events of all agents; those of one agent are in order."""
    return [json.loads(line) for _, value in read_topic(bootstrap, topic) for line in value.splitlines()]


def losses_by_agent(events: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the losses of each agent by reason, from its last report; agents in order of appearance."""
    return {event["agent_id"]: event["losses"] for event in events if event["kind"] == "agent"}


def reported_until_us(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the time up to which every agent has reported all closes; 0 if there is no agent."""
    last = {event["agent_id"]: event["complete_until"] for event in events if event["kind"] == "agent"}
    return min(last.values(), default=0)
