"""Runs the job as a process, with its own topics and output directory, which tests start and kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafka_probe_pipeline import output, supervisor, topics
from kafka_probe_pipeline.archive_query import ArchiveQuery
from kafka_probe_pipeline.buffered_table import BufferedTable
from kafka_probe_pipeline.config import PipelineConfig, flag_of, load
from kafka_probe_pipeline.diagnosis_query import Diagnosis
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.tables import Table
from kafka_probe_pipeline.traffic_query import TrafficQuery
from tests.builders.spark_events import NOON_US, Event, flow, lines
from tests.lab import processes
from tests.lab.broker import Broker
from tests.lab.processes import tail, wait_until

LONG_AGO_US, FAR_AHEAD_US = NOON_US - 30 * 86_400_000_000, NOON_US + 3650 * 86_400_000_000
LIMIT_S = 300  # starting Spark takes 10 s of two idle cores, minutes of busy ones
# For a job that ends after some micro-batches: to compile code takes longer than to run it.
_BRIEF = {
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
}
_numbers = count()

Moment = Callable[["Run"], bool]


class Run:
    """A set of topics and an output directory, on which the job can run any number of times.

    often: it looks for events several times a second instead of at the default interval. archive: it keeps frames,
    which takes the time of one more query. settings: further ones, such as another `output` than that below
    `directory`.
    """

    def __init__(
        self, broker: Broker, directory: Path, *, often: bool = True, archive: bool = False, **settings: object
    ) -> None:
        number = next(_numbers)
        self.broker, self.output, self.log = broker, directory / "output", directory / "job.log"
        kinds = ("events", "traffic", "dead", "alerts")
        self.events, self.traffic, self.dead, self.alerts = (f"{kind}-{number}" for kind in kinds)
        self.frames = f"frames-{number}" if archive else ""
        self.seq = 0
        self.progress = Progress()
        queries = ("trigger", "verdict", "archive")
        intervals = {**{f"{query}_interval": 0.2 for query in queries}, "table_interval": 0} if often else {}
        self._more = {**intervals, **settings}

    def flags(self, *more: str) -> list[str]:
        settings = (part for name, value in self._settings.items() for part in (flag_of(name), str(value)))
        return ["run", *settings, *more]

    @property
    def config(self) -> PipelineConfig:
        """Return the configuration of the job."""
        return load(self._settings)

    @property
    def _settings(self) -> dict[str, object]:
        return {
            "bootstrap_servers": self.broker.bootstrap,
            "events_topic": self.events,
            "frames_topic": self.frames or "off",
            "traffic_topic": self.traffic,
            "dead_letter_topic": self.dead,
            "alerts_topic": self.alerts,
            "output": str(self.output),
            **self._more,
        }

    def send(self, records: int) -> None:
        """Send records of two agents, with three events each, one of them twice, and a malformed line."""
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

    def send_events(self, *events: Event, at_ms: int | None = None) -> None:
        """Send one record, which may be larger than a broker accepts uncompressed."""
        self.send_lines(lines(*events), at_ms=at_ms)

    def send_frames(self, *events: Event) -> None:
        """Send one record to the topic of frames."""
        self.send_lines(lines(*events), topic=self.frames)

    def send_lines(self, text: str, *, at_ms: int | None = None, topic: str | None = None) -> None:
        """Send one record of these lines, by default to the topic of events."""
        producer = KafkaProducer(
            bootstrap_servers=self.broker.bootstrap, compression_type="zstd", max_request_size=64 << 20
        )
        producer.send(topic or self.events, value=text.encode(), timestamp_ms=at_ms).get(10)
        producer.close()

    def expected(self) -> dict[str, int]:
        """Return the expected sums of API rows and topic rows, counted from what was sent."""
        per_agent = range(0, self.seq, 3)
        return {
            "requests": 2 * self.seq,
            "request_bytes": 6 * sum(100 + seq for seq in per_agent),
            "records": 6 * sum(per_agent),
        }

    @contextmanager
    def job(self, *more: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "kafka_probe_pipeline.job", *self.flags(*more)]
        process = processes.start(command, log=self.log, env={**_BRIEF, **(env or {})})
        try:
            yield process
        finally:
            processes.kill_family(process)

    def once(self, spark: SparkSession, **settings: object) -> None:
        """Process all events in this process: with the existing session that takes a tenth of the time."""
        for query in self.queries(spark, once=True, **settings):
            query.awaitTermination()

    def queries(self, spark: SparkSession, **settings: object) -> list[StreamingQuery]:
        """Start the streams of traffic and diagnosis in this process, and that of the archive if there is one."""
        config = load({**self._settings, **settings})
        topics.create_missing(spark, config)
        output.take_over(spark, config)
        traffic = TrafficQuery.of(spark, config, self.progress)
        diagnosis, archive = Diagnosis(config, self.progress), ArchiveQuery(config, self.progress)
        return supervisor.start(spark, config, traffic, diagnosis, archive)

    def has_times_of_writers(self, spark: SparkSession) -> bool:
        """Return True if writers set the times of the events topic's records."""
        return topics.has_times_of_writers(spark, self.config, self.events)

    def table(self, spark: SparkSession, name: str = "traffic") -> DataFrame:
        """Return the rows of one of the job's tables."""
        return Table(spark, self.config, name).read()

    def buffered(self, spark: SparkSession, name: str) -> DataFrame:
        """Return the rows of one of the job's buffered tables, committed or not."""
        return BufferedTable.of(spark, self.config, name, {}).read()

    def wait_until(self, moment: Moment, process: subprocess.Popen[bytes]) -> None:
        """Wait for the condition while the job must keep running."""
        name = moment.__name__.replace("_", " ")
        every_s = 0.2 if str(self.output).startswith("s3a:") else 0.01  # moto answers one request at a time
        wait_until(
            lambda: moment(self) or process.poll() is not None, f"the job {name}", timeout_s=LIMIT_S, every_s=every_s
        )
        assert process.poll() is None, tail(self.log)

    def written(self, name: str) -> int:
        """Return the number of micro-batches that have written to a table."""
        return len([*(self.output / name / "_delta_log").glob("[0-9]*.json")])

    def commits(self) -> int:
        """Return the number of micro-batches that Spark regards as done."""
        return len([*(self.output / "checkpoint" / "commits").glob("[0-9]*")])

    def in_a_batch(self) -> bool:
        """Return True if the offsets of a micro-batch are written and Spark does not regard it as done."""
        return len([*(self.output / "checkpoint" / "offsets").glob("[0-9]*")]) > self.commits()

    def received(self, topic: str) -> list[tuple[str, dict[str, object]]]:
        """Return all records of a topic, partition by partition in order."""
        consumer = KafkaConsumer(bootstrap_servers=self.broker.bootstrap, auto_offset_reset="earliest")
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        received = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for batch in consumer.poll(timeout_ms=500).values():
                received += [(record.key.decode(), json.loads(record.value)) for record in batch]
        consumer.close()
        return received


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafka_probe_pipeline.job", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
