"""A broker for one measurement, and a fleet whose agents report each second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kafka_probe.events import RepeatedFacts
from tests.lab.broker import Broker
from tests.lab.processes import LabError
from tests.programs.bench_pipeline.facts import CLIENT_NODES, SECOND_US, Close, Connection
from tests.programs.bench_pipeline.feed import Alerts, Feed
from tests.programs.bench_pipeline.fleet import Fleet, backlog
from tests.programs.bench_pipeline.job import Job

FLOWS_PER_SECOND = 200
CATCH_UP_S, ALERT_S, WARM_UP_S = 600.0, 180.0, 30.0
SINCE_CLOSES_S = 3.0  # of the report that contains them: more than the clocks of two hosts may differ by default


@dataclass
class Lab:
    """A fleet, and the topics of its events and alerts."""

    directory: Path
    bootstrap: str
    feed: Feed
    alerts: Alerts
    fleet: Fleet
    flows: int
    brief: int = 0
    closed: int = 0
    _due_s: float = field(default_factory=time.time)
    _brief_number: int = 0

    def open(self, connections: Iterable[Connection], ago_s: float = 0) -> None:
        """Send the opens of connections."""
        self.feed.send(self.fleet.opens(connections, _now_us(ago_s)))

    def open_ordinary(self) -> None:
        """Send the opens of the connections that are not part of a storm, and those of an hour later."""
        self.open(self.fleet.ordinary())
        self.feed.send(self.fleet.opens(self.fleet.ordinary(), _now_us(), _still_open()))

    def close(self, connections: Sequence[Connection], how: Close) -> None:
        """Send the closes of connections, and count them in `closed`."""
        self.feed.send(self.fleet.closes(connections, _now_us(SINCE_CLOSES_S), how))
        self.closed += len(connections)

    def second(self) -> None:
        """Send the events of a second when it is over, with so many `brief` connections."""
        self._due_s = max(self._due_s + 1, time.time())
        time.sleep(max(0.0, self._due_s - time.time()))
        if self.brief:
            brief = self.fleet.brief(self._brief_number, self.brief)
            self._brief_number += self.brief
            self.open(brief, ago_s=2 * SINCE_CLOSES_S)
            self.close(brief, Close("client", spread_us=SECOND_US // 2))
        self.feed.send(self.fleet.second(_now_us(), self.flows))

    def storm(self, victims: Sequence[Connection], silence_s: float) -> float:
        """Send the closes of connections that were silent for so long, and reports; return when Kafka has them."""
        self.close(victims, Close(None, least_us=round(silence_s * SECOND_US)))
        self.second()
        return time.time()

    def until(self, condition: Callable[[], bool], what: str, job: Job, timeout_s: float) -> None:
        """Send the events of each second until a condition holds.

        Raises:
            LabError: it did not hold in time, or the job has ended.
        """
        end_s = time.monotonic() + timeout_s
        while not condition():
            job.require_running()
            job.sample()
            if time.monotonic() > end_s:
                raise LabError(f"waited {timeout_s:.0f} s in vain for {what}")
            self.second()

    def until_s(self, end_s: float, job: Job) -> None:
        """Send the events of each second until this time."""
        self.until(lambda: time.time() > end_s, "time to pass", job, end_s - time.time() + 60)

    def backlog(self, flows: int) -> int:
        """Send the events of a backlog; return their number."""
        return self.feed.send(backlog(self.fleet, flows, FLOWS_PER_SECOND, _now_us()))

    def until_read(self, job: Job) -> None:
        """Send the events of each second until the job has processed those of now."""
        ends = dict(self.feed.ends)
        self.until(lambda: job.has_read(ends), "the job to process all events", job, CATCH_UP_S)

    def warm_up(self, job: Job) -> None:
        """Send the events of each second until the job has processed those of now, and for some time more."""
        self.until_read(job)
        self.until_s(time.time() + WARM_UP_S, job)

    def alert_after_s(self, since_s: float, name: str, job: Job) -> float:
        """Send the events of each second until an alert has this name. Return how long after a time it came.

        Raises:
            LabError: it did not come in time, or the job has ended.
        """
        left_s = since_s + ALERT_S - time.time()
        self.until(lambda: self.alerts.arrived_s(name) is not None, f"an alert on {name}", job, left_s)
        arrived_s = self.alerts.arrived_s(name)
        assert arrived_s is not None
        return arrived_s - since_s


@contextmanager
def lab(
    directory: Path, connections: int, flows: int = FLOWS_PER_SECOND, client_nodes: int = CLIENT_NODES
) -> Iterator[Lab]:
    """Run a broker for one measurement."""
    with Broker(directory / "broker", lasting=True) as broker:
        feed = Feed(broker.bootstrap)
        with closing(Alerts(broker.bootstrap)) as alerts:
            yield Lab(directory, broker.bootstrap, feed, alerts, Fleet(connections, client_nodes), flows)


def _still_open() -> RepeatedFacts:
    traffic: RepeatedFacts = {"requests": 0, "request_bytes": 0, "response_bytes": 0, "topics": []}
    return {"still_open_ts": _now_us(), **traffic, "present_silence_us": SECOND_US, "longest_silence_us": 9 * SECOND_US}


def _now_us(ago_s: float = 0) -> int:
    return round((time.time() - ago_s) * SECOND_US)
