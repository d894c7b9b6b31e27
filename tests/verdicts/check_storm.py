"""Three hundred clients behind a real NAT, watched from both ends: their names, and which closes are a storm.

Part of `make verdicts`, not of `make test`: the brokers and three hundred clients take their time. The job and all that
it decides by is as set by default.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from kafka_probe_pipeline import agents, connections, spark_session
from kafka_probe_pipeline.config import PipelineConfig, load
from kafka_probe_pipeline.incidents import IDLE, RESTART
from kafka_probe_pipeline.versions import Versions
from tests.lab.alertmanager import Receiver
from tests.lab.broker import Broker
from tests.lab.network import Answer, Connection, Network, nat
from tests.lab.pipeline_job import Run
from tests.lab.processes import wait_until
from tests.lab.product import Agent, read_events
from tests.lab.storm import Herd, Victim, churn, herd, restart, storm
from tests.lab.topics import create_topics

pytestmark = [
    pytest.mark.root,
    pytest.mark.broker,
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC = "orders"
PORTS = (9092, 9192)
PROCESSES, EACH, CGROUPS = 20, 15, 5
IDLE_S, HOUR_S = 8, 3600

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """The running scene: network, brokers, an agent per node, the job, and an Alertmanager for its alerts."""

    directory: Path
    network: Network
    brokers: Sequence[Broker]
    agents: dict[str, Agent]
    run: Run
    receiver: Receiver
    spark: SparkSession

    @property
    def bootstraps(self) -> list[str]:
        return [broker.bootstrap for broker in self.brokers]

    def events(self) -> list[Event]:
        return read_events(self.run.broker.bootstrap, self.run.events)

    def state(self, path: Callable[[PipelineConfig], str], schema: StructType) -> list[Row]:
        """Return the newest version of a state of the job."""
        newest = Versions(self.spark, path(load({"output": str(self.run.output)})), schema).newest()
        return newest.collect() if newest else []

    def current(self) -> list[Row]:
        """Return the connections that were reported, open or closed."""
        return connections.of_rows(*(self.run.table(self.spark, name) for name in ("opens", "closes"))).collect()

    def sent_alerts(self) -> list[tuple[float, Event]]:
        """Return the alerts, each with the time of its sending, seconds since epoch."""
        consumer = KafkaConsumer(bootstrap_servers=self.run.broker.bootstrap, client_id="lab")
        try:
            partitions = [TopicPartition(self.run.alerts, n) for n in consumer.partitions_for_topic(self.run.alerts)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            found = []
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                for batch in consumer.poll(timeout_ms=500).values():
                    found += [(record.timestamp / 1000, json.loads(record.value)) for record in batch]
        finally:
            consumer.close()
        return found

    def wait_known(self, wanted: Iterable[Connection]) -> dict[Connection, Row]:
        """Return the rows of these connections once both ends of each are reported, while they are open."""
        wanted, known = set(wanted), dict[Connection, Row]()

        def all_known() -> bool:
            rows = self.current()
            known.update({connection_of(row): row for row in rows if row["ends"] == "both" and row["state"] == "open"})
            return wanted <= known.keys()

        wait_until(all_known, "both ends of all connections to be reported", timeout_s=120, every_s=2)
        return {one: known[one] for one in wanted}

    def wait_judged(self) -> None:
        """Wait until the job has judged everything up to now."""
        now_us = time.time_ns() // 1000

        def judged() -> bool:
            words = [row["complete_until"] for row in self.state(lambda config: config.agents, agents.SCHEMA)]
            open_cases = [
                row
                for row in self.state(lambda config: config.connections, connections.SCHEMA)
                if row["verdict"] is None
            ]
            return min(words, default=0) > now_us and not any(row["state"] == "closed" for row in open_cases)

        wait_until(judged, "the job to judge all", timeout_s=120, every_s=2)
        self.wait_reported()

    def batch_at(self, time_s: float) -> int:
        """Return the number of the micro-batch that was the first to end after this time, seconds since epoch."""
        done = [int(commit.name) for commit in self._commits() if commit.stat().st_mtime < time_s]
        return max(done, default=-1) + 1

    def wait_reported(self) -> None:
        """Wait until the job has reported what its tables contain now: alerts are sent after them."""
        before = len(self._commits())
        wait_until(lambda: len(self._commits()) >= before + 2, "two steps of the job", timeout_s=120)

    def _commits(self) -> list[Path]:
        return [*(self.run.output / "connections_checkpoint" / "commits").glob("[0-9]*")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("storm")
    with ExitStack() as stack:
        up = stack.enter_context
        network = up(nat(clients=1, idle_s=HOUR_S))
        with network.broker.inside():
            brokers = [
                up(Broker(directory / f"broker-{port}", host=network.broker.address, port=port)) for port in PORTS
            ]
            for broker in brokers:
                create_topics(broker.bootstrap, [TOPIC], partitions=1)
        ours = up(Broker(directory / "events"))
        run = Run(ours, directory, often=False)
        create_topics(ours.bootstrap, [run.events], partitions=4)
        receiver = up(Receiver(directory / "alertmanager"))
        spark = spark_session.start(brief=True)
        stack.callback(spark.stop)
        agents = {}
        for node, namespace in (("brokers", network.broker), ("clients", network.clients[0])):
            made = directory / node
            made.mkdir()
            flags = ("--bootstrap-servers", ours.bootstrap, "--topic", run.events, "--node", node)
            agents[node] = Agent(made, *flags, "--netns", namespace.path, "--ports", ",".join(map(str, PORTS)))
            up(agents[node])
        up(run.job("--alertmanager-url", receiver.url))
        state = Path(load({"output": str(run.output)}).agents)
        wait_until(state.exists, "the job's first look", timeout_s=120)
        yield Scene(directory, network, brokers, agents, run, receiver, spark)


def test_every_client_is_known_on_the_brokers_side_and_what_is_no_idle_storm_is_none(scene: Scene) -> None:
    with herd(
        scene.network, scene.bootstraps, scene.directory, topic=TOPIC, processes=PROCESSES, each=EACH, cgroups=CGROUPS
    ) as crowd:
        victims = crowd.victims()
        known = scene.wait_known(truth(victims))
        owners = {one: row["client"]["workload"] for one, row in known.items()}
        assert {one: (owner["pid"], owner["cgroup"]) for one, owner in owners.items()} == truth(victims)
        assert len(truth(victims)) == PROCESSES * EACH
        beyond_nat = scene.network.translated()
        assert {one: row["server"]["peer"] for one, row in known.items()} == {one: beyond_nat[one] for one in known}
        addresses = {row["server"]["peer"].partition(":")[0] for row in known.values()}
        assert addresses == {scene.network.gateway_address}
        assert len(Counter(victim.cgroup for victim in victims)) == CGROUPS

        restart(scene.network, scene.brokers)
        crowd.send()
        # All are silent for equally long, and longer than a limit on idle connections need be, when they stop.
        silent_ms = 2000 * PipelineConfig().idle_minimum
        wait_until(lambda: min(crowd.silences_ms().values()) > silent_ms, "all clients to be silent")
        crowd.stop()
    churn(scene.network, scene.bootstraps[0], scene.directory, topic=TOPIC, rounds=4)
    scene.wait_judged()
    kinds = {alert["kind"] for _, alert in scene.sent_alerts()}
    assert IDLE not in kinds
    assert RESTART in kinds


def connection_of(row: Row) -> Connection:
    """Return the connection that a row of the job is about."""
    return Connection(row["client"]["local"], row["client"]["peer"])


def truth(victims: Sequence[Victim]) -> dict[Connection, tuple[int, str]]:
    """Return process and cgroup of each client's end."""
    return {one: (victim.pid, victim.cgroup) for victim in victims for one in victim.connections}


@contextmanager
def forgotten_soon(scene: Scene, answer: Answer, *, processes: int, each: int, cgroups: int) -> Iterator[Herd]:
    """Yield a herd that has just sent all at once, through a gateway that forgets it after IDLE_S of silence."""
    scene.network.run_gateway(HOUR_S)
    with herd(
        scene.network, scene.bootstraps, scene.directory, topic=TOPIC, processes=processes, each=each, cgroups=cgroups
    ) as crowd:
        scene.network.run_gateway(IDLE_S, answer)
        crowd.send()
        yield crowd


def test_a_storm_is_one_alert_in_time_with_its_cause_its_size_and_its_victims(scene: Scene) -> None:
    with forgotten_soon(scene, "drop", processes=PROCESSES, each=EACH, cgroups=CGROUPS) as crowd:
        forgotten = storm(crowd)
        wait_until(
            lambda: any(alert["count"] == PROCESSES * EACH for _, alert in idle_alerts(scene)),
            "the alert",
            timeout_s=60,
            every_s=1,
        )
        alerts = idle_alerts(scene)
        assert len({alert["id"] for _, alert in alerts}) == 1
        _, last = alerts[-1]
        assert (last["cause"], last["count"], last["both_ends"]) == (
            "middlebox_silent_drop", PROCESSES * EACH, PROCESSES * EACH,
        )  # fmt: skip
        assert last["idle_us"] == pytest.approx(1000 * median(forgotten.silences_ms), rel=0.1)
        hit = Counter({victim.cgroup: 0 for victim in forgotten.victims})
        for victim in forgotten.victims:
            hit[victim.cgroup] += len(victim.connections)
        assert {of["name"].partition(" ")[2]: of["count"] for of in last["workloads"]} == hit
        assert [alert["labels"]["storm"] for alert in scene.receiver.alerts() if alert["labels"]["kind"] == IDLE] == [
            last["id"]
        ]
        sent_s, opened = alerts[0]
        assert opened["change"] == "opened"
        known = known_s(scene.events(), {victim.pid for victim in forgotten.victims})
        # The micro-batch at that time may have read the events before. The next one has them.
        assert scene.batch_at(sent_s) <= scene.batch_at(known) + 1, f"sent {sent_s - known:.1f} s later"

    wait_until(
        lambda: idle_alerts(scene)[-1][1]["state"] == "resolved", "the storm to be over", timeout_s=180, every_s=5
    )
    assert idle_alerts(scene)[-1][1]["id"] == last["id"]
    wait_until(
        lambda: IDLE not in {alert["labels"]["kind"] for alert in scene.receiver.alerts()},
        "the alert to end in the Alertmanager",
        timeout_s=60,
    )


def idle_alerts(scene: Scene) -> list[tuple[float, Event]]:
    """Return the alerts of idle storms, oldest first."""
    return sorted(
        ((sent_s, alert) for sent_s, alert in scene.sent_alerts() if alert["kind"] == IDLE), key=lambda pair: pair[0]
    )


def known_s(events: Sequence[Event], pids: set[int]) -> float:
    """Return the time at which the threshold was crossed and the other end had reported, seconds since epoch.

    That is when both were sent: the report of the clients' agent with the close that makes a storm, and the first
    report of the brokers' agent that covers the time after that close. The alert is due in the micro-batch that begins
    next; `make bench-pipeline` measures how many seconds that takes.
    """
    settings = load({})
    words = [event for event in events if event["kind"] == "agent"]
    closes = [
        event for event in events if event["kind"] == "close" and event["node"] == "clients"
        and (event["workload"] or {}).get("pid") in pids and event["silence_us"] >= IDLE_S * 1_000_000
    ]  # fmt: skip

    def reported_us(close: Event) -> int:
        of_agent = (word for word in words if word["agent_id"] == close["agent_id"])
        return min(int(word["ts"]) for word in of_agent if word["seq"] > close["seq"])

    decisive = sorted(closes, key=lambda close: (reported_us(close), close["closing_ts"]))[settings.storm_minimum - 1]
    until_us = decisive["closing_ts"] + settings.clock_margin * 1_000_000
    of_brokers = (word for word in words if word["node"] == "brokers" and word["complete_until"] >= until_us)
    return max(reported_us(decisive), min(int(word["ts"]) for word in of_brokers)) / 1e6


def test_from_the_silence_of_an_agent_that_is_killed_in_a_storm_nothing_is_concluded(scene: Scene) -> None:
    enough = load({}).storm_minimum
    with forgotten_soon(scene, "reset", processes=2, each=enough // 2, cgroups=2) as crowd:
        scene.wait_known(truth(crowd.victims()))
        since_us = time.time_ns() // 1000
        known = {alert["id"] for _, alert in idle_alerts(scene)}

        def verdicts(forgotten: Collection[Connection]) -> list[Row]:
            rows = scene.state(lambda config: config.connections, connections.SCHEMA)
            ended = [row for row in rows if row["verdict"] and row["verdict"]["closed_us"] >= since_us]
            return [row["verdict"] for row in ended if connection_of(row) in forgotten]

        def judged(part: Herd) -> list[Row]:
            forgotten = truth(storm(part).victims)
            wait_until(lambda: len(verdicts(forgotten)) >= len(forgotten), "the verdicts", timeout_s=120, every_s=2)
            return verdicts(forgotten)

        before, after = (replace(crowd, fleets=[fleet]) for fleet in crowd.fleets)
        assert {verdict["cause"] for verdict in judged(before)} == {"middlebox_reset"}
        scene.agents["brokers"].kill()
        doubtful = judged(after)
        assert {verdict["cause"] for verdict in doubtful} == {"unknown"}
        silent = "the agent at the broker has not reported since"
        assert [verdict["evidence"] for verdict in doubtful if silent not in verdict["evidence"]] == []
        scene.wait_reported()
        assert {alert["id"] for _, alert in idle_alerts(scene)} == known
