"""Names from a broker's files: when and how often files are read, and that no read takes long."""

from __future__ import annotations

import logging
import os
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from kafka_probe.connections.brokers import LONGEST_PAUSE_S, PAUSE_S, SHARE, STEP_S, BrokerFiles, _Broker
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Facts, Status, TopicFacts
from kafka_probe.workloads import NOBODY, StoredTopic, WorkloadResolver
from tests.builders.samples import opened

FETCH = ApiKey.FETCH
NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def asking_for(topic_id: str) -> Facts:
    return Facts(False, FETCH, 13, Status.COMPLETE, topics=(TopicFacts(None, topic_id, (0,), ()),))


class Clocked(WorkloadResolver):
    """Notes when files are read."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.readings: list[float] = []

    def stored_topics(self, pid: int, start_time_us: int) -> Iterator[StoredTopic | None]:
        self.readings.append(self.now)
        return super().stored_topics(pid, start_time_us)


class Host:
    """This process as a broker: it holds the lock of a log directory, and connections to it are watched."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.resolver = Clocked()
        self.names = TopicNames()
        self.files = BrokerFiles(self.names, self.resolver, clock=self.clock)
        self.tick_s = 0.0

    def clock(self) -> float:
        """Return the time, which goes on by a tick at every call."""
        self.resolver.now += self.tick_s
        return self.resolver.now

    def create(self, name: str) -> str:
        """Create the directory of a new topic; return the topic's id."""
        topic_id = uuid.uuid4()
        directory = self.log_dir / f"{name}-0"
        directory.mkdir()
        encoded = urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {encoded}\n")
        return topic_id.hex

    def see(
        self,
        topic_id: str,
        *,
        server_side: bool = True,
        pid: int | None = None,
        nobody: bool = False,
    ) -> None:
        """Feed a Fetch of the topic on a connection of a process, or of nobody, and read one step on."""
        connection = self._connection(pid or os.getpid(), server_side)
        if nobody:
            connection.workload = NOBODY
        self.files.see(connection, asking_for(topic_id))
        self.files.read_on()

    def name(self, topic_id: str) -> str | None:
        return self.names.resolve(TopicFacts(None, topic_id, (), ()))[0]

    def _connection(self, pid: int, server_side: bool) -> Connection:
        ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        tracker = Tracker(self.resolver)
        tracker.take(opened(1, server_side=server_side, tgid=pid, start_ns=ticks * NS_PER_TICK)[0])
        connection = tracker.get(1)
        assert connection
        return connection


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with (tmp_path / ".lock").open("w"):
        yield Host(tmp_path)


def test_all_topics_of_a_broker_have_their_names_once_it_is_seen(host: Host) -> None:
    orders, sales = host.create("orders"), host.create("sales")
    host.see(orders)
    assert (host.name(orders), host.name(sales)) == ("orders", "sales")
    assert set(host.names.report()) == {(orders, "orders"), (sales, "sales")}
    assert host.files.counters == {"topics_named": 2, "broker_files_unreadable": 0}


def test_names_from_a_brokers_files_go_before_those_from_messages(host: Host) -> None:
    orders, sales = host.create("orders"), host.create("sales")
    host.names.add(orders, "payments", "10.0.0.1")
    for name in ("payments", "stocks"):
        host.names.add(sales, name, "10.0.0.1")
    assert host.name(sales) is None
    host.see(sales)
    assert (host.name(orders), host.name(sales)) == ("orders", "sales")


def test_a_clients_files_are_not_read(host: Host) -> None:
    orders = host.create("orders")
    host.see(orders, server_side=False)
    assert host.name(orders) is None


def test_nobody_has_no_files(host: Host) -> None:
    orders = host.create("orders")
    host.see(orders, nobody=True)
    assert host.name(orders) is None


def test_a_topic_that_is_new_gets_its_name_but_nothing_is_read_as_long_as_all_are_known(host: Host) -> None:
    host.see(host.create("orders"))
    sales = host.create("sales")
    host.resolver.now += PAUSE_S
    host.see(next(id_ for id_, _ in host.names.report()))
    assert host.name(sales) is None
    host.see(sales)
    assert host.name(sales) == "sales"


def test_while_nothing_is_found_the_files_are_read_ever_less_often(host: Host) -> None:
    host.see(host.create("orders"))
    while host.resolver.now < 4 * LONGEST_PAUSE_S:
        host.resolver.now += 1
        host.see("f" * 32)
    pauses = [after - before for before, after in pairwise(host.resolver.readings)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (PAUSE_S, LONGEST_PAUSE_S)
    host.resolver.now += LONGEST_PAUSE_S
    host.see(host.create("sales"))
    host.resolver.now += PAUSE_S
    payments = host.create("payments")
    host.see(payments)
    assert host.name(payments) == "payments"


def test_a_step_ends_with_its_time_and_the_next_one_goes_on(host: Host) -> None:
    ids = [host.create(f"topic-{n}") for n in range(100)]
    host.tick_s = STEP_S / 20
    host.see(ids[0])
    steps = 1
    while (named := host.files.counters["topics_named"]) < len(ids):
        assert named <= 20 * steps
        host.files.read_on()  # too early
        assert host.files.counters["topics_named"] == named
        host.resolver.now += SHARE * STEP_S * 1.2
        host.files.read_on()
        steps += 1
    assert steps > 5
    assert [host.name(topic_id) for topic_id in ids] == [f"topic-{n}" for n in range(len(ids))]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Drop the rights of root for the block, if this is root: the kernel checks effective user and capabilities."""
    with ExitStack() as stack:
        if os.geteuid() == 0:
            os.seteuid(65534)
            stack.callback(os.seteuid, 0)
        yield


def test_brokers_take_turns_so_that_none_delays_the_others(host: Host) -> None:
    host.tick_s = STEP_S
    read: list[int] = []

    def endless(number: int) -> Iterator[None]:
        while True:
            read.append(number)
            yield None

    host.files._brokers = {(number, 0): _Broker(endless(number)) for number in (1, 2)}
    for _ in range(4):
        host.files.read_on()
        host.resolver.now += 10 * SHARE * STEP_S
    assert [number for number, _ in groupby(read)] == [1, 2, 1, 2]


def test_a_process_that_may_not_be_looked_at_is_logged_once_and_not_tried_again(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    with unprivileged(), caplog.at_level(logging.WARNING):
        for _ in range(5):
            host.see("f" * 32, pid=1)
            host.resolver.now += 2 * LONGEST_PAUSE_S
    assert host.files.counters["broker_files_unreadable"] == 1
    assert len(caplog.records) == 1
    assert "CAP_SYS_PTRACE" in caplog.text
