"""The configuration: one class, from which flags, `KAFKA_PROBE_PIPELINE_*` variables and `--help` derive.

A flag wins over a variable, a variable over the default. This room never starts Spark and never opens a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from kafka_probe_pipeline.errors import UsageError

VARIABLE_PREFIX = "KAFKA_PROBE_PIPELINE_"


class Config(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=VARIABLE_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        use_attribute_docstrings=True,
        # A Kafka option may be a password.
        hide_input_in_errors=True,
    )

    bootstrap_servers: str = ""
    """host:port of the brokers that hold the topics, separated by commas"""
    events_topic: str = Field("kafka-probe.events", min_length=1)
    """topic that the agents write to; created if absent"""
    traffic_topic: str = Field("kafka-probe.traffic", min_length=1)
    """topic of the sums; created if absent"""
    dead_letter_topic: str = Field("kafka-probe.dead-letter", min_length=1)
    """topic of the lines that are not events; created if absent"""
    output: str = Field("kafka-probe-output", min_length=1)
    """directory of the Parquet tables and the checkpoint, a path or a URI; the file system must rename atomically"""
    window: int = Field(60, gt=0)
    """length of a window in seconds"""
    trigger_interval: float = Field(30, gt=0)
    """seconds between micro-batches; each one adds a directory to the table"""
    once: bool = False
    """process what is there, then exit"""
    console: bool = False
    """print the sums of each micro-batch"""
    max_records_per_trigger: int = Field(10_000, gt=0)
    """most Kafka records in one micro-batch: bounds its memory when there is a backlog"""
    skip_lost: bool = False
    """go on when the topic has dropped events that were not read yet, instead of stopping"""
    kafka_option: dict[str, str] = {}
    """key=value for the Java clients, as security.protocol=SASL_SSL; repeatable; the variable is a JSON object"""
    master: str | None = None
    """master of the Spark cluster; default: what spark-submit says, else local[2]"""
    jars_dir: Path | None = None
    """folder of Spark's Kafka connector, if spark-submit does not bring it; default: what `make setup` fetched"""

    @property
    def table(self) -> str:
        """Where the Parquet table is."""
        return f"{self.output}/traffic"

    @property
    def names(self) -> str:
        """Where the Parquet table of the topics' names is."""
        return f"{self.output}/topic_names"

    @property
    def checkpoint(self) -> str:
        """Where the query keeps its offsets."""
        return f"{self.output}/checkpoint"

    @property
    def kafka(self) -> dict[str, str]:
        """Options of every Kafka client of the job. By the client id the agents leave it out of what they see."""
        return {"client.id": "kafka-probe-pipeline", **self.kafka_option, "bootstrap.servers": self.bootstrap_servers}


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def load(flags: Mapping[str, object]) -> Config:
    """The configuration from flags (by field name; None means not given) and the environment.

    Raises `UsageError`, one line per mistake.
    """
    try:
        return Config(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]  # validated here
    except SettingsError as error:
        raise UsageError(f"{error}.") from None
    except ValidationError as error:
        raise UsageError("\n".join(_mistake(str(e["loc"][0]), e["msg"], flags) for e in error.errors())) from None


def _mistake(name: str, reason: str, flags: Mapping[str, object]) -> str:
    place = VARIABLE_PREFIX + name.upper() if flags.get(name) is None else flag_of(name)
    reason = reason.removeprefix("Input should be ")
    return f"{place}: must be {reason[0].lower()}{reason[1:]}."
