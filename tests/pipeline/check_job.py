"""The job on real brokers for minutes: killed, stopped, without brokers, started by spark-submit, and maintained.

Part of `make test-long`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafka_probe_pipeline import job
from kafka_probe_pipeline.maintenance import Maintenance
from kafka_probe_pipeline.spark_session import FETCHED_JARS
from kafka_probe_pipeline.traffic import summed
from tests.builders.connection_ends import EXITED
from tests.builders.spark_events import BROKER, CLIENT, agent_event, closed, flow, opened, requested
from tests.builders.storm_events import dropped_at_once
from tests.lab.alertmanager import Receiver
from tests.lab.broker import Broker
from tests.lab.pipeline_job import LIMIT_S, Moment, Run, command_line
from tests.lab.processes import free_port, tail, wait_until
from tests.lab.spark import ACTIVE

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def run(broker: Broker, tmp_path: Path) -> Run:
    return Run(broker, tmp_path)


def with_half_a_batch(run: Run) -> bool:
    """Return True if files of the batch are written and not yet committed."""
    log = "".join(commit.read_text() for commit in run.output.glob("traffic/_delta_log/*.json"))
    return any(file.name not in log for file in run.output.glob("traffic/date=*/*.parquet"))


def with_a_batch_that_spark_does_not_know_of(run: Run) -> bool:
    """Return True if the batch is in the table, and Spark has not committed it.

    Its Kafka rows are on their way.
    """
    return run.written("traffic") > run.commits()


def starting(run: Run) -> bool:
    """Return True if the job has a session, and perhaps no queries yet."""
    return " Reading " in run.log.read_text()


def test_killed_at_any_moment_the_table_counts_each_event_once_and_the_last_row_per_key_is_right(
    run: Run, spark: SparkSession
) -> None:
    moments: list[Moment] = [
        Run.in_a_batch,
        with_half_a_batch,
        with_a_batch_that_spark_does_not_know_of,
    ]
    for moment in moments:
        run.send(records=10)
        with run.job("--max-records-per-trigger", "30") as process:
            run.wait_until(moment, process)
    run.once(spark)

    table = run.table(spark)
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


def test_while_the_brokers_are_away_it_waits_and_then_counts_each_event_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    # Shorter than Kafka's minute.
    impatient = [f"--kafka-option={name}.timeout.ms=3000" for name in ("request", "default.api")]
    with Broker(tmp_path / "broker") as broker:
        run = Run(broker, tmp_path)
        run.send(records=2)
        with run.job(*impatient, env={"SPARK_SUBMIT_OPTS": ""}) as process:  # with code that Spark generates
            run.wait_until(with_its_batch_done, process)
            broker.stop()
            run.wait_until(waiting_for_brokers, process)
            broker.start()
            run.send(records=2)
            run.wait_until(with_another_batch_done, process)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 0, tail(run.log)
        run.once(spark)
        table = run.table(spark)
        (total,) = table.where("level = 'api'").transform(summed, ()).collect()
        assert total["requests"] == run.expected()["requests"]


def with_its_batch_done(run: Run) -> bool:
    """Return True if Spark regards a batch as done."""
    return run.commits() > 0


def waiting_for_brokers(run: Run) -> bool:
    """Return True if the job has given up a stream but still runs."""
    return f"Brokers {run.broker.bootstrap} unreachable" in run.log.read_text()


def with_another_batch_done(run: Run) -> bool:
    """Return True if the job has processed another batch since then."""
    return run.commits() > 1


def test_a_java_process_that_is_killed_ends_the_job_with_a_sentence(run: Run) -> None:
    run.send(records=2)
    with run.job() as process:
        run.wait_until(with_its_batch_done, process)
        (java,) = [child for child in psutil.Process(process.pid).children() if child.name() == "java"]
        java.kill()
        assert process.wait(LIMIT_S) == 1
    assert tail(run.log).splitlines()[-1].startswith("kafka-probe-pipeline: Spark's Java process ended. ")


def in_a_batch_of_the_storm(run: Run) -> bool:
    """Return True if the verdicts of a batch are written, and Spark has not committed it."""
    batches = len([*(run.output / "connections_checkpoint" / "offsets").glob("[0-9]*")])
    done = len([*(run.output / "connections_checkpoint" / "commits").glob("[0-9]*")])
    return batches > done and run.written("verdicts") > 1


def test_killed_in_the_middle_of_a_storm_it_goes_on_with_the_same_alert_and_loses_no_close(
    run: Run, tmp_path: Path, spark: SparkSession
) -> None:
    ends = [opened(end, number) for number in range(300) for end in (CLIENT, BROKER)]
    with Receiver(tmp_path / "alertmanager") as receiver:
        url = ("--alertmanager-url", receiver.url)
        run.send_events(*ends, *dropped_at_once(range(100)), agent_event(BROKER, until_s=100))
        with run.job(*url) as process:
            wait_until(lambda: bool(receiver.alerts()), "the alert", timeout_s=LIMIT_S)
            run.send_events(*dropped_at_once(range(100, 300)), agent_event(BROKER, until_s=101))
            run.wait_until(in_a_batch_of_the_storm, process)
        with run.job(*url):
            wait_until(lambda: "300 connections closed" in summaries(receiver), "the whole storm", timeout_s=LIMIT_S)
            ((key, summary),) = {(key, str(message["summary"])) for key, message in run.received(run.alerts)[-1:]}
            wait_until(lambda: f"Alert {key} was updated: {summary}.\n" in run.log.read_text(), "the log to say so")
        assert len(receiver.alerts()) == 1
    with Receiver(tmp_path / "another") as receiver, run.job("--alertmanager-url", receiver.url):
        wait_until(lambda: "300 connections closed" in summaries(receiver), "the late one to get it", timeout_s=LIMIT_S)

    messages = run.received(run.alerts)
    assert {key for key, _ in messages} == {key}
    assert {key: message["count"] for key, message in messages} == {messages[0][0]: 300}
    run.once(spark)  # the job may have been killed before it committed the rows
    verdicts = run.table(spark, "verdicts")
    assert verdicts.groupBy("cause").count().collect() == [("middlebox_reset", 300)]
    assert verdicts.select("key").distinct().count() == 300
    for name, rows in (("opens", 600), ("closes", 300)):
        events = run.buffered(spark, name).select("agent_id", "seq")
        assert (events.count(), events.distinct().count()) == (rows, rows)


def summaries(receiver: Receiver) -> str:
    return " ".join(alert["annotations"]["summary"] for alert in receiver.alerts())


@pytest.mark.parametrize(("moment", "number"), [(Run.in_a_batch, signal.SIGINT), (starting, signal.SIGTERM)])
def test_asked_to_stop_it_ends_with_status_0_says_nothing_else_and_goes_on_later(
    run: Run, spark: SparkSession, moment: Moment, number: signal.Signals
) -> None:
    run.send(records=2)
    with run.job() as process:
        run.wait_until(moment, process)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0, tail(run.log)
    lines = run.log.read_text().splitlines()
    assert [line for line in lines if not re.match(r"[\d:]{8} (INFO|WARNING) |.* incubator modules: ", line)] == []
    run.send(records=2)
    run.once(spark)
    table = run.table(spark)
    (total,) = table.where("level = 'api'").transform(summed, ()).collect()
    assert total["requests"] == run.expected()["requests"]


def test_a_second_signal_ends_it_and_its_jvm_at_once(run: Run) -> None:
    run.send(records=1)
    with run.job() as process:
        run.wait_until(Run.in_a_batch, process)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert psutil.wait_procs(family, timeout=10)[1] == []


def test_started_by_spark_submit_it_does_the_same(run: Run, spark: SparkSession) -> None:
    run.send(records=1)
    jars = ",".join(str(jar) for jar in FETCHED_JARS.glob("*.jar"))
    script = str(Path(job.__file__))
    local = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1")
    quickly = ("--driver-java-options", "-XX:TieredStopAtLevel=1", "--conf", "spark.sql.shuffle.partitions=5")
    command = ["spark-submit", *local, *quickly, "--jars", jars, script, *run.flags("--once")]
    finished = subprocess.run(command, env=os.environ | ACTIVE, capture_output=True, text=True, timeout=LIMIT_S)
    assert finished.returncode == 0, finished.stderr[-3000:]
    totals = run.table(spark).groupBy("level", "topic").agg(F.sum("requests")).collect()
    assert {tuple(row) for row in totals} == {("api", None, 6), ("topic", "orders", 6)}
    files = [file.name for file in run.output.glob("traffic/date=*/part-*")]
    assert max(int(name.split("-")[1]) for name in files) > 1, "of the partitions that spark-submit asks for"


def test_both_queries_go_on_while_their_tables_lose_dates(broker: Broker, tmp_path: Path, spark: SparkSession) -> None:
    names = ("traffic", "requests", "opens", "closes", "verdicts", "agents")
    run = Run(broker, tmp_path, retain=",".join(f"{name}=1d" for name in names))

    def send(connection: int) -> None:
        ends = [opened(CLIENT, connection), opened(BROKER, connection)]
        closes = [closed(CLIENT, connection, **EXITED), closed(BROKER, connection)]
        reports = [agent_event(end, until_s=60 * connection + 1) for end in (CLIENT, BROKER)]
        run.send_events(flow(connection), requested(CLIENT, connection), *ends, *closes, *reports)

    def sizes() -> list[int]:
        return [run.table(spark, name).count() for name in names]

    queries = run.queries(spark)
    try:
        for connection in (1, 2):
            send(connection)
            wait_until(lambda: all(sizes()), "rows in all tables", timeout_s=120)
            Maintenance(spark, run.config).run(datetime.now(UTC) + timedelta(days=9))
            assert not any(sizes())
        assert [query.exception() for query in queries] == [None, None]
    finally:
        for query in queries:
            query.stop()


def test_a_start_that_is_refused_leaves_the_output_to_the_job_that_has_it(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    run = Run(broker, tmp_path)
    run.send(records=1)
    run.once(spark)
    (run.output / "job").write_text("another")
    with run.job("--checkpoint-dir", str(tmp_path / "elsewhere")) as process:
        assert process.wait(LIMIT_S) == 3, tail(run.log)
    assert (run.output / "job").read_text() == "another"


def test_without_a_broker_it_says_so_in_one_sentence_and_exits_3(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = command_line("run", "--bootstrap-servers", address, "--output", str(tmp_path))
    assert ended.returncode == 3
    (sentence,) = [line for line in ended.stderr.splitlines() if "incubator modules" not in line]
    assert sentence.startswith(f"kafka-probe-pipeline: Kafka at {address} cannot be used (")
