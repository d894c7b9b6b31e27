"""The pipeline's counts equal three independent counts of the same run.

They are the broker's own request metrics (JMX), a frame walker over a packet capture, and the clients' own counts. The
agent's events go to a second broker, so that only clients talk to the watched one. Part of `make test-long`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.lab.broker import COUNTED, Broker, RequestCounts
from tests.lab.clients import RunningClient, TopicCount, clients, running, topics
from tests.lab.product import Agent, Report, report, run_pipeline
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics, warm_up
from tests.lab.walker import TopicTraffic, Walk, walk

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]

RECORDS, RATE = 400, 40.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the lab, as seen by all counters."""

    started: list[RunningClient]
    own: dict[str, dict[str, TopicCount]]
    answered: RequestCounts
    wire: Walk
    seen: Report
    broker_pid: int


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("counts")
    counted = Broker(directory / "watched", properties=COUNTED)
    with counted as watched, Broker(directory / "sink", heap_mb=256) as sink:
        lab = clients(watched.bootstrap, directory, records=RECORDS, rate=RATE)
        create_topics(watched.bootstrap, topics(lab), partitions=3)
        warm_up(watched.bootstrap)
        before = watched.settled_request_counts()
        flags = ("--bootstrap-servers", sink.bootstrap, "--ports", str(watched.port), "--interval-s", "2")
        capture = Capture(directory / "lo.pcap", watched.port)
        with capture, Agent(directory, *flags), running(lab, directory) as started:
            own = {one.client.client_id: one.wait(timeout_s=90) for one in started}
            after = watched.settled_request_counts()
            capture.stop()
        answered = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key)}
        run_pipeline(sink.bootstrap, directory / "pipeline")
        wire = walk(capture.file, watched.port)
        yield Run(started, own, answered, wire, report(sink.bootstrap), watched.pid)


def test_requests_per_api_and_version_are_those_that_the_broker_answered(run: Run) -> None:
    assert run.wire.by_api == run.answered  # the two independent counts agree to begin with
    for side in ("server", "client"):
        assert by_api(run.seen.select(level="api", side=side)) == run.answered, side


def test_requests_per_client_are_those_on_the_wire(run: Run) -> None:
    for side in ("server", "client"):
        seen: Counter[tuple[str, int, str]] = Counter()
        for row in run.seen.select(level="api", side=side):
            seen[row["api"], row["api_version"], row["client_id"]] += row["requests"]
        assert seen == run.wire.requests, side


def test_requests_records_and_bytes_per_topic_are_those_on_the_wire(run: Run) -> None:
    produced = {key: traffic for key, traffic in run.wire.topics.items() if key[1] == "Produce"}
    assert by_topic(run.seen, "client") == run.wire.topics
    assert {key: t for key, t in by_topic(run.seen, "server").items() if key[1] == "Produce"} == produced


def test_the_broker_side_tells_the_bytes_of_every_fetch(run: Run) -> None:
    """The broker sends records by sendfile, so they are not in its memory and are reported as uncounted."""
    seen = by_topic(run.seen, "server")
    assert seen.keys() == run.wire.topics.keys()
    for key, traffic in seen.items():
        assert (traffic.requests, traffic.bytes) == (run.wire.topics[key].requests, run.wire.topics[key].bytes), key


def test_records_and_bytes_per_topic_are_those_that_the_clients_counted(run: Run) -> None:
    """A consumer counts a record once that a rebalance made it fetch twice; the capture contains it twice."""
    seen = by_topic(run.seen, "client")
    for one in run.started:
        for topic, count in run.own[one.client.client_id].items():
            traffic = seen[one.client.client_id, one.client.api, topic]
            assert count.records == RECORDS
            again = run.wire.topics[one.client.client_id, one.client.api, topic].again
            assert traffic.records == count.records + again, (one.client.client_id, topic)
            assert count.bytes in (None, traffic.bytes), (one.client.client_id, topic)
    assert any(count.bytes for counts in run.own.values() for count in counts.values())


def test_every_client_is_named_by_process_cgroup_and_library(run: Run) -> None:
    for one in run.started:
        client = one.client
        rows = list(run.seen.select(client_id=client.client_id, side="client"))
        named = {(r["pid"], r["cgroup"], r["comm"], r["software_name"], r["software_version"]) for r in rows}
        assert named == {(one.process.pid, one.cgroup, client.comm, client.software_name, client.software_version)}, (
            client.client_id
        )
    assert {row["pid"] for row in run.seen.select(side="server")} == {run.broker_pid}


def test_nothing_is_lost(run: Run) -> None:
    assert run.seen.losses, "the agent reports its losses"
    assert {reason: count for reason, count in run.seen.losses.items() if count} == {}


def by_api(rows: Iterable[dict[str, Any]]) -> RequestCounts:
    """Return the number of requests by API and version."""
    counts: Counter[tuple[str, int]] = Counter()
    for row in rows:
        counts[row["api"], row["api_version"]] += row["requests"]
    return dict(counts)


def by_topic(seen: Report, side: str) -> dict[tuple[str | None, str, str], TopicTraffic]:
    """Return each client's traffic by client id, API and topic: Produce and Fetch."""
    counts: dict[tuple[str | None, str, str], TopicTraffic] = {}
    for row in seen.select(level="topic", side=side):
        if row["api"] in ("Produce", "Fetch"):
            count = counts.setdefault((row["client_id"], row["api"], row["topic"]), TopicTraffic())
            count.requests += row["requests"]
            count.records += row["records"]
            count.bytes += row["record_bytes"]
    return counts
