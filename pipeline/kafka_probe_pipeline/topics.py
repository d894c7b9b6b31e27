"""The topics of the job: there before the first micro-batch, or a sentence that says why not.

Uses the Java client that comes with Spark's connector, so that one set of options (SASL, TLS) serves all connections.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.errors import StartError

# As many as the agent creates its topic with.
PARTITIONS = 4
ANSWER_WITHIN_MS = 10_000


def create_missing(spark: SparkSession, config: Config) -> tuple[str, ...]:
    """Create those of the job's topics that are absent; returns their names.

    Raises:
        StartError: no broker answers, or it refuses.
    """
    jvm: Any = spark.sparkContext._jvm
    limits = {"default.api.timeout.ms": str(ANSWER_WITHIN_MS), "request.timeout.ms": str(ANSWER_WITHIN_MS)}
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create({**limits, **config.kafka})
    except Py4JJavaError as error:
        raise _refusal(config, error) from None
    try:
        there = set(admin.listTopics().names().get())
        needed = (config.events_topic, config.traffic_topic, config.dead_letter_topic, config.alerts_topic)
        missing = tuple(name for name in needed if name not in there)
        default_replication = jvm.java.util.Optional.empty()
        partitions = jvm.java.util.Optional.of(PARTITIONS)
        new = [jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, default_replication) for name in missing]
        for created in admin.createTopics(new).values().values():
            _wait(created)
    except Py4JJavaError as error:
        raise _refusal(config, error) from None
    finally:
        admin.close(jvm.java.time.Duration.ZERO)
    return missing


def _wait(created: Any) -> None:
    try:
        created.get()
    except Py4JJavaError as error:
        if "TopicExistsException" not in str(error.java_exception):  # an agent was faster
            raise


def _refusal(config: Config, error: Py4JJavaError) -> StartError:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return StartError(
        f"Kafka at {config.bootstrap_servers} cannot be used ({cause.getMessage()}): "
        "check --bootstrap-servers, and --kafka-option if the brokers ask for SASL or TLS."
    )
