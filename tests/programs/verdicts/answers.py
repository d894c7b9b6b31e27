"""Reads the product's verdicts on closed connections: the only module that knows their form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from kafka import KafkaProducer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_probe_pipeline import spark_session
from tests.lab.broker import Broker
from tests.lab.network import Connection
from tests.lab.pipeline_job import Run
from tests.lab.topics import create_topics

_LINES = 200  # of NDJSON in a record: far below a broker's limit


@dataclass(frozen=True, slots=True)
class Answer:
    """The product's verdict on a connection; `connection` is None if no agent watched the client's end.

    closed_us: when it was closed, µs since epoch.
    """

    verdict: str
    evidence: str
    flow_id: str | None
    connection: Connection | None
    closed_us: int


def answers(views: Mapping[str, Sequence[Path]], directory: Path) -> dict[str, list[Answer]]:
    """Run the pipeline's queries on the agents' output of each view, in a fresh directory; return its verdicts."""
    spark = spark_session.for_few_rows(spark_session.start(brief=True))
    try:
        with Broker(directory / "broker") as broker:
            runs = {name: Run(broker, directory / name, often=False) for name in views}
            for name, run in runs.items():
                create_topics(broker.bootstrap, [run.events], partitions=4)
                _feed(broker.bootstrap, run.events, views[name])
                run.once(spark)
        return {name: _verdicts(run.table(spark, "verdicts")) for name, run in runs.items()}
    finally:
        spark.stop()


def _verdicts(table: DataFrame) -> list[Answer]:
    closed_us = F.unix_micros("ts").alias("closed_us")
    rows = table.select("cause", "evidence", "flow_id", "client.local", "client.peer", closed_us).collect()
    return [
        Answer(row.cause, row.evidence, row.flow_id, row.local and Connection(row.local, row.peer), row.closed_us)
        for row in rows
    ]


def _feed(bootstrap: str, topic: str, outputs: Iterable[Path]) -> None:
    """Write the agents' files to a topic as agents do: many lines per record, keyed by agent id.

    Kafka has each record from when it was written, as if it had come then: the pipeline reckons how long it waits.
    """
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="lab")
    for output in outputs:
        for lines in _records(output.read_bytes().splitlines()):
            last = json.loads(lines[-1])
            key, value = last["agent_id"].encode(), b"\n".join(lines)
            producer.send(topic, key=key, value=value, timestamp_ms=last["ts"] // 1000)
    producer.flush()
    producer.close()


def _records(lines: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the lines of a second each, in parts of bounded size."""
    for _, of_a_second in groupby(lines, lambda line: json.loads(line)["ts"] // 1_000_000):
        rest = list(of_a_second)
        while rest:
            part, rest = rest[:_LINES], rest[_LINES:]
            yield part
