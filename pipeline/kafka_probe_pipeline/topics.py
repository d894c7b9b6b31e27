"""Creates the topics of the job before the first micro-batch, or ends it with the reason in one sentence.

Uses the Java client that comes with Spark's connector, so that one set of options (SASL, TLS) serves all connections.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kafka_probe.errors import StartError
from kafka_probe_pipeline.config import PipelineConfig

# As many as the agent creates its topic with.
PARTITIONS = 4
ANSWER_WITHIN_MS = 10_000
# By default a record has the time that its writer names, and Spark's reader fails at one that no 64 bits of µs hold.
TIMES_OF_BROKER = {"message.timestamp.type": "LogAppendTime"}


_NOT_AUTHORIZED = "AuthorizationException"

log = logging.getLogger("kafka_probe_pipeline")


def create_missing(spark: SparkSession, config: PipelineConfig) -> tuple[str, ...]:
    """Create the job's topics that are absent, and return their names.

    Raises:
        StartError: no broker answers, or it refuses.
    """
    jvm: Any = spark.sparkContext._jvm
    with _admin(jvm, config) as admin:
        there = set(admin.listTopics().names().get())
        read = (config.events_topic, *((config.frames_topic,) if config.archives else ()))
        needed = (*read, config.traffic_topic, config.dead_letter_topic, config.alerts_topic)
        missing = tuple(name for name in needed if name not in there)
        default_replication = jvm.java.util.Optional.empty()
        partitions = jvm.java.util.Optional.of(PARTITIONS)
        new = [jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, default_replication) for name in missing]
        for topic in new:
            if topic.name() in read:
                topic.configs(TIMES_OF_BROKER)
        created = admin.createTopics(new).values()
        for name in missing:
            try:
                _wait(created.get(name))
            except Py4JJavaError as error:
                # Traffic and alerts do not need frames: `may_read` warns.
                if name != config.frames_topic or _NOT_AUTHORIZED not in str(error.java_exception):
                    raise
    return missing


def may_read(spark: SparkSession, config: PipelineConfig, topic: str) -> bool:
    """Return True if the topic exists and the job's user may see it; else log what to do.

    Raises:
        StartError: no broker answers.
    """
    with _admin(spark.sparkContext._jvm, config) as admin:
        if topic in set(admin.listTopics().names().get()):
            return True
    log.warning(
        "Topic %s is not visible to the job's user, so archived frames are not kept. Create it and allow DESCRIBE and "
        "READ, or set --frames-topic off.",
        topic,
    )
    return False


def has_times_of_writers(spark: SparkSession, config: PipelineConfig, name: str) -> bool:
    """Return True if records of the topic have the times that their writers set.

    False if the brokers do not show the topic's settings.

    Raises:
        StartError: no broker answers.
    """
    jvm: Any = spark.sparkContext._jvm
    kinds = jvm.org.apache.kafka.common.config.ConfigResource
    topic = kinds(kinds.Type.TOPIC, name)
    with _admin(jvm, config) as admin:
        try:
            settings = admin.describeConfigs([topic]).all().get().get(topic)
        except Py4JJavaError as error:
            if any(name in str(error.java_exception) for name in (_NOT_AUTHORIZED, "UnknownTopicOrPartition")):
                return False
            raise
        return any(settings.get(name).value() != value for name, value in TIMES_OF_BROKER.items())


@contextmanager
def _admin(jvm: Any, config: PipelineConfig) -> Iterator[Any]:
    """Yield Kafka's Admin; a request that the brokers refuse is a StartError."""
    limits = {"default.api.timeout.ms": str(ANSWER_WITHIN_MS), "request.timeout.ms": str(ANSWER_WITHIN_MS)}
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create({**limits, **config.kafka})
        try:
            yield admin
        finally:
            admin.close(jvm.java.time.Duration.ZERO)
    except Py4JJavaError as error:
        raise _refusal(config, error) from None


def _wait(created: Any) -> None:
    try:
        created.get()
    except Py4JJavaError as error:
        if "TopicExistsException" not in str(error.java_exception):  # an agent was faster
            raise


def _refusal(config: PipelineConfig, error: Py4JJavaError) -> StartError:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return StartError(
        f"Kafka at {config.bootstrap_servers} cannot be used ({cause.getMessage()}): "
        "check --bootstrap-servers, and --kafka-option if the brokers require SASL or TLS."
    )
