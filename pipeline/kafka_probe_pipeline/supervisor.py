"""Runs the streaming queries, each at its own pace: traffic, the diagnosis of closed connections, and the archive.

It starts them again after outages of the brokers. A query that is interrupted at any moment continues where it was.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafka_probe.errors import KafkaProbeError, StartError
from kafka_probe_pipeline import output, source, spark_session, topics
from kafka_probe_pipeline.archive_query import ArchiveQuery
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.diagnosis_query import Diagnosis, Tables
from kafka_probe_pipeline.errors import AwayError, OutputError, last_cause
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.tables import TABLES, Table
from kafka_probe_pipeline.traffic_query import TrafficQuery

_RETRY_S = 1.0
_LOOK_S = 1.0  # how often a query looks whether its next micro-batch is due
_ARCHIVE_LOOK_S = 5.0  # nothing waits for frames
# Messages of Kafka's client and Spark's reader if no broker answers, or the brokers' names no longer resolve.
OF_BROKERS_AWAY = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect)Exception|TimeoutException: Cannot fetch record"
    r"|Failed to create new KafkaAdminClient|No resolvable bootstrap urls"
)

log = logging.getLogger("kafka_probe_pipeline")


def start(
    spark: SparkSession, config: PipelineConfig, traffic: TrafficQuery, diagnosis: Diagnosis, archive: ArchiveQuery
) -> list[StreamingQuery]:
    """Start the streams `traffic` and `diagnosis` from the events topic, and `archive` from that of frames.

    Raises:
        TakenOverError: another job has taken over the output.
        StartError: a table has no checkpoint or another one, so that events would be lost or count twice, or `--start`
            differs from that of the checkpoints.
    """
    output.require_owner(spark, config)
    require_checkpoints(spark, config, traffic)  # once more: the job before may have committed since
    diagnosis.commits.clear()  # another process may have committed since
    of_few_rows = spark_session.for_few_rows(spark.newSession())
    queries = [
        _start(spark, traffic, config.events_topic, config.trigger_interval, config),
        _start(of_few_rows, diagnosis, config.events_topic, config.verdict_interval, config),
    ]
    if config.archives and topics.may_read(spark, config, config.frames_topic):
        queries.append(_start(spark.newSession(), archive, config.frames_topic, config.archive_interval, config))
    return queries


def require_checkpoints(spark: SparkSession, config: PipelineConfig, traffic: TrafficQuery) -> None:
    """Raise StartError unless Spark can write the checkpoints, this release can read them, and the tables fit them."""
    output.prepare_checkpoints(spark, config)
    output.require_start(spark, config)
    for name in TABLES:
        Table(spark, config, name).require_checkpoint()
    diagnosed = Tables.of(spark, config)
    buffers = (table.buffer for table in diagnosed.buffered)
    for state in (traffic.seen_events, diagnosed.agents, diagnosed.connections, diagnosed.storms, *buffers):
        state.require_types()


def _start(
    spark: SparkSession,
    query: TrafficQuery | Diagnosis | ArchiveQuery,
    topic: str,
    interval_s: float,
    config: PipelineConfig,
) -> StreamingQuery:
    # A pool of its own, where Spark shares out its tasks (FAIR): what the query starts is in it.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
    # No event is newer than its micro-batch: a record from the future would else make all agents seem silent for long.
    # Spark notes the time of a micro-batch, and takes the same time when it repeats the micro-batch.
    look_s = min(interval_s, _ARCHIVE_LOOK_S if query.name == "archive" else _LOOK_S)
    # Half a look less: else a look that comes a millisecond too early leaves the micro-batch to the next look.
    begin = output.begin(spark, config, query.name)
    records = source.records(spark, config, topic, begin, interval_s - look_s / 2).withColumn(
        "timestamp", F.least("timestamp", F.current_timestamp())
    )
    # Parsed here, not in each micro-batch: to make and to analyze a plan of that many expressions takes a second.
    parsed = records.transform(source.parsed, *query.kinds)
    writer = parsed.writeStream.queryName(query.name).foreachBatch(query)
    writer = writer.option("checkpointLocation", config.checkpoints[query.name])
    if config.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(look_s * 1000)} milliseconds").start()


def run_through_outages(
    spark: SparkSession,
    config: PipelineConfig,
    begin: Callable[[], Sequence[StreamingQuery]],
    progress: Progress,
    stopping: Event,
) -> None:
    """Run the queries that `begin` starts, and start them again after an outage of the brokers.

    Raises:
        TakenOverError: another job has taken over the output, which a query may have failed of.
        KafkaProbeError: a query failed for another reason, or with `--once`.
    """
    while not stopping.is_set():
        queries = begin()
        try:
            run_until_signal(queries, progress, stopping, once=config.once)
            break
        except AwayError as error:
            for query in queries:
                query.stop()
            if config.once:
                raise
            log.warning("Brokers %s unreachable; retrying. %s", config.bootstrap_servers, error)
        except KafkaProbeError:
            with suppress(OutputError):  # the output may be unreachable
                output.require_owner(spark, config)
            raise
        while not (stopping.is_set() or _answer(spark, config)):
            time.sleep(_RETRY_S)


def _answer(spark: SparkSession, config: PipelineConfig) -> bool:
    """Return True if the brokers answer. A topic that is gone is created again."""
    try:
        topics.create_missing(spark, config)
    except StartError:
        return False
    return True


def run_until_signal(
    queries: Sequence[StreamingQuery], progress: Progress, stopping: Event, *, once: bool = True
) -> None:
    """Wait until all queries have ended by themselves (`--once`), or `stopping` is set.

    Raises:
        AwayError: a query waited for Kafka's brokers in vain.
        KafkaProbeError: a query failed.
    """
    running = list(queries)
    while running and not stopping.is_set():
        # Await each query, so that the failure of one is noticed while others run.
        for query in list(running):
            if _has_ended(query, once=once):
                running.remove(query)
        progress.look(running)


def _has_ended(query: StreamingQuery, *, once: bool) -> bool:
    """Return True if the query has ended by itself. The archive may fail alone, unless the job is to end: `once`."""
    try:
        return bool(query.awaitTermination(1))
    except StreamingQueryException as error:
        away = OF_BROKERS_AWAY.search(str(error))
        if query.name == "archive" and not (away or once):
            log.warning("The archive stopped until the next start; the other queries go on. %s", last_cause(error))
            return True
        raise (AwayError if away else KafkaProbeError)(f"The stream stopped: {last_cause(error)}") from None
