"""Features of modern clients, all at once: the agent's counts equal those of a frame walker and of the clients.

Many partitions in one request, a consumer that polls in vain and loses its fetch session, a topic that is deleted and
made again, transactions, the group protocols of Kafka 4, and connections that were there before the agent.
Part of `make test-long`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kafka_probe.protocol.api_keys import ApiKey
from tests.lab.broker import Broker
from tests.lab.modern import Counts, early, idle, reborn, transactions, write_to_many
from tests.lab.product import Agent, Report, report, run_pipeline
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics
from tests.lab.walker import OF_GROUP_MEMBERS, TopicTraffic, Walk, walk

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]

MANY = [f"many-{number}" for number in range(50)]
PARTITIONS, ROUNDS = 20, 2
POLLS, RECORDS = 50, 200
SESSION_NOT_FOUND = 70
OF_TOPICS = ("Produce", "Fetch", "ShareFetch")
OF_MEMBERS = (*OF_GROUP_MEMBERS, ApiKey.FETCH, ApiKey.SHARE_FETCH)
# Broker settings for a thousand partitions on a small machine.
SMALL = {"log.index.size.max.bytes": "65536", "log.cleaner.enable": "false"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as seen by all counters."""

    own: Counts
    wire: Walk
    seen: Report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("modern")
    # A thousand partitions are ten thousand files, each written through to the disk.
    with TemporaryDirectory(dir="/dev/shm") as memory, Broker(Path(memory), properties=SMALL) as broker:
        create_topics(broker.bootstrap, MANY, partitions=PARTITIONS)
        create_topics(broker.bootstrap, ["idle", "sent", "copied", "early"], partitions=1)
        flags = ("--bootstrap-servers", broker.bootstrap, "--ports", str(broker.port), "--interval-s", "2")
        capture = Capture(directory / "lo.pcap", broker.port)
        with capture, early(broker.bootstrap, "early", directory), Agent(directory, *flags):
            own = hold_all(broker.bootstrap, directory)
            capture.stop()
        run_pipeline(broker.bootstrap, directory / "pipeline")
        yield Run(own, walk(capture.file, broker.port), report(broker.bootstrap))


def hold_all(bootstrap: str, directory: Path) -> Counts:
    """Run all conversations at the same time."""
    with ThreadPoolExecutor() as pool:
        held = [
            pool.submit(write_to_many, bootstrap, MANY, PARTITIONS, ROUNDS),
            pool.submit(idle, bootstrap, "idle", POLLS),
            pool.submit(reborn, bootstrap, "reborn", RECORDS),
            pool.submit(transactions, bootstrap, "sent", "copied", RECORDS, directory),
        ]
        return {key: count for each in held for key, count in each.result().items()}


def test_requests_records_and_bytes_per_topic_are_those_on_the_wire(run: Run) -> None:
    wire = {key: traffic for key, traffic in run.wire.topics.items() if counted(key[0])}
    assert by_topic(run.seen, "client") == wire
    server_side = by_topic(run.seen, "server")
    assert server_side.keys() == wire.keys()
    for key, traffic in server_side.items():
        # Records are fetched from the page cache: they are reported as uncounted on this side.
        records = wire[key].records if key[1] == "Produce" else 0
        assert (traffic.requests, traffic.records, traffic.bytes) == (wire[key].requests, records, wire[key].bytes), key


def test_records_per_topic_are_those_that_the_clients_counted(run: Run) -> None:
    seen = by_topic(run.seen, "client")
    for (client_id, topic), records in run.own.items():
        (key,) = (key for key in seen if (key[0], key[2]) == (client_id, topic))
        wire = run.wire.topics[key]
        assert seen[key].records == records + wire.again + wire.markers, key


def test_records_of_a_thousand_partitions_are_counted_topic_by_topic(run: Run) -> None:
    for side in ("client", "server"):
        seen = by_topic(run.seen, side)
        for topic in MANY:
            assert seen["many-python", "Produce", topic].records == ROUNDS * PARTITIONS, side


def test_a_consumer_that_waits_owns_its_topic_also_beyond_a_lost_session(run: Run) -> None:
    requests = sum(count for (api, _, client), count in run.wire.requests.items() if (api, client) == ("Fetch", "idle"))
    assert requests > POLLS
    assert run.wire.errors["idle", SESSION_NOT_FOUND] == 1
    for side in ("client", "server"):
        assert by_topic(run.seen, side)["idle", "Fetch", "idle"].requests == requests
        rows = run.seen.select(level="api", side=side, client_id="idle", api="Fetch")
        errors = [(row.get("errors") or {}).get(str(SESSION_NOT_FOUND), 0) for row in rows]
        assert sum(errors) == 1, side


def test_a_topic_that_is_made_again_keeps_its_name_and_has_two_ids(run: Run) -> None:
    for side in ("client", "server"):
        rows = list(run.seen.select(level="topic", side=side, client_id="reborn-consumer", api="Fetch"))
        assert {row["topic"] for row in rows} == {"reborn"}
        assert len({row["topic_id"] for row in rows} - {None}) == 2, side


def test_groups_are_known_on_every_connection_of_their_members(run: Run) -> None:
    groups = {client: names for client, names in run.wire.groups.items() if counted(client) and len(names) == 1}
    assert {name for names in groups.values() for name in names} == {"idlers", "moderns", "sharers", "copiers"}
    for side in ("client", "server"):
        for client, names in groups.items():
            rows = run.seen.select(level="api", side=side, client_id=client)
            # A response that came in the interval after its request has a row of its own, without the group.
            asked = [row for row in rows if row.get("api_key") in OF_MEMBERS and row["requests"]]
            assert {row.get("group") for row in asked} == names, (side, client)


def test_topics_of_connections_that_were_there_before_are_named(run: Run) -> None:
    """The broker's own files contain the names: no answer to Metadata passes."""
    rows = [row for row in run.seen.select(level="topic") if (row.get("client_id") or "").startswith("early")]
    assert {row.get("topic") for row in rows} == {"early"}
    assert {(row["client_id"], row["api"], row["side"]) for row in rows} == {
        (*does, side)
        for does in (("early-producer", "Produce"), ("early-consumer", "Fetch"))
        for side in ("client", "server")
    }


def counted(client_id: str | None) -> bool:
    """Return True for a connection that is neither older than the agent nor the agent's own."""
    return not (client_id or "").startswith(("early", "kafka-probe"))


def by_topic(seen: Report, side: str) -> dict[tuple[str | None, str, str], TopicTraffic]:
    """Return each client's traffic by client id, API and topic."""
    counts: dict[tuple[str | None, str, str], TopicTraffic] = {}
    for row in seen.select(level="topic", side=side):
        if row["api"] in OF_TOPICS and counted(row["client_id"]):
            count = counts.setdefault((row["client_id"], row["api"], row["topic"]), TopicTraffic())
            count.requests += row["requests"]
            count.records += row["records"]
            count.bytes += row["record_bytes"]
    return counts
