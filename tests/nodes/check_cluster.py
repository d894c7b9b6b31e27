"""The pipeline on a real standalone cluster: executors are killed under it, and its tables are those of local mode.

Part of `make test-nodes`. Driver, master and workers are on one machine; what a worker does not share with the driver
is hidden from it in a mount namespace. The command is the guide's, but for addresses, memory and a fetched connector.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from kafka_probe_pipeline import agents, connections, spark_session, storms
from kafka_probe_pipeline.spark_session import FETCHED_JARS
from kafka_probe_pipeline.tables import TABLES
from kafka_probe_pipeline.versions import Versions
from tests.builders.host_events import round_of_host
from tests.builders.spark_events import BROKER, CLIENT, frames_event, lines
from tests.lab import processes
from tests.lab.broker import Broker
from tests.lab.http import get
from tests.lab.pipeline_job import LIMIT_S, Run
from tests.lab.processes import LabError, free_port, kill_family, tail, wait_until
from tests.lab.spark import ACTIVE, HOST, Cluster, documented
from tests.lab.topics import create_topics

pytestmark = [
    pytest.mark.root,
    pytest.mark.spark,
    pytest.mark.broker,
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROOT = Path(__file__).parents[2]
STATES = {"agents": agents.SCHEMA, "connections": connections.SCHEMA, "storms": storms.SCHEMA}
PARTITIONS, HOSTS, ROUNDS, CLOSES = 6, 4, 4, 10
RECORDS_PER_BATCH = 8
# Without the packages of this environment, which is a virtual one.
_PLAIN_PYTHON = Path(sys.base_prefix) / "bin" / "python3"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    with Broker(directory / "broker") as broker:
        yield broker


@pytest.fixture(scope="module")
def apart(directory: Path) -> Path:
    """Return a directory in whose place each worker sees one of its own."""
    apart = directory / "apart"
    apart.mkdir()
    return apart


@pytest.fixture(scope="module")
def cluster(directory: Path, apart: Path) -> Iterator[Cluster]:
    hide = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs {apart} && exec "$@"', "worker")
    with Cluster(directory / "spark", wrapper=hide) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = spark_session.start()
    yield spark
    spark.stop()


@dataclass(frozen=True, slots=True)
class Job:
    """The job as spark-submit started it, and the address of the driver's pages."""

    process: subprocess.Popen[bytes]
    pages: str

    def kill_an_executor_at_work(self, cluster: Cluster) -> bool:
        """Kill one that holds a part of a micro-batch and works on it; return True if there was one."""
        with suppress(OSError, ValueError):  # not there, or no JSON yet
            (application,) = get(self.pages).json()
            executors = get(f"{self.pages}/{application['id']}/executors").json()
            busy = [one["id"] for one in executors if one["rddBlocks"] and one["activeTasks"]]
            for number in set(busy).intersection(running := cluster.executors()):
                running[number].send_signal(signal.SIGKILL)
                return True
        return False


@contextmanager
def submitted(run: Run, cluster: Cluster, directory: Path, *flags: str, python: Path = _PLAIN_PYTHON) -> Iterator[Job]:
    """Run the job by the guide's command. python: the interpreter of the executors."""
    port = free_port()
    settings = {
        "spark.ui.port": port,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        # As in local mode, for the same reasons.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(python),
    }
    directory.mkdir()
    (directory / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    here = {
        "spark://spark-1:7077": cluster.master,
        "2g": "512m",
        "--packages": "--jars",
        spark_session.PACKAGES: ",".join(map(str, FETCHED_JARS.glob("*.jar"))),
    }
    command = documented("spark-submit --master spark:")
    words = [here.get(word, word) for word in command[: command.index("run")]]
    process = processes.start(
        [*words, *run.flags(*flags)],
        log=run.log,
        env=ACTIVE | {"SPARK_CONF_DIR": str(directory), "SPARK_LOCAL_IP": HOST},
        cwd=ROOT,
    )
    try:
        yield Job(process, f"http://{HOST}:{port}/api/v1/applications")
    finally:
        kill_family(process)


@pytest.fixture(scope="module")
def run(broker: Broker, directory: Path) -> Run:
    """Return a run with events of several agents, on several partitions."""
    run = Run(broker, directory / "on-the-cluster", archive=True)
    run.send_frames(*(frames_event(bytes([number])) for number in range(ROUNDS)))
    create_topics(broker.bootstrap, [run.events], partitions=PARTITIONS)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    sent = []
    for number in range(ROUNDS):
        for host in range(HOSTS):
            for end in (CLIENT, BROKER):
                events = round_of_host(host, end, number, first=(host * ROUNDS + number) * CLOSES, count=CLOSES)
                key = events[0]["agent_id"].encode()
                sent.append(producer.send(run.events, key=key, value=lines(*events).encode()))
    partitions = {one.get(10).partition for one in sent}
    producer.close()
    assert len(partitions) >= PARTITIONS / 2
    return run


@pytest.fixture(scope="module")
def run_on_the_cluster(run: Run, cluster: Cluster, directory: Path) -> Run:
    """Return a run in which two executors were killed, each in the middle of a micro-batch."""
    flags = ("--once", "--max-records-per-trigger", str(RECORDS_PER_BATCH))
    with submitted(run, cluster, directory / "conf", *flags) as job:
        for batches in (1, 2):
            lose_an_executor(run, job, cluster, after=batches)
        assert job.process.wait(LIMIT_S) == 0, tail(run.log)
    assert run.log.read_text().count("Lost executor") >= 2
    return run


def lose_an_executor(run: Run, job: Job, cluster: Cluster, *, after: int) -> None:
    """Kill an executor in the middle of the first suitable micro-batch of the diagnosis after this many."""
    commits = run.output / "connections_checkpoint" / "commits"

    def happened() -> bool:
        if job.process.poll() is not None:
            raise LabError(f"the job ended before:\n{tail(run.log)}")
        return len([*commits.glob("[0-9]*")]) >= after and job.kill_an_executor_at_work(cluster)

    wait_until(happened, f"an executor at work after {after} micro-batches", timeout_s=LIMIT_S)


def test_an_executor_that_is_killed_changes_no_table(
    run_on_the_cluster: Run, spark: SparkSession, broker: Broker, directory: Path
) -> None:
    local = Run(broker, directory / "local", archive=True)
    local.events, local.frames = run_on_the_cluster.events, run_on_the_cluster.frames
    local.once(spark, max_records_per_trigger=RECORDS_PER_BATCH)
    for name in TABLES:
        rows, expected = (contents(one.table(spark, name)) for one in (run_on_the_cluster, local))
        assert rows == expected, name
        assert rows, name
    for name in STATES:
        states = [newest_state(spark, one, name) for one in (run_on_the_cluster, local)]
        rows, expected = map(contents, states)
        assert rows == expected, name
        assert rows, name


def newest_state(spark: SparkSession, run: Run, name: str) -> DataFrame:
    """Return the newest version of a state of the diagnosis."""
    newest = Versions(spark, getattr(run.config, name), STATES[name]).newest()
    assert newest is not None
    return newest


def contents(table: DataFrame) -> list[str]:
    """Return the rows of a table as texts, sorted."""
    return sorted(json.dumps(row.asDict(recursive=True), sort_keys=True, default=str) for row in table.collect())


def test_executors_without_python_are_noticed_at_the_start(broker: Broker, cluster: Cluster, directory: Path) -> None:
    run = Run(broker, directory / "without-python")
    run.send(records=1)
    with submitted(run, cluster, directory / "conf-without-python", python=Path("/bin/false")) as job:
        assert job.process.wait(LIMIT_S) == 3, tail(run.log)
    assert "kafka-probe-pipeline: Executors cannot run this job's Python code: " in run.log.read_text()


def test_where_executors_have_disks_of_their_own_it_stops_before_anything_counts_as_done(
    run: Run, cluster: Cluster, broker: Broker, apart: Path, directory: Path
) -> None:
    lost = Run(broker, apart)
    lost.events = run.events
    lost.log = directory / "apart.log"
    with submitted(lost, cluster, directory / "conf-apart", "--once") as job:
        assert job.process.wait(LIMIT_S) == 1, tail(lost.log)
    assert (
        "kafka-probe-pipeline: The stream stopped: The driver cannot read all files that executors wrote to"
        in lost.log.read_text()
    )
    assert [*apart.glob("output/*/_delta_log/*.json"), *apart.glob("output/*/commits/[0-9]*")] == []
