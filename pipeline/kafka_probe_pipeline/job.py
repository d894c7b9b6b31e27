"""The composition root: `kafka-probe-pipeline run` streams, `kafka-probe-pipeline show` prints what there is.

Two queries read the events topic, each at its own pace: traffic is summed here, `diagnosis` says why connections end.
The same through spark-submit, from an environment that has the package:
`spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,... .../kafka_probe_pipeline/job.py run ...`
Executors run no Python. SIGINT and SIGTERM end `run` with status 0; killed at any moment, it goes on where it was.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event

import click
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafka_probe.text import LineFormatter, printable_lines
from kafka_probe_pipeline import connections, hadoop, names, report, session, source, storms, topics
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.config import Config, load
from kafka_probe_pipeline.connections import without_overflows
from kafka_probe_pipeline.diagnosis import Diagnosis
from kafka_probe_pipeline.errors import AwayError, PipelineError, StartError, UsageError
from kafka_probe_pipeline.flags import flags
from kafka_probe_pipeline.maintenance import Maintenance
from kafka_probe_pipeline.sinks import dead_letters, send, traffic_messages
from kafka_probe_pipeline.tables import BATCH_ID, DATE, Table
from kafka_probe_pipeline.traffic import KEYS, SEEN_EVENTS, remembered, seen_events, summed, traffic
from kafka_probe_pipeline.versions import Versions

_RETRY_S = 1.0
# What Kafka's client and Spark's reader say when nobody answers, or the names of brokers are gone with them.
OF_BROKERS_AWAY = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect)Exception|TimeoutException: Cannot fetch record"
    r"|Failed to create new KafkaAdminClient|No resolvable bootstrap urls"
)

TIMES_OF_WRITERS = (
    "Writers of %s set the timestamps of its records, so a forged record can stop the job. Make the brokers set "
    "them: kafka-configs.sh --alter --topic ... --add-config message.timestamp.type=LogAppendTime"
)

log = logging.getLogger("kafka_probe_pipeline")


@dataclass(frozen=True, slots=True)
class Step:
    """One micro-batch, the same however often it is called with the same batch: tables first, topics from the tables.

    Names come before rows, so that a row is named by all that is known when it is written. One that was written before
    its name was known stays as it is in the table, where `show` names it, and is sent again with it.
    """

    config: Config
    table: Table
    names: Table
    seen_events: Versions
    malformed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> Step:
        """Into the tables below the output directory."""
        return cls(
            config,
            Table(spark, config.output, "traffic"),
            Table(spark, config.output, "topic_names"),
            Versions(spark, config.seen_events, SEEN_EVENTS),
        )

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        session.for_its_cores(records.sparkSession)
        parsed = records.transform(source.parsed).persist()
        try:
            events = source.received(parsed)
            known = self.names.read().drop(BATCH_ID, DATE)
            new = self.names.append(events.transform(names.pairs).transform(names.unlike, known), batch_id)
            rows = (
                events.transform(source.once, self.seen_events.before(batch_id))
                .transform(traffic, self.config.window)
                .transform(names.named, self.names.read())
                .transform(summed, KEYS)
            )
            rows = self.table.append(rows, batch_id)
            if not self.seen_events.exists(batch_id):
                self._remember(events, batch_id)
            self.seen_events.remove_old()
            self._send(rows)
            if not new.isEmpty():
                earlier = self.table.read().where(F.col(BATCH_ID) < batch_id)
                self._send(earlier.transform(names.named_late, new))
            send(dead_letters(source.malformed(parsed)), self.config.dead_letter_topic, self.config.kafka)
            self._account(parsed, rows, batch_id)
        finally:
            parsed.unpersist()

    def _remember(self, events: DataFrame, batch_id: int) -> None:
        """Keep what was seen of each agent, and log how many are too many."""
        before = self.seen_events.before(batch_id)
        self.seen_events.write(seen_events(events, before), batch_id)
        if self.seen_events.batch(batch_id).count() == source.MOST_AGENTS:
            forgotten = remembered(events, before).count() - source.MOST_AGENTS
            if forgotten:
                log.warning(
                    "Dropped the state of %d agents, keeping the %d that reported last. Check for forged events.",
                    forgotten,
                    source.MOST_AGENTS,
                )

    def _send(self, rows: DataFrame) -> None:
        send(traffic_messages(rows), self.config.traffic_topic, self.config.kafka)

    def _account(self, parsed: DataFrame, rows: DataFrame, batch_id: int) -> None:
        counts = {row["reason"]: row["count"] for row in parsed.groupBy("reason").count().collect()}
        events = counts.pop(None, 0)
        self.malformed.update(counts)
        log.info("batch %d: %d events, %d rows%s", batch_id, events, rows.count(), _listed("malformed", counts))
        if self.config.console:
            report.print_tables(report.totals(rows).collect(), sys.stdout, internal=self.config.internal)


def start(
    spark: SparkSession, config: Config, step: Step, diagnosis: Diagnosis
) -> tuple[StreamingQuery, StreamingQuery]:
    """Start the two streams from the events topic: into `step`, and into `diagnosis`.

    Raises:
        StartError: a table has no checkpoint or another one, so that events would be lost or count twice.
    """
    for name, checkpoint in (
        ("traffic", config.checkpoint),
        ("topic_names", config.checkpoint),
        ("verdicts", config.connections_checkpoint),
    ):
        Table(spark, config.output, name).require_checkpoint(checkpoint)
    # Spark notes the time of a batch and gives the same again: so it is for no batch later than its first attempt. One
    # record from the future would else make all agents silent for long.
    events = source.records(spark, config).withColumn("timestamp", F.least("timestamp", F.current_timestamp()))
    traffic_query = _start(events, step, config.checkpoint, config.trigger_interval, config)
    return traffic_query, _start(events, diagnosis, config.connections_checkpoint, config.verdict_interval, config)


def _start(
    events: DataFrame, step: Callable[[DataFrame, int], None], checkpoint: str, interval: float, config: Config
) -> StreamingQuery:
    # A pool of its own, where Spark shares out its tasks (FAIR): what the query starts is in it.
    events.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", checkpoint)
    writer = events.writeStream.foreachBatch(step).option("checkpointLocation", checkpoint)
    if config.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds").start()


def run_through_outages(
    spark: SparkSession, config: Config, begin: Callable[[], Sequence[StreamingQuery]], stopping: Event
) -> None:
    """Run the queries that `begin` starts, and start them again after brokers were away: they go on where they were.

    Raises:
        PipelineError: a query failed for another reason, or with `--once`.
    """
    while not stopping.is_set():
        queries = begin()
        try:
            run_until_signal(queries, stopping)
            break
        except AwayError as error:
            for query in queries:
                query.stop()
            if config.once:
                raise
            log.warning("Brokers %s unreachable; retrying. %s", config.bootstrap_servers, error)
        while not (stopping.is_set() or _answer(spark, config)):
            time.sleep(_RETRY_S)


def _answer(spark: SparkSession, config: Config) -> bool:
    """Whether the brokers do; a topic that is gone is made again."""
    try:
        topics.create_missing(spark, config)
    except StartError:
        return False
    return True


def run_until_signal(queries: Sequence[StreamingQuery], stopping: Event) -> None:
    """Return when all queries have ended by themselves (`--once`) or were stopped after `stopping` was set.

    Raises:
        AwayError: a query waited for Kafka's brokers in vain.
        PipelineError: a query failed.
    """
    try:
        while not stopping.is_set():
            # Await each query, so that the failure of one is noticed while others run.
            ended = [query.awaitTermination(1) for query in queries]
            if all(ended):
                return
        # A batch that this interrupts is done again by the next run: nobody needs to read how it was interrupted.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
        for query in queries:
            query.stop()
    except StreamingQueryException as error:
        kind = AwayError if OF_BROKERS_AWAY.search(str(error)) else PipelineError
        raise kind(f"The stream stopped: {_last_cause(error)}") from None


@click.group()
@click.version_option(package_name="kafka-probe")
def cli() -> None:
    """Combine the events of kafka-probe's agents: traffic by client and topic, and why connections close."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    log.setLevel(logging.INFO)


@cli.command()
@flags()
def run(**given: object) -> None:
    """Read the events topic, update the tables and topics, and send alerts on storms."""
    config = load(given)
    if not config.bootstrap_servers:
        raise UsageError("Set --bootstrap-servers to host:port of a broker with the events topic.")
    receivers = tuple(Alertmanager(url) for url in config.alertmanager_url.split(",") if url)
    stopping = Event()
    spark = session.start(config.master, config.jars_dir)
    # After the session: it sets a handler of its own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        session.require_jars(spark)
        hadoop.require_shared(spark, config.output)
        created = topics.create_missing(spark, config)
        if topics.has_times_of_writers(spark, config):
            log.warning(TIMES_OF_WRITERS, config.events_topic)
        step = Step.of(spark, config)
        with ExitStack() as stack:
            for receiver in receivers:
                stack.enter_context(receiver)
            stack.enter_context(Maintenance(spark, config))
            diagnosis = Diagnosis(config, receivers)
            diagnosis.resume(spark)
            log.info("reading %s at %s%s", config.events_topic, config.bootstrap_servers, _listed("created", created))
            run_through_outages(spark, config, lambda: start(spark, config, step, diagnosis), stopping)
        log.info("stopped; the tables are in %s%s", config.output, _listed("malformed", step.malformed))
    finally:
        spark.stop()


@cli.command()
@flags("output", "master", "internal")
@click.option(
    "--table",
    "name",
    type=click.Choice(["traffic", *report.TABLES]),
    default="traffic",
    show_default=True,
    help="table to print: traffic, summed over all windows; current connections or storms; all verdicts",
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per row, with all columns")
def show(name: str, as_json: bool, **given: object) -> None:
    """Print one of the job's tables."""
    config = load(given)
    spark = session.start(config.master)
    try:
        print_one(spark, config, name, as_json=as_json)
    finally:
        spark.stop()


def print_one(spark: SparkSession, config: Config, name: str, *, as_json: bool) -> None:
    """Print one of the job's tables.

    Raises:
        StartError: it is not there.
    """
    rows = _rows(spark, config, name).collect()
    if as_json:
        report.print_json(rows if config.internal else report.of_others(rows), sys.stdout)
    elif name == "traffic":
        report.print_tables(rows, sys.stdout, internal=config.internal)
    else:
        report.print_table(name, rows, sys.stdout, internal=config.internal)


def _rows(spark: SparkSession, config: Config, name: str) -> DataFrame:
    """Return what `show` prints of a table."""
    match name:
        case "connections":
            rows = Versions(spark, config.connections, connections.SCHEMA).newest()
        case "storms":
            rows = Versions(spark, config.storms, storms.SCHEMA).newest()
        case _:
            table = Table(spark, config.output, name)
            rows = table.read().drop(DATE, BATCH_ID) if table.exists() else None
    if rows is None:
        raise StartError(f"There are no {name} in {config.output}: set --output to that of `kafka-probe-pipeline run`.")
    match name:
        case "traffic":
            return report.totals(rows.transform(names.named, Table(spark, config.output, "topic_names").read()))
        case "verdicts":
            return rows.orderBy("judged_ts", "key").transform(without_overflows)
        case "connections":
            return rows.orderBy("key").transform(without_overflows)
        case _:
            return rows.orderBy("opened_us")


def main() -> None:
    """The command; an error is one sentence and an exit status."""
    try:
        cli.main(prog_name="kafka-probe-pipeline")
    except PipelineError as error:
        print(f"kafka-probe-pipeline: {printable_lines(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)


def _listed(what: str, names: Counter[str] | dict[str, int] | tuple[str, ...]) -> str:
    """`; what: a, b` or `; what: a 3, b 1`; nothing if there is none."""
    if not names:
        return ""
    items = [f"{name} {count}" for name, count in names.items()] if isinstance(names, dict) else names
    return f"; {what}: {', '.join(items)}"


def _last_cause(error: StreamingQueryException) -> str:
    """The innermost message of the stack traces, of Java inside of Python, in one line."""
    causes = re.findall(r"^(?:Caused by: )?[\w.$]+(?:Error|Exception): (.+)$", str(error), re.MULTILINE)
    return causes[-1] if causes else str(error).splitlines()[0]


if __name__ == "__main__":
    main()
