"""The job on a real broker: events of every kind, starts that are refused, and commands that fail."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_probe.errors import KafkaProbeError, StartError
from kafka_probe_pipeline import agents, names, supervisor
from kafka_probe_pipeline.cli import cli
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.errors import AwayError
from kafka_probe_pipeline.messages import DEAD_LETTER_CHARACTERS
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.source import MOST_RECORD_BYTES
from kafka_probe_pipeline.traffic import summed
from tests.builders.spark_events import BROKER, CLIENT, agent_event, closed, flow, opened
from tests.lab.broker import Broker
from tests.lab.pipeline_job import LIMIT_S, Run, command_line
from tests.lab.processes import wait_until
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/guide/host.md", "docs/guide/pipeline.md", "docs/guide/disconnects.md")


@pytest.fixture
def run(broker: Broker, tmp_path: Path) -> Run:
    return Run(broker, tmp_path)


def test_no_query_waits_for_its_interval_while_it_is_behind(run: Run, spark: SparkSession) -> None:
    checkpoints = [run.output / name for name in ("checkpoint", "connections_checkpoint")]

    def done() -> list[int]:
        return [len([*(checkpoint / "commits").glob("[0-9]*")]) for checkpoint in checkpoints]

    run.send(records=5)  # of two agents each
    queries = run.queries(spark, trigger_interval=3600, verdict_interval=3600, max_records_per_trigger=4)
    try:
        wait_until(lambda: done() == [2, 2], "two micro-batches of four records", timeout_s=LIMIT_S)
        run.send(records=1)
        wait_until(lambda: done() == [3, 3], "a third one", timeout_s=LIMIT_S)
    finally:
        for query in queries:
            query.stop()
    for checkpoint in checkpoints:
        offsets = json.loads((checkpoint / "offsets" / "2").read_text().splitlines()[-1])
        assert sum(offsets[run.events].values()) == 12


def test_a_replayed_batch_sends_the_rows_of_the_table_again_even_if_the_window_was_changed(
    run: Run, spark: SparkSession
) -> None:
    run.send(records=1)
    run.once(spark)
    shutil.rmtree(run.output / "checkpoint" / "commits")
    run.once(spark, window=3600)
    sent = run.received(run.traffic)
    assert len(sent) == 2 * len(dict(sent))
    assert len(dict(sent)) == run.table(spark).count()


def test_what_an_agent_sends_again_after_a_crash_is_counted_once(run: Run, spark: SparkSession) -> None:
    run.send_events(flow(0), flow(1), flow(1, agent_id="another"))
    run.once(spark)
    run.send_events(agent_event("agent-1", seq=3))
    run.once(spark)  # no traffic
    run.send_events(flow(1), flow(2), flow(2, agent_id="another"))
    run.once(spark)
    (total,) = run.table(spark).where("level = 'api'").transform(summed, ()).collect()
    assert total["requests"] == 5


def test_forged_events_neither_silence_an_agent_nor_stop_the_job(run: Run, spark: SparkSession) -> None:
    """If the job accepted them, each of the first four would do so, again after every restart."""
    forged = [
        flow(2**63 - 1),
        flow(2**48),
        flow(10, client={"id": "x" * 10_000_000}),
        flow(11, client={"id": "\x01" * 30_000}),
        flow(12, requests=2**63 - 1),
    ]
    for event in (flow(0), *forged):
        run.send_events(event)
    run.once(spark)
    run.send_events(flow(0), flow(1), flow(2))
    run.once(spark)
    (total,) = run.table(spark).where("level = 'api'").transform(summed, ()).collect()
    assert total["requests"] == 4  # with that of 2^48, which an agent may have sent
    dead = {str(row["reason"]): len(str(row["line"])) for _, row in run.received(run.dead)}
    assert dead == {
        "seq below 0 or above 2^48": len(json.dumps(forged[0])),
        f"a record of more than {MOST_RECORD_BYTES} bytes": DEAD_LETTER_CHARACTERS,
        "a text of more than 2048 characters": DEAD_LETTER_CHARACTERS,
        "a count below 0 or beyond 2^48": len(json.dumps(forged[4])),
    }


def test_an_event_that_names_a_key_twice_does_not_stop_the_job(run: Run, spark: SparkSession) -> None:
    twice = json.dumps(opened(CLIENT)).replace('"workload": {', '"workload": {"labels": {"a": "1", "a": "2"}, ')
    run.send_lines(twice)
    run.once(spark)
    run.send_events(closed(BROKER), agent_event(CLIENT, until_s=100), agent_event(BROKER, until_s=100))
    run.once(spark)
    assert [row["labels"] for row in run.table(spark, "opens").select("workload.labels").collect()] == [{"a": "2"}]
    assert [row["labels"] for row in run.table(spark, "closes").select("workload.labels").collect()] == [None]


def test_the_log_counts_the_agents_that_are_forgotten(
    run: Run, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agents, "MOST_AGENTS", 2)
    run.send_events(flow(agent_id="1"), flow(agent_id="2"))
    run.once(spark)
    assert not [record for record in caplog.records if "agents" in record.message]
    run.send_events(*(flow(agent_id=str(number)) for number in range(3, 6)))
    run.once(spark)
    (warning,) = [record.message for record in caplog.records if "agents" in record.message]
    assert warning.startswith("Dropped the state of 3 agents")


def test_a_forged_time_of_a_record_does_not_stop_the_job(run: Run, spark: SparkSession) -> None:
    run.once(spark)
    assert not run.has_times_of_writers(spark)
    run.send_events(flow(0), at_ms=-(2**62))
    run.once(spark)
    assert run.table(spark).where("level = 'api'").count() == 1


def test_a_topic_with_times_of_writers_is_known(run: Run, spark: SparkSession) -> None:
    create_topics(run.broker.bootstrap, [run.events], partitions=1)
    run.once(spark)
    assert run.has_times_of_writers(spark)


def test_a_name_that_one_node_learned_names_the_rows_of_another_also_those_that_came_before(
    run: Run, spark: SparkSession
) -> None:
    early, late = "aa" * 16, "bb" * 16
    by_id = [{"topic_id": topic_id, "requests": 1} for topic_id in (early, late)]
    named = flow(0, agent_id="broker", kind="request", topics=[{"topic_id": early, "topic": "orders"}])
    now_us = round(time.time() * 1e6)
    run.send_events(named, flow(0, topics=by_id, ts=now_us))
    run.once(spark)
    named = flow(1, agent_id="broker", kind="topics", topics=[{"topic_id": late, "topic": "sales"}])
    run.send_events(named, flow(1, topics=by_id, ts=now_us))
    run.once(spark)

    rows = run.table(spark).where("level = 'topic'").transform(names.named, run.table(spark, "topic_names"))
    requests = rows.groupBy("topic").agg(F.sum("requests")).collect()
    assert {tuple(row) for row in requests} == {("orders", 2), ("sales", 2)}
    last = dict(run.received(run.traffic)).values()
    assert Counter(row["topic"] for row in last if row["level"] == "topic") == {"orders": 2, "sales": 2}


@pytest.mark.parametrize(
    ("message", "away"),
    [
        ("java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out", True),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 120000 milliseconds", True),
        ("terminated with exception: Failed to create new KafkaAdminClient SQLSTATE: XXKST", True),
        ("java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]", False),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", False),
    ],
)
def test_what_is_no_absence_of_brokers_ends_the_job(message: str, away: bool) -> None:
    assert bool(supervisor.OF_BROKERS_AWAY.search(message)) is away


def test_documented_commands_are_those_of_the_job() -> None:
    """Only their flags are read: `make demo` and other tests run the command itself."""
    written = "\n".join((ROOT / document).read_text() for document in DOCUMENTS)
    commands = set(re.findall(r"\.venv/bin/kafka-probe-pipeline ([^`\n]+)", written))
    assert commands
    for command in commands:
        name, *words = shlex.split(command)
        given = cli.commands[name].make_context(name, words).params
        assert load(given).bootstrap_servers == "kafka-1:9092"


def test_without_the_checkpoint_that_belongs_to_a_table_no_event_is_lost_or_counted_again(
    run: Run, spark: SparkSession
) -> None:
    run.send_events(flow(0))
    run.once(spark)
    directory = run.output / "checkpoint"
    older, newer = (directory.with_name(name) for name in ("older", "newer"))
    shutil.copytree(directory, older)
    run.send_events(flow(1))
    run.once(spark)
    rows = run.table(spark).count()
    directory.rename(newer)

    with pytest.raises(StartError, match=f"its checkpoint {directory} is missing"):
        run.once(spark)
    older.rename(directory)
    with pytest.raises(StartError, match=f"its checkpoint {directory} do not have the same batches"):
        run.once(spark)
    shutil.rmtree(directory)
    shutil.copytree(newer, directory)
    metadata = json.loads((directory / "metadata").read_text())
    (directory / "metadata").write_text(json.dumps({**metadata, "id": str(uuid4())}))
    with pytest.raises(StartError, match="do not have the same batches"):
        run.once(spark)
    shutil.rmtree(directory)
    newer.rename(directory)
    commits = [*(run.output / "traffic" / "_delta_log").glob("[0-9]*")]
    newest = max(commits)
    hidden = newest.rename(run.output / "hidden")
    with pytest.raises(StartError, match="do not have the same batches"):
        run.once(spark)
    hidden.rename(newest)
    run.once(spark)
    assert run.table(spark).count() == rows


def test_tables_of_an_older_release_are_refused(run: Run, spark: SparkSession) -> None:
    (run.output / "traffic" / "batch_id=0").mkdir(parents=True)
    with pytest.raises(StartError, match="was written by an older release"):
        run.once(spark)


@pytest.mark.parametrize(
    ("error", "reported"),
    [(AwayError("The disk is full."), r"The disk is full\."), (KeyError("seq"), "KeyError: 'seq'")],
)
def test_what_a_micro_batch_fails_of_is_reported_in_one_sentence(
    spark: SparkSession, error: Exception, reported: str
) -> None:
    def fails(_rows: DataFrame, _batch_id: int) -> None:
        raise error

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(fails).start()
    with pytest.raises(KafkaProbeError, match=rf"^The stream stopped: {reported}$"):
        supervisor.run_until_signal([query], Progress(), Event())


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (("run",), 2, "Set --bootstrap-servers to"),
        (("run", "--windows", "5"), 2, "No such option"),
        (("run", "--bootstrap-servers", "b:1", "--window", "0"), 2, "--window: must be greater than 0"),
        (("run", "--bootstrap-servers", "b:1", "--kafka-option", "x"), 2, "must be key=value"),
        (("run", "--bootstrap-servers", "b:1", "--jars-dir", "/nowhere"), 3, "No jars in /nowhere"),
    ],
)
def test_what_cannot_be_done_is_reported_in_one_sentence(arguments: tuple[str, ...], status: int, error: str) -> None:
    ended = command_line(*arguments)
    assert (ended.returncode, error in ended.stderr, "Traceback" in ended.stderr) == (status, True, False), ended.stderr
