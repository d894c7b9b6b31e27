"""The job as a process, on a real broker: killed at the worst moments, asked to stop, and given no broker at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession

from kafka_probe_pipeline import job
from kafka_probe_pipeline.session import FETCHED_JARS
from kafka_probe_pipeline.traffic import summed
from tests.lab import processes
from tests.lab.broker import Broker
from tests.lab.processes import free_port, tail, wait_until
from tests.pipeline.builders import NOON_US, Event, flow, lines

pytestmark = [pytest.mark.spark, pytest.mark.broker]

LONG_AGO_US, FAR_AHEAD_US = NOON_US - 30 * 86_400_000_000, NOON_US + 3650 * 86_400_000_000
LIMIT_S = 300  # starting Spark takes 10 s of two idle cores, minutes of busy ones
_numbers = count()

Moment = Callable[["Run"], bool]


class Run:
    """One set of topics and one output directory, and the job on them, as often as wanted."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        number = next(_numbers)
        self.broker, self.output, self.log = broker, directory / "output", directory / "job.log"
        self.events, self.traffic, self.dead = (f"{name}-{number}" for name in ("events", "traffic", "dead"))
        self.seq = self.starts = 0

    def flags(self, *more: str) -> list[str]:
        topics = ("--events-topic", self.events, "--traffic-topic", self.traffic, "--dead-letter-topic", self.dead)
        servers = ("--bootstrap-servers", self.broker.bootstrap)
        return ["run", *servers, *topics, "--output", str(self.output), "--trigger-interval", "0.2", *more]

    def send(self, records: int) -> None:
        """Records of two agents, each with three events, one of them twice, and a line that is no event."""
        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap)
        for _ in range(records):
            for agent in ("agent-1", "agent-2"):
                sent = [
                    flow(
                        self.seq + number,
                        agent_id=agent,
                        ts=ts,
                        request_bytes=100 + self.seq,
                        latency={"70": 1, str(self.seq % 5): 2},
                        topics=[{"topic": "orders", "requests": 1, "records": self.seq, "bytes": 10}],
                    )
                    for number, ts in enumerate((NOON_US, LONG_AGO_US, FAR_AHEAD_US))
                ]
                value = lines(*sent, sent[1]) + f"torn {self.seq}\n"
                producer.send(self.events, key=agent.encode(), value=value.encode()).get(10)
            self.seq += 3
        producer.close()

    def send_events(self, *events: Event) -> None:
        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap)
        producer.send(self.events, value=lines(*events).encode()).get(10)
        producer.close()

    def expected(self) -> dict[str, int]:
        """What the API rows and the topic rows must sum to, counted from what was sent."""
        per_agent = range(0, self.seq, 3)
        return {
            "requests": 2 * self.seq,
            "request_bytes": 6 * sum(100 + seq for seq in per_agent),
            "records": 6 * sum(per_agent),
        }

    @contextmanager
    def job(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        self.starts += 1
        process = processes.start([sys.executable, "-m", "kafka_probe_pipeline.job", *self.flags(*more)], log=self.log)
        try:
            yield process
        finally:
            kill(process)

    def once(self) -> None:
        with self.job("--once") as process:
            assert process.wait(LIMIT_S) == 0, tail(self.log)

    def wait_until(self, moment: Moment, process: subprocess.Popen[bytes]) -> None:
        """Return at the moment, which the job must live to see."""
        name = moment.__name__.replace("_", " ")
        wait_until(
            lambda: moment(self) or process.poll() is not None, f"the job {name}", timeout_s=LIMIT_S, every_s=0.001
        )
        assert process.poll() is None, tail(self.log)

    def commits(self) -> int:
        """Micro-batches that Spark regards as done."""
        return len([*(self.output / "checkpoint" / "commits").glob("[0-9]*")])

    def received(self, topic: str) -> list[tuple[str, dict[str, object]]]:
        """All of a topic, partition by partition in order."""
        consumer = KafkaConsumer(bootstrap_servers=self.broker.bootstrap, auto_offset_reset="earliest")
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        letters = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for batch in consumer.poll(timeout_ms=500).values():
                letters += [(record.key.decode(), json.loads(record.value)) for record in batch]
        consumer.close()
        return letters


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the job and its JVM without notice."""
    if process.poll() is None:
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        for member in family:
            with suppress(psutil.NoSuchProcess):  # it ends with its parent
                member.kill()
        psutil.wait_procs(family, timeout=20)
        process.wait()


@pytest.fixture
def run(broker: Broker, tmp_path: Path) -> Run:
    return Run(broker, tmp_path)


def with_its_batch_done(run: Run) -> bool:
    """Every start of the job has logged the one batch that there was for it."""
    return run.log.read_text().count(" events, ") == run.starts


def in_a_batch(run: Run) -> bool:
    """Offsets are noted, nothing is done yet."""
    return len([*(run.output / "checkpoint" / "offsets").glob("[0-9]*")]) > run.commits()


def with_half_a_batch(run: Run) -> bool:
    """The batch is being written to the table."""
    return (run.output / "traffic" / "_draft").exists()


def with_a_batch_that_spark_does_not_know_of(run: Run) -> bool:
    """The batch is in the table, its Kafka rows are on their way, its commit is not."""
    return len([*(run.output / "traffic").glob("batch_id=*")]) > run.commits()


def test_killed_at_any_moment_the_table_counts_each_event_once_and_the_last_row_per_key_is_right(
    run: Run, spark: SparkSession
) -> None:
    moments: list[Moment] = [
        in_a_batch,
        with_half_a_batch,
        with_a_batch_that_spark_does_not_know_of,
    ]
    for moment in moments:
        run.send(records=10)
        with run.job("--max-records-per-trigger", "30") as process:
            run.wait_until(moment, process)
    run.once()

    table = spark.read.parquet(str(run.output / "traffic"))
    api = table.where("level = 'api'")
    (total,) = api.transform(summed, ()).collect()
    windows = {row["window_start"].year: row["requests"] for row in api.transform(summed, ("window_start",)).collect()}
    expected = run.expected()
    assert {name: total[name] for name in expected} == expected
    assert windows == dict.fromkeys((2026, 2025, 2035), expected["requests"] // 3)

    last = dict(run.received(run.traffic))
    for level in ("api", "topic"):
        rows = [row for row in last.values() if row["level"] == level]
        assert sum(int(str(row["records"])) for row in rows) == expected["records"]
        assert sum(int(str(row["requests"])) for row in rows) == expected["requests"]
    assert len(last) == table.count()

    dead = dict(run.received(run.dead))
    assert Counter(str(row["line"]) for row in dead.values()) == {f"torn {seq}": 2 for seq in range(0, run.seq, 3)}
    assert {row["reason"] for row in dead.values()} == {"not a JSON object"}


def test_a_replayed_batch_sends_the_rows_of_the_table_again_even_if_the_window_was_changed(
    run: Run, spark: SparkSession
) -> None:
    run.send(records=1)
    run.once()
    shutil.rmtree(run.output / "checkpoint" / "commits")
    with run.job("--once", "--window", "3600") as process:
        assert process.wait(LIMIT_S) == 0, tail(run.log)
    sent = run.received(run.traffic)
    assert len(sent) == 2 * len(dict(sent))
    assert len(dict(sent)) == spark.read.parquet(str(run.output / "traffic")).count()


def test_a_name_that_one_node_learned_names_the_rows_of_another_also_those_that_came_before(run: Run) -> None:
    early, late = "aa" * 16, "bb" * 16
    by_id = [{"topic_id": topic_id, "requests": 1} for topic_id in (early, late)]
    named = flow(0, agent_id="broker", kind="request", topics=[{"topic_id": early, "topic": "orders"}])
    run.send_events(named, flow(0, topics=by_id))
    run.once()
    named = flow(1, agent_id="broker", kind="topics", topics=[{"topic_id": late, "topic": "sales"}])
    run.send_events(named, flow(1, topics=by_id))
    run.once()

    shown = command_line("show", "--output", str(run.output), "--json").stdout.splitlines()
    requests = {row["topic"]: row["requests"] for row in map(json.loads, shown) if row["level"] == "topic"}
    assert requests == {"orders": 2, "sales": 2}
    last = dict(run.received(run.traffic)).values()
    assert Counter(row["topic"] for row in last if row["level"] == "topic") == {"orders": 2, "sales": 2}


def test_asked_to_stop_it_ends_with_status_0_and_goes_on_later(run: Run, spark: SparkSession) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        run.send(records=2)
        with run.job() as process:
            run.wait_until(with_its_batch_done, process)
            process.send_signal(number)
            assert process.wait(LIMIT_S) == 0, tail(run.log)
    assert "Traceback" not in run.log.read_text()
    table = spark.read.parquet(str(run.output / "traffic"))
    (total,) = table.where("level = 'api'").transform(summed, ()).collect()
    assert total["requests"] == run.expected()["requests"]


def test_started_by_spark_submit_it_does_the_same_and_show_prints_it(run: Run) -> None:
    run.send(records=1)
    jars = ",".join(str(jar) for jar in FETCHED_JARS.glob("*.jar"))
    submit = Path(sys.executable).with_name("spark-submit")
    script = str(Path(job.__file__))
    local = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1")
    command = [str(submit), *local, "--jars", jars, script, *run.flags("--once")]
    finished = subprocess.run(
        command, env=os.environ | {"PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    shown = command_line("show", "--output", str(run.output), "--json")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {(row["level"], row["topic"], row["requests"]) for row in rows} == {("api", None, 6), ("topic", "orders", 6)}
    assert all(row["p99_us"] for row in rows if row["level"] == "api")
    tables = command_line("show", "--output", str(run.output)).stdout
    assert "Produce v11" in tables
    assert "orders" in tables


def test_without_a_broker_it_says_so_in_one_sentence_and_exits_3(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = command_line("run", "--bootstrap-servers", address, "--output", str(tmp_path))
    assert ended.returncode == 3
    (sentence,) = [line for line in ended.stderr.splitlines() if "incubator modules" not in line]
    assert sentence.startswith(f"kafka-probe-pipeline: Kafka at {address} cannot be used (")


def test_a_table_without_its_checkpoint_is_not_counted_again(run: Run) -> None:
    run.send(records=1)
    run.once()
    shutil.rmtree(run.output / "checkpoint")
    ended = command_line(*run.flags("--once"))
    assert ended.returncode == 3
    assert "its checkpoint" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("run",), 2, "--bootstrap-servers is missing"),
        (("run", "--windows", "5"), 2, "No such option"),
        (("run", "--bootstrap-servers", "b:1", "--window", "0"), 2, "--window: must be greater than 0"),
        (("run", "--bootstrap-servers", "b:1", "--kafka-option", "x"), 2, "must be key=value"),
        (("run", "--bootstrap-servers", "b:1", "--jars-dir", "/nowhere"), 3, "No jars in /nowhere"),
        (("show", "--output", "/nowhere"), 3, "There is no table at /nowhere/traffic"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(arguments: tuple[str, ...], status: int, said: str) -> None:
    ended = command_line(*arguments)
    assert (ended.returncode, said in ended.stderr, "Traceback" in ended.stderr) == (status, True, False), ended.stderr


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafka_probe_pipeline.job", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
