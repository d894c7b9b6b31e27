"""The configuration: one class, from which flags, `KAFKA_PROBE_PIPELINE_*` variables and `--help` derive.

A flag wins over a variable, a variable over the default. This module never starts Spark and never opens a socket.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from kafka_probe.errors import UsageError

log = logging.getLogger(__name__)

VARIABLE_PREFIX = "KAFKA_PROBE_PIPELINE_"
KAFKA_PORT = 9092
RETAINED = (
    "traffic",
    "requests",
    "partition_ends",
    "group_positions",
    "opens",
    "closes",
    "verdicts",
    "storms",
    "agents",
    "frames",
)
"""Tables that lose old rows. The names of topics are needed as long as rows have their ids."""
# What Kubernetes sets in pods beside a Service whose name begins with kafka-probe-pipeline.
_OF_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")


def _servers(written: str) -> str:
    """Return the servers, each with a port, which the Java client needs: by default Kafka's own."""
    servers = [server.strip() for server in written.split(",") if server.strip()]
    for server in servers:
        found = re.fullmatch(r"(?:\w+://)?(?:\[[^]]+\]|[^:/\[\]]+)(?::(\d{1,5}))?", server)
        if not found or not 0 < int(found[1] or KAFKA_PORT) < 65536:
            raise ValueError("host:port, such as kafka-1:9092 or [::1]:9092, several separated by commas")
    return ",".join(server if re.search(r":\d+$", server) else f"{server}:{KAFKA_PORT}" for server in servers)


def _retain(written: str) -> str:
    """Return the text if it names tables that have an age, each with a number of days."""
    for part in filter(None, written.split(",")):
        name, _, days = part.partition("=")
        if name.strip() not in RETAINED or not re.fullmatch(r"[1-9]\d{0,4}d", days.strip()):
            raise ValueError(
                f"NAME=DAYSd, such as traffic=90d, several separated by commas; NAME is {' or '.join(RETAINED)}"
            )
    return written


class PipelineConfig(BaseSettings):
    """The settings of the pipeline."""

    model_config = SettingsConfigDict(
        env_prefix=VARIABLE_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        use_attribute_docstrings=True,
        # A Kafka option may be a password.
        hide_input_in_errors=True,
    )

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = ""
    """host:port of the brokers with the topics, separated by commas; the default port is 9092"""
    events_topic: str = Field("kafka-probe.events", min_length=1)
    """topic of the agents' events; created if absent"""
    frames_topic: str = "kafka-probe.frames"
    """topic of archived frames, which become the table `frames`; created if absent; off: no such table"""
    start: Literal["earliest", "latest"] | None = None
    """records that new tables begin with, by default earliest; afterwards the job goes on from their checkpoints"""
    traffic_topic: str = Field("kafka-probe.traffic", min_length=1)
    """topic of the traffic sums; created if absent"""
    dead_letter_topic: str = Field("kafka-probe.dead-letter", min_length=1)
    """topic of lines that are not valid events; created if absent"""
    alerts_topic: str = Field("kafka-probe.alerts", min_length=1)
    """topic of the alerts; created if absent"""
    alertmanager_url: str = Field("", pattern=r"^(https?://[^\s,]+(,https?://[^\s,]+)*)?$")
    """URLs of Prometheus Alertmanagers, separated by commas; each receives all alerts"""
    listen: str = Field("", pattern=r"^(|.+:\d{1,5})$")
    """host:port of `/metrics` for Prometheus, without authentication, such as 127.0.0.1:9466; default: none"""
    output: str = Field("kafka-probe-output", min_length=1)
    """directory of the tables, a path or a URI, also of an object store"""
    checkpoint_dir: str = ""
    """directory of the checkpoints, on a disk, HDFS or S3; default: that of the tables"""
    window: int = Field(60, gt=0)
    """length of a window in seconds"""
    trigger_interval: float = Field(30, gt=0)
    """seconds between micro-batches of traffic, except during a backlog; each one adds files to its tables"""
    verdict_interval: float = Field(4, gt=0)
    """seconds between evaluations of closed connections; adds to the delay of alerts"""
    table_interval: float = Field(30, ge=0)
    """seconds between commits to the tables of the diagnosis; each one adds files to them"""
    archive_interval: float = Field(30, gt=0)
    """seconds between micro-batches of archived frames, except during a backlog; each one adds files to their table"""
    archive_file_bytes: int = Field(128 << 20, gt=0)
    """size of the files into which the frames of an hour are merged; some are up to twice as large"""
    archive_file_age: float = Field(900, gt=0)
    """seconds after an hour's end in which its frames are merged"""
    other_end_wait: float = Field(15, ge=0)
    """seconds to wait for the other end of a closed connection if no agent has reported it"""
    agent_silent: float = Field(30, gt=0)
    """seconds without events from an agent after which the pipeline no longer waits for it"""
    clock_margin: float = Field(1, ge=0)
    """largest difference between the clocks of two hosts, in seconds"""
    idle_minimum: float = Field(2, gt=0)
    """least idle time, in seconds, after which a close may be due to a limit on idle connections"""
    right_after: float = Field(1, gt=0)
    """seconds after a Produce request with acks=0 within which the broker's close counts as caused by it"""
    authentication_within: float = Field(5, gt=0)
    """seconds after a SASL request within which a close counts as a failed authentication"""
    close_notify_within: float = Field(0.05, gt=0)
    """seconds before a close within which received TLS data may have been a close_notify"""
    closed_together: float = Field(1, gt=0)
    """seconds within which closes of one process count as a close of the whole client, not as an idle limit"""
    shutdown_within: float = Field(300, gt=0)
    """seconds after a broker stops listening within which its closes count as part of its shutdown"""
    same_age_percent: int = Field(10, gt=0)
    """percentage by which idle times that count as equal may differ, in addition to `idle_minimum`"""
    storm_window: float = Field(60, gt=0)
    """seconds within which closes with the same cause are counted together"""
    storm_minimum: int = Field(20, gt=0)
    """least number of closes within a window that makes a storm"""
    storm_percent: int = Field(10, ge=0, le=100)
    """least percentage of all connections, or of a broker, network or workload, for a storm; none for `middlebox_*`"""
    storm_quiet: float = Field(60, gt=0)
    """seconds without another close after which a storm is over"""
    reconnect_minimum: int = Field(100, gt=0)
    """least number of connections of one workload, opened and closed within a window, that makes a storm"""
    open_limit: float = Field(9_000, gt=0)
    """seconds without a report until an open connection is gone; more than twice the agents' `--open-interval-s`"""
    closed_limit: float = Field(300, gt=0)
    """seconds that a closed connection is kept and a verdict waits; from `--agent-silent` to below `--open-limit`"""
    retain: Annotated[str, AfterValidator(_retain)] = (
        "traffic=90d,requests=7d,partition_ends=7d,group_positions=7d,opens=30d,closes=90d,verdicts=365d,storms=365d,agents=30d,frames=7d"
    )
    """how long tables keep rows, in whole days; a table that is not named keeps everything"""
    maintenance_interval: float = Field(600, gt=0)
    """seconds between runs that merge small files and remove old ones"""
    once: bool = False
    """process the available events, then exit"""
    max_records_per_trigger: int = Field(4_000, gt=0)
    """most Kafka records in one micro-batch; an agent's record has up to 64 KiB of events, or one larger event"""
    skip_lost: bool = False
    """continue, instead of stopping, if the topic has dropped events that were not yet read"""
    kafka_option: dict[str, str] = {}
    """key=value for the Java clients, such as security.protocol=SASL_SSL; repeatable; the variable is a JSON object"""
    master: str | None = None
    """master of the Spark cluster; default: that of spark-submit, else local[4]"""
    jars_dir: Path | None = None
    """folder with the jars of Spark's Kafka connector and Delta Lake; default: the jars of `make setup`"""

    @property
    def archives(self) -> bool:
        """Return True if the job keeps frames."""
        return self.frames_topic not in ("", "off")

    @property
    def checkpoint_directory(self) -> str:
        """Return the directory of all checkpoints."""
        return self.checkpoint_dir or self.output

    @property
    def directories(self) -> list[str]:
        """Return the directories that the job writes to, each once."""
        return [*dict.fromkeys((self.output, self.checkpoint_directory))]

    @property
    def checkpoint(self) -> str:
        """Return the folder of the offsets of the traffic query."""
        return f"{self.checkpoint_directory}/checkpoint"

    @property
    def checkpoints(self) -> dict[str, str]:
        """Return the folders of the queries' offsets, by query."""
        return {
            "traffic": self.checkpoint,
            "diagnosis": self.connections_checkpoint,
            "archive": f"{self.checkpoint_directory}/archive_checkpoint",
        }

    @property
    def seen_events(self) -> str:
        """Return the folder of the ranges of events that were counted, by agent; it belongs to the offsets."""
        return f"{self.checkpoint}/agents"

    @property
    def agents(self) -> str:
        """Return the folder of the newest versions of the agents' state."""
        return f"{self.connections_checkpoint}/agents"

    @property
    def connections(self) -> str:
        """Return the folder of the newest versions of the connections."""
        return f"{self.connections_checkpoint}/connections"

    @property
    def storms(self) -> str:
        """Return the folder of the newest versions of the storms."""
        return f"{self.connections_checkpoint}/storms"

    @property
    def connections_checkpoint(self) -> str:
        """Return the folder of the offsets of the connections query."""
        return f"{self.checkpoint_directory}/connections_checkpoint"

    @property
    def days_kept(self) -> dict[str, int]:
        """Return the days for which tables keep rows, by name; other tables keep everything."""
        parts = (part.partition("=") for part in self.retain.split(",") if part)
        return {name.strip(): int(days.strip().removesuffix("d")) for name, _, days in parts}

    @property
    def kafka(self) -> dict[str, str]:
        """Return the options of all Kafka clients of the job. Agents know its connections by the client id."""
        return {"client.id": "kafka-probe-pipeline", **self.kafka_option, "bootstrap.servers": self.bootstrap_servers}


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def load(flags: Mapping[str, object]) -> PipelineConfig:
    """Return the configuration from flags (by field name; None means not given) and the environment.

    Raises `UsageError`, one line per mistake.
    """
    _look_at_other_variables()
    try:
        return PipelineConfig(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]  # validated here
    except SettingsError as error:
        raise UsageError(f"{error}.") from None
    except ValidationError as error:
        raise UsageError("\n".join(_mistake(str(e["loc"][0]), e["msg"], flags) for e in error.errors())) from None


def _look_at_other_variables() -> None:
    """Refuse variables that are almost settings, and warn of others that only begin as settings do."""
    known = [name.upper() for name in PipelineConfig.model_fields]
    for variable, value in os.environ.items():
        name = variable.upper().removeprefix(VARIABLE_PREFIX)
        if name == variable.upper() or name in known or not value or _OF_KUBERNETES.fullmatch(variable.upper()):
            continue
        if near := difflib.get_close_matches(name, known, 1, cutoff=0.75):
            raise UsageError(f"Unknown variable {variable}: did you mean {VARIABLE_PREFIX}{near[0]}?")
        similar = VARIABLE_PREFIX + difflib.get_close_matches(name, known, 1, cutoff=0)[0]
        log.warning("The variable %s is not a setting and is ignored; the most similar one is %s.", variable, similar)


def _mistake(name: str, reason: str, flags: Mapping[str, object]) -> str:
    place = VARIABLE_PREFIX + name.upper() if flags.get(name) is None else flag_of(name)
    reason = reason.removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{place}: must be {reason[0].lower()}{reason[1:]}."
