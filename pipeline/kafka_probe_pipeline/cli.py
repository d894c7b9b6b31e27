"""The command line: `kafka-probe-pipeline run`, which SIGINT and SIGTERM end with status 0, a second one at once."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from types import FrameType

import click
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe.text import LineFormatter, printable_lines
from kafka_probe_pipeline import output, spark_session, supervisor, topics, verdicts
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.archive_query import ArchiveQuery
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.diagnosis_query import Diagnosis
from kafka_probe_pipeline.errors import last_cause
from kafka_probe_pipeline.flags import flags
from kafka_probe_pipeline.maintenance import Maintenance
from kafka_probe_pipeline.progress import Progress, listed
from kafka_probe_pipeline.traffic_query import TrafficQuery

TIMES_OF_WRITERS = (
    "Writers of %s set the timestamps of its records, so a forged record can stop the job. Make the brokers set "
    "them: kafka-configs.sh --alter --topic ... --add-config message.timestamp.type=LogAppendTime"
)

log = logging.getLogger("kafka_probe_pipeline")


@click.group()
@click.version_option(package_name="kafka-probe")
def cli() -> None:
    """Combine the events of kafka-probe's agents: traffic by client and topic, and why connections close."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    handler.addFilter(logging.Filter(log.name))  # py4j logs that a stop interrupts its calls
    logging.basicConfig(handlers=[handler])
    log.setLevel(logging.INFO)


@cli.command()
@flags
def run(**given: object) -> None:
    """Read the events topic, update the tables and topics, and send alerts on storms."""
    config = load(given)
    if not config.bootstrap_servers:
        raise UsageError("Set --bootstrap-servers to host:port of a broker with the events topic.")
    if config.frames_topic == config.events_topic:
        raise UsageError("--frames-topic must differ from --events-topic.")
    if not config.agent_silent <= config.closed_limit < config.open_limit:
        raise UsageError("Set --closed-limit to at least --agent-silent and less than --open-limit.")
    receivers = tuple(Alertmanager(url) for url in config.alertmanager_url.split(",") if url)
    spark = spark_session.start(config.master, config.jars_dir, brief=config.once)
    with _stopped_after(spark):
        spark_session.require_jars(spark)
        verdicts.require_executors(spark)  # waits for them
        stopping = _set_by_signals()  # after the session, which sets a handler of its own
        progress = Progress()
        if config.listen:
            progress.serve(config.listen)
        created = topics.create_missing(spark, config)
        for topic in (config.events_topic, *((config.frames_topic,) if config.archives else ())):
            if topics.has_times_of_writers(spark, config, topic):
                log.warning(TIMES_OF_WRITERS, topic)
        traffic = TrafficQuery.of(spark, config, progress)
        with ExitStack() as stack:
            for receiver in receivers:
                stack.enter_context(receiver)
            stack.enter_context(Maintenance(spark, config))
            diagnosis, archive = Diagnosis(config, progress, receivers), ArchiveQuery(config, progress)
            supervisor.require_checkpoints(spark, config, traffic)  # before another job is stopped for this one
            output.take_over(spark, config)
            diagnosis.resume(spark)
            log.info("Reading %s at %s%s.", config.events_topic, config.bootstrap_servers, listed("created", created))
            supervisor.run_through_outages(
                spark, config, lambda: supervisor.start(spark, config, traffic, diagnosis, archive), progress, stopping
            )
        log.info("Stopped; the tables are in %s%s.", config.output, listed("malformed", progress.malformed))


@contextmanager
def _stopped_after(spark: SparkSession) -> Iterator[None]:
    """Stop Spark after the block. Its errors become one sentence before that, because the JVM has their texts."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise KafkaProbeError(last_cause(error)) from None
    except BrokenPipeError:  # of standard output
        raise
    except (ConnectionError, Py4JNetworkError):
        raise KafkaProbeError(
            "Spark's Java process ended. If it was out of memory, start the job with more by `spark-submit "
            "--driver-memory`, or lower --max-records-per-trigger."
        ) from None
    finally:
        spark_session.stop(spark)


def _set_by_signals() -> Event:
    """Return an event that SIGINT or SIGTERM sets. A second signal ends the process at once."""
    stopping = Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            spark_session.kill()
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stopping


def main() -> None:
    """Run the command; an error is one sentence and an exit status."""
    try:
        cli.main(prog_name="kafka-probe-pipeline")
    except KafkaProbeError as error:
        print(f"kafka-probe-pipeline: {printable_lines(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
