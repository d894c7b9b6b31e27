"""Defines the configuration: one class gives flags, `KAFKA_PROBE_*` variables, the keys of a TOML file, `--help`, docs.

A flag overrides a variable, a variable overrides the file, and the file overrides the default. An invalid value raises
a `UsageError` that names the flag, variable or key. This module never opens a socket and never accesses the kernel.
"""

from __future__ import annotations

import difflib
import mmap
import os
import socket
import tomllib
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pydantic import ByteSize, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from kafka_probe.environment import unknown_variables
from kafka_probe.errors import UsageError
from kafka_probe.setting_types import (
    Address,
    ArchiveFilter,
    ExchangeSelection,
    Filter,
    Listen,
    Names,
    Netns,
    Ports,
    Requests,
    Servers,
    written_size,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

VARIABLE_PREFIX = "KAFKA_PROBE_"
_TABLES = "tables"  # a setting of the commands that read the pipeline's tables
MIB = 1 << 20
LEAST_RECORDER_BYTES = 64 << 10
LEAST_SEARCHED_BYTES = 8 * MIB  # the same if it is searched for exchanges: it keeps the batch just read, of 4 MiB


class SinkConfig(BaseSettings):
    """The destination of events. Security settings have kafka-python's names and are passed to it unchanged."""

    model_config = SettingsConfigDict(
        env_prefix=VARIABLE_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        # A secret must not appear in an error message about another field.
        hide_input_in_errors=True,
    )

    sink: Literal["kafka", "stdout"] = "kafka"
    """destination of the events"""
    bootstrap_servers: Servers = ()
    """host:port of the brokers that receive the events, separated by commas; the default port is 9092"""
    topic: str = Field("kafka-probe.events", pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    """topic of the events; the agent creates it if it is absent"""
    topic_partitions: int = Field(4, gt=0)
    """partitions of the topic if the agent creates it"""
    sink_buffer_bytes: ByteSize = Field(ByteSize(20 * MIB), gt=0)
    """most bytes of events that wait for the sink in memory; further events are dropped and counted"""
    spool_dir: Path | None = Field(None, json_schema_extra={"metavar": "DIRECTORY"})
    """directory in which events wait while the brokers are unreachable, also for the next run; default: none"""
    spool_bytes: ByteSize = Field(ByteSize(1024 * MIB), gt=0)
    """most bytes on disk that the events in spool_dir take"""
    flush_timeout_s: float = Field(10.0, ge=0)
    """longest time that a stopping agent waits for the sink to take the remaining events"""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    """protocol of the brokers that receive the events"""
    sasl_mechanism: Literal["PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """SASL mechanism"""
    sasl_plain_username: str | None = None
    """user name for PLAIN and SCRAM"""
    sasl_plain_password: SecretStr | None = None
    """password for PLAIN and SCRAM"""
    sasl_kerberos_service_name: str | None = None
    """service name for GSSAPI"""
    ssl_cafile: Path | None = None
    """PEM file of the authorities that sign the brokers' certificates"""
    ssl_certfile: Path | None = None
    """PEM file of the agent's certificate"""
    ssl_keyfile: Path | None = None
    """PEM file of the agent's private key"""
    ssl_password: SecretStr | None = None
    """password of the private key"""
    ssl_check_hostname: bool | None = None
    """require that a broker's certificate matches its host name; default: true"""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load` merges the sources itself, so that it can name the source of an invalid value.
        return (init_settings,)

    def security(self) -> dict[str, object]:
        """Return the security settings that are set, as keyword arguments of kafka-python's clients."""
        given = {name: getattr(self, name) for name in SinkConfig.model_fields if name.startswith(SECURITY_PREFIXES)}
        return {name: _plain(value) for name, value in given.items() if value is not None}


SECURITY_PREFIXES = ("security_", "sasl_", "ssl_")


class DaemonConfig(SinkConfig):
    """The settings that only `run` has besides the destination of events: its HTTP server and the archive of frames."""

    listen: Listen = Field(Address("127.0.0.1", 9465), json_schema_extra={"metavar": "HOST:PORT|off"})
    """address of the agent's HTTP server; beyond loopback only with a token or a client CA"""
    listen_token: SecretStr | None = Field(None, min_length=1)
    """bearer token that clients of `listen` have to send, except to /healthz and /readyz"""
    listen_certfile: Path | None = None
    """PEM file of the certificate of `listen`, with those up to its authority; makes it HTTPS only"""
    listen_keyfile: Path | None = None
    """PEM file of its private key, unless the key is in `listen_certfile`"""
    listen_clientcafile: Path | None = None
    """PEM file of the authorities of client certificates; clients of `listen` without one get health endpoints only"""
    http_host: Names = Field((), json_schema_extra={"metavar": "NAME,..."})
    """host names in requests to `listen` that are accepted besides IP addresses and localhost; others get 421"""
    metrics_series: int = Field(1000, gt=0)
    """most label sets of each workload or topic metric; metrics of errors have five of each; the rest is in `other`"""
    kernel_time: bool = False
    """measure the run time of the agent's BPF programs; the kernel then measures all BPF programs of the host"""
    recorder_bytes: ByteSize = Field(ByteSize(32 * MIB), ge=0)
    """memory for recent frames, which are archived when their connection ends abnormally; 0: none"""
    archive_filter: Filter = Field(ArchiveFilter(), json_schema_extra={"metavar": "client=PATTERN,topic=PATTERN,..."})
    """conditions on frames of `archive`, all of which have to match; workload: a name, or the id of a container"""
    archive: Requests = Field(ExchangeSelection(), json_schema_extra={"metavar": "off|all|errors|slower:MS|1/N"})
    """exchanges whose frames are archived besides those of the recorder"""
    archive_topic: str = Field("kafka-probe.frames", pattern=r"^[a-zA-Z0-9._-]{1,249}$", validate_default=True)
    """topic of archived frames; the agent creates it if it is absent"""
    archive_bytes_per_s: ByteSize = Field(ByteSize(MIB), ge=64 << 10)
    """most bytes of archived frames per second, before compression, three times that at once; the rest is dropped"""

    @field_validator("recorder_bytes")
    @classmethod
    def _recorder_is_useful(cls, size: ByteSize) -> ByteSize:
        if 0 < size < LEAST_RECORDER_BYTES:
            raise ValueError(f"must be 0, or at least {written_size(ByteSize(LEAST_RECORDER_BYTES))}")
        return size

    @field_validator("archive")
    @classmethod
    def _archive_has_its_recorder(cls, selection: ExchangeSelection, before: ValidationInfo) -> ExchangeSelection:
        by_topic = before.data.get("archive_filter", ArchiveFilter()).topic
        needs_recorder = selection.which in ("errors", "slower") or (selection.which != "off" and by_topic)
        if needs_recorder and before.data.get("recorder_bytes", LEAST_SEARCHED_BYTES) < LEAST_SEARCHED_BYTES:
            least = written_size(ByteSize(LEAST_SEARCHED_BYTES))
            raise ValueError(f"errors, slower:MS and a filter by topic need recorder_bytes of at least {least}")
        return selection

    @field_validator("archive_topic")
    @classmethod
    def _frames_have_their_own_topic(cls, topic: str, before: ValidationInfo) -> str:
        if topic == before.data.get("topic"):
            raise ValueError("must differ from topic, whose readers do not expect frames")
        return topic

    @property
    def archives(self) -> bool:
        """Return True if any frames are archived."""
        return self.recorder_bytes > 0 or self.archive.which != "off"


class Config(DaemonConfig):
    """All settings of the agent."""

    ports: Ports = Field((9092,), json_schema_extra={"metavar": "PORT,..."})
    """ports of the brokers' listeners; auto: watch every connection"""
    side: Literal["both", "client", "server"] = "both"
    """end of a connection to watch"""
    netns: Netns | None = None
    """file of the only network namespace to watch, such as /proc/PID/ns/net; default: all of the host"""
    conntrack: bool = False
    """look up new connections in this host's connection tracking, for the field nat of open events"""
    kubernetes: Literal["auto", "on", "off"] = "auto"
    """get the names of this node's pods from Kubernetes; auto: if in a pod; on: elsewhere too, with a kubeconfig"""
    cmdline: bool = True
    """include command lines in events and pages, with *** for secrets that follow a known name; false: null"""
    container_names: bool = False
    """read the names of containers from the files of Docker, podman, containerd and CRI-O, which may contain secrets"""
    backend: Literal["auto", "fentry", "kprobe", "tracepoint"] = "auto"
    """way to hook the kernel; auto: the first of them that the kernel supports"""
    buffer: Literal["auto", "ring", "perf"] = "auto"
    """buffer between kernel and agent; auto: a ring buffer, or perf buffers if the kernel has no ring buffers"""
    ring_size_bytes: ByteSize = ByteSize(8 * MIB)
    """size of that buffer, a power of two; perf buffers share it"""
    memory_limit: ByteSize = Field(ByteSize(512 * MIB), gt=0)
    """most memory of the agent with its BPF maps; data beyond it is counted under `other` and as a loss"""
    node: str = Field(default_factory=lambda: os.environ.get("NODE_NAME") or socket.gethostname(), min_length=1)
    """name of this node in the events; default: the variable NODE_NAME, else the host name"""
    interval_s: float = Field(5.0, gt=0, le=3600)
    """length of an interval; flows are sent once per interval"""
    open_interval_s: float = Field(3600.0, gt=0, le=86400)
    """interval at which each open connection is reported again; these reports are spread evenly"""
    requests: Requests = Field(ExchangeSelection(), json_schema_extra={"metavar": "off|all|errors|slower:MS|1/N"})
    """requests to send as events; those that `admin` and `rebalances` print are always sent, within limits"""
    cpu_limit: float | None = Field(None, gt=0, json_schema_extra={"metavar": "CORES"})
    """CPU of the capture thread, in cores, above which it leaves out the events that --requests chooses, then topics"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """lowest level of logged messages"""
    log_format: Literal["text", "json"] = "text"
    """format of log lines"""
    cache_dir: Path | Literal["off"] = Field(
        Path("/var/cache/kafka-probe"), json_schema_extra={"metavar": "DIRECTORY|off"}
    )
    """directory that keeps the compiled programs for the next start; off: compile them at each start"""
    ready_file: Path | None = None
    """file that the agent creates once its programs are attached"""

    @field_validator("ring_size_bytes")
    @classmethod
    def _ring_is_mappable(cls, size: ByteSize) -> ByteSize:
        if size & (size - 1) or not mmap.PAGESIZE <= size <= 1 << 30:
            raise ValueError(f"must be a power of two between {written_size(ByteSize(mmap.PAGESIZE))} and 1 GiB")
        return size


RELOADED = frozenset({"requests", "cpu_limit", "interval_s", "log_level", "log_format"})
"""Names of the settings that a running agent changes when SIGHUP makes it reload them."""


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return VARIABLE_PREFIX + name.upper()


def is_secret(field: FieldInfo) -> bool:
    """Return True if only a variable or the file may set the field. Every user of the host can read flags."""
    return SecretStr in (field.annotation, *get_args(field.annotation))


def metavar_of(field: FieldInfo) -> str:
    """Return the placeholder for a field's value in `--help` and in the docs."""
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["metavar"])
    optional = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    kind = optional[0] if NoneType in get_args(field.annotation) else field.annotation
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    names: dict[object, str] = {int: "N", float: "SECONDS", bool: "true|false", ByteSize: "SIZE", Path: "FILE"}
    return names.get(kind, "TEXT")


def default_of(field: FieldInfo) -> str:
    """Return the default as text; empty if there is none or it depends on the host."""
    match field.default:
        case ByteSize() as size:
            return written_size(size).replace(" ", "")
        case tuple() as items:
            return ",".join(map(str, items))
        case None:
            return ""
        case bool() as yes:
            return "true" if yes else "false"
        case value:
            return "" if field.default_factory else f"{value:g}" if isinstance(value, float) else str(value)


def other_variables() -> dict[str, str]:
    """Return the variables that have the prefix of the settings and no effect, each with the most similar setting's.

    Raises `UsageError` for one that is almost the name of a setting.
    """
    known = {variable_of(name) for name in (*Config.model_fields, "config", _TABLES)}
    return unknown_variables(os.environ, VARIABLE_PREFIX, known)


def load(
    flags: Mapping[str, object], file: Path | None = None, defaults: Mapping[str, object] = MappingProxyType({})
) -> Config:
    """Return the configuration from flags, the environment, a TOML file and the command's defaults.

    Flags are keyed by field name; None means not given. The command's defaults override those of the fields.

    Raises `UsageError` with one line per mistake.
    """
    layers = (
        (defaults, str),
        ({} if file is None else _settings(file), lambda name: f"{name} in {file}"),
        (_environment(), variable_of),
        ({name: value for name, value in flags.items() if value is not None}, flag_of),
    )
    values: dict[str, object] = {}
    written: dict[str, str] = {}
    for layer, source_of in layers:
        for name, value in layer.items():
            values[name], written[name] = value, source_of(name)
    try:
        return Config(**values)  # type: ignore[arg-type]  # validated here
    except ValidationError as error:
        raise UsageError("\n".join(_mistake(details, written) for details in error.errors())) from None


def tables_of(file: Path) -> str | None:
    """Return the place of the pipeline's tables in a configuration file. The agent ignores this setting.

    Raises `UsageError`: the file cannot be read, or the setting is no text.
    """
    tables = _read(file).get(_TABLES)
    if tables is None or isinstance(tables, str):
        return tables
    raise UsageError(f"{_TABLES} in {file}: must be a text.")


def _plain(value: object) -> object:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
        case _:
            return value


def _environment() -> dict[str, object]:
    other_variables()
    try:
        return EnvSettingsSource(Config)()
    except SettingsError as error:
        raise UsageError(f"{error}.") from None


def _settings(file: Path) -> dict[str, object]:
    """Return the agent's settings of a configuration file."""
    return {name: value for name, value in _read(file).items() if name != _TABLES}


def _read(file: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The configuration file {file} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The configuration file {file} is not valid TOML: {error}.") from None
    for name in values:
        if name not in Config.model_fields and name != _TABLES:
            near = difflib.get_close_matches(name, [*Config.model_fields, _TABLES], n=1)
            advice = f"did you mean {near[0]}?" if near else "`kafka-probe run --help` lists the settings."
            raise UsageError(f"Unknown key {name} in {file}: {advice}")
    return values


def _mistake(details: ErrorDetails, written: Mapping[str, str]) -> str:
    name = str(details["loc"][0])
    return f"{written.get(name, flag_of(name))}: {details['msg'].removeprefix('Value error, ')}."
