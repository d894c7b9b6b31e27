"""The job with its tables on HDFS and on S3: killed, replaced by another job, and without its store.

Part of `make test-nodes`. HDFS is a real NameNode and DataNode. S3 is moto's server, reached by Hadoop's own s3a: the
service itself does not run here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_probe_pipeline import hadoop, spark_session
from kafka_probe_pipeline.output import MANAGER_SETTING
from kafka_probe_pipeline.spark_session import FETCHED_JARS
from kafka_probe_pipeline.tables import Table
from kafka_probe_pipeline.traffic import summed
from tests.builders.spark_events import BROKER, CLIENT, agent_event, closed, frames_event, opened, requested
from tests.builders.storm_events import dropped_at_once
from tests.lab import s3
from tests.lab.broker import Broker
from tests.lab.hdfs import Hdfs
from tests.lab.pipeline_job import LIMIT_S, Moment, Run
from tests.lab.processes import tail
from tests.lab.s3 import S3

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

# Connections of each `send`: both ends of some are closed, the others belong to one storm.
CONNECTIONS, DROPPED, FRAMES = 4, 20, 3
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Store:
    """The place of tables and checkpoints, and how a job reaches them. `flags` and `env`: of its process."""

    run: Run
    spark: SparkSession
    flags: tuple[str, ...]
    env: dict[str, str]

    def send(self, records: int) -> None:
        """Send records of traffic, requests, connections whose both ends were closed, closes of a storm, and frames."""
        self.run.send(records)
        numbers = [next(_numbers) for _ in range(CONNECTIONS)]
        dropped = [next(_numbers) for _ in range(DROPPED)]
        opens = [opened(end, number) for number in (*numbers, *dropped) for end in (CLIENT, BROKER)]
        closes = [closed(end, number) for number in numbers for end in (CLIENT, BROKER)]
        named = {"topic": f"topic-{numbers[0]}", "topic_id": f"id-{numbers[0]}", "records": 1}
        requests = [requested(CLIENT, number, topics=[named]) for number in numbers]
        reports = (agent_event(end, until_s=121) for end in (CLIENT, BROKER))
        self.run.send_events(*opens, *requests, *closes, *dropped_at_once(dropped), *reports)
        data = [b"%d" % next(_numbers) for _ in range(FRAMES)]
        self.run.send_frames(frames_event(*data, seq=next(_numbers)))

    def names(self, pattern: str) -> list[str]:
        return hadoop.names(self.spark, pattern)

    def commits(self) -> int:
        """Return the number of micro-batches of traffic that Spark regards as done."""
        return len(self.names(f"{self.run.config.checkpoint}/commits/[0-9]*"))

    def moments(self) -> list[Moment]:
        """Return the moments at which to kill the job."""
        config = self.run.config
        log = f"{config.output}/traffic/_delta_log"

        def in_a_batch(_run: Run) -> bool:
            return len(self.names(f"{config.checkpoint}/offsets/[0-9]*")) > self.commits()

        def with_half_a_batch(_run: Run) -> bool:
            files = self.names(f"{config.output}/traffic/date=*/*.parquet")
            committed = "".join(hadoop.read(self.spark, f"{log}/{name}") for name in self.names(f"{log}/[0-9]*.json"))
            return any(file not in committed for file in files)

        def with_a_batch_that_spark_does_not_know_of(_run: Run) -> bool:
            return len(self.names(f"{log}/[0-9]*.json")) > self.commits()

        def with_frames_that_spark_does_not_know_of(_run: Run) -> bool:
            written = self.names(f"{config.output}/frames/_delta_log/[0-9]*.json")
            return len(written) > len(self.names(f"{config.checkpoints['archive']}/commits/[0-9]*"))

        return [
            in_a_batch,
            with_half_a_batch,
            with_a_batch_that_spark_does_not_know_of,
            with_frames_that_spark_does_not_know_of,
        ]

    def check_tables(self, sends: int) -> None:
        """Check that the tables have everything that was sent, once."""
        run = self.run
        (total,) = run.table(self.spark).where("level = 'api'").transform(summed, ()).collect()
        expected = run.expected()
        assert {name: total[name] for name in expected} == expected
        expected_rows = {
            "opens": ("seq", 2 * (CONNECTIONS + DROPPED)),
            "closes": ("seq", 2 * CONNECTIONS + DROPPED),
            "verdicts": ("key", CONNECTIONS + DROPPED),
            "requests": ("seq", CONNECTIONS),
            "topic_names": ("topic_id", 1),
            "agents": ("seq", 2),
            "frames": ("data", FRAMES),
        }
        for name, (key, per_send) in expected_rows.items():
            rows = [str(row[key]) for row in run.table(self.spark, name).select(key).collect()]
            assert len(rows) == len(set(rows)) == sends * per_send, name
        storms = [(row["cause"], row["count"]) for row in run.table(self.spark, "storms").collect()]
        assert len(storms) == len(set(storms))
        assert max(storms) == ("middlebox_reset", sends * DROPPED)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    with Broker(directory / "broker") as broker:
        yield broker


@pytest.fixture(scope="module")
def hdfs(directory: Path) -> Iterator[Hdfs]:
    with Hdfs(directory / "hdfs") as hdfs:
        yield hdfs


@pytest.fixture(scope="module")
def bucket(directory: Path) -> Iterator[S3]:
    with S3(directory) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def jars(directory: Path) -> Path:
    """Return a folder with the jars of the job and those of S3."""
    jars = directory / "jars"
    jars.mkdir()
    for jar in (*FETCHED_JARS.glob("*.jar"), *s3.JARS.glob("*.jar")):
        (jars / jar.name).symlink_to(jar)
    return jars


@pytest.fixture(scope="module")
def env(directory: Path, bucket: S3) -> dict[str, str]:
    """Return the environment of a process whose Spark reaches S3."""
    (directory / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in bucket.settings.items())
    )
    return {"SPARK_CONF_DIR": str(directory)}


@pytest.fixture(scope="module")
def spark(env: dict[str, str], jars: Path) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setitem(os.environ, name, value)
        spark = spark_session.start(jars_dir=jars)
    yield spark
    spark.stop()


@pytest.fixture(autouse=True)
def _own_manager_of_checkpoints(spark: SparkSession) -> Iterator[None]:
    """Make Spark use its own manager in the next test: a job on S3 sets another for the whole session."""
    yield
    spark.sparkContext._jsc.hadoopConfiguration().unset(MANAGER_SETTING)


@pytest.fixture(params=["disk", "hdfs", "s3"])
def store(
    request: pytest.FixtureRequest,
    broker: Broker,
    hdfs: Hdfs,
    spark: SparkSession,
    jars: Path,
    env: dict[str, str],
    tmp_path: Path,
) -> Store:
    return _store(request.param, broker, hdfs, spark, jars, env, tmp_path)


def _store(
    kind: str, broker: Broker, hdfs: Hdfs, spark: SparkSession, jars: Path, env: dict[str, str], tmp_path: Path
) -> Store:
    if kind == "disk":
        return Store(Run(broker, tmp_path, archive=True), spark, (), {})
    if kind == "hdfs":
        run = Run(broker, tmp_path, archive=True, output=f"{hdfs.uri}/{tmp_path.name}")
        return Store(run, spark, (), {})
    run = Run(broker, tmp_path, archive=True, output=f"s3a://{S3.bucket}/{tmp_path.name}")
    return Store(run, spark, ("--jars-dir", str(jars)), env)


def test_killed_at_any_moment_every_table_has_each_event_once(store: Store) -> None:
    sends = 0
    for moment in store.moments():
        store.send(records=20)
        sends += 1
        with store.run.job("--max-records-per-trigger", "10", *store.flags, env=store.env) as process:
            store.run.wait_until(moment, process)
    store.run.once(store.spark)
    store.check_tables(sends)

    config = store.run.config
    before = store.run.table(store.spark, "frames").inputFiles()
    Table(store.spark, config, "frames").merge_hours(datetime.now(UTC) + timedelta(hours=1), config.archive_file_bytes)
    files = store.run.table(store.spark, "frames").inputFiles()
    assert len(files) == len({file.rpartition("/")[0] for file in files}) < len(before), "one file of frames per hour"
    store.check_tables(sends)


def test_a_job_that_starts_takes_over_and_the_one_before_stops_itself(store: Store) -> None:
    store.send(records=2)
    with store.run.job(*store.flags, env=store.env) as process:

        def with_batches_of_both_queries_done(_run: Run) -> bool:
            return store.commits() > 0 and bool(
                store.names(f"{store.run.config.connections_checkpoint}/commits/[0-9]*")
            )

        store.run.wait_until(with_batches_of_both_queries_done, process)
        store.run.once(store.spark)
        store.send(records=2)
        assert process.wait(LIMIT_S) == 4, tail(store.run.log)
    assert f"Another job has taken over {store.run.config.output}." in store.run.log.read_text()
    store.run.once(store.spark)
    store.check_tables(2)


def test_without_its_store_the_job_ends_with_one_sentence_and_goes_on_later(
    broker: Broker, hdfs: Hdfs, spark: SparkSession, jars: Path, env: dict[str, str], tmp_path: Path
) -> None:
    store = _store("hdfs", broker, hdfs, spark, jars, env, tmp_path)
    store.send(records=2)
    with store.run.job() as process:

        def with_its_batch_done(_run: Run) -> bool:
            return store.commits() > 0

        store.run.wait_until(with_its_batch_done, process)
        hdfs.stop_name_node()
        try:
            store.send(records=2)
            assert process.wait(LIMIT_S) == 1, tail(store.run.log)
        finally:
            hdfs.start_name_node()
    log = store.run.log.read_text()
    assert log.count("kafka-probe-pipeline: The stream stopped: ") == 1, tail(store.run.log)
    assert "Traceback" not in log
    store.run.once(store.spark)
    store.check_tables(2)


def test_tables_on_s3_are_read_without_spark(
    broker: Broker, hdfs: Hdfs, bucket: S3, spark: SparkSession, jars: Path, env: dict[str, str], tmp_path: Path
) -> None:
    store = _store("s3", broker, hdfs, spark, jars, env, tmp_path)
    store.send(records=2)
    store.run.once(spark)
    options = {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "access",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    # Spark would also run with its own manager, which needs a rename.
    setting = "spark.sql.streaming.checkpointFileManagerClass"
    assert "Abortable" in spark.sparkContext._jsc.hadoopConfiguration().get(setting)
    uri = store.run.config.output.replace("s3a://", "s3://")
    for name in ("traffic", "opens", "closes", "verdicts"):
        found = DeltaTable(f"{uri}/{name}", storage_options=options).to_pandas()
        assert len(found) == store.run.table(spark, name).count() > 0, name
    traffic = DeltaTable(f"{uri}/traffic", storage_options=options).to_pandas()
    assert traffic[traffic["level"] == "api"]["requests"].sum() == store.run.expected()["requests"]


@pytest.mark.root
def test_on_a_full_disk_the_job_ends_with_one_sentence_and_goes_on_later(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
    try:
        store = Store(Run(broker, tmp_path, archive=True, output=str(disk / "output")), spark, (), {})
        store.send(records=2)
        with store.run.job() as process:

            def with_its_batch_done(_run: Run) -> bool:
                return store.commits() > 0

            store.run.wait_until(with_its_batch_done, process)
            filler = disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as full:
                while full.write(bytes(4096)):
                    pass
            store.send(records=2)
            assert process.wait(LIMIT_S) == 1, tail(store.run.log)
        log = store.run.log.read_text()
        assert log.count("kafka-probe-pipeline: ") == 1, tail(store.run.log)
        assert "No space left on device" in log.splitlines()[-1]
        assert "Traceback" not in log
        filler.unlink()
        store.run.once(spark)
        store.check_tables(2)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.root
def test_where_it_may_not_write_the_job_ends_with_one_sentence(broker: Broker, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], check=True)
    try:
        run = Run(broker, tmp_path, output=str(disk / "output"))
        with run.job() as process:
            assert process.wait(LIMIT_S) == 1, tail(run.log)
    finally:
        subprocess.run(["umount", disk], check=True)
    log = run.log.read_text()
    assert log.count("kafka-probe-pipeline: ") == 1, tail(run.log)
    assert f"kafka-probe-pipeline: Cannot access {run.config.output}" in log.splitlines()[-1]
    assert "Traceback" not in log
