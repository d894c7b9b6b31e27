"""Implements the command `kafka-probe`. Every flag of a setting derives from a field of `Config`.

Exit status: 0 done or stopped by a signal, 1 failed while running, 2 used incorrectly, 3 could not start. A second
signal ends the process at once. Each command imports the modules that do its work only when it runs.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial, reduce
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

import kafka_probe
from kafka_probe import events
from kafka_probe.command_group import CommandGroup, SettingOption
from kafka_probe.config import (
    Config,
    DaemonConfig,
    SinkConfig,
    default_of,
    flag_of,
    is_secret,
    load,
    metavar_of,
    other_variables,
    variable_of,
)
from kafka_probe.conversations.capture_flags import capture_flags, capture_output, capture_size
from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe.text import MESSAGE_LIMIT, printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kafka_probe.follow_outputs import Output
    from kafka_probe.server.server import Server
    from kafka_probe.sinks.sink import Sink

log = logging.getLogger(__name__)

_CHOICE = ("client", "workload", "pid", "address", "connection", "api")
_QUIET = MappingProxyType({"log_level": "warning"})
_TRACED = MappingProxyType({**_QUIET, "requests": "all"})
CAPTURE_FIELDS = [name for name in Config.model_fields if name not in DaemonConfig.model_fields]


def execute() -> int:
    """Run the command; return the exit status."""
    # NumPy would start threads for linear algebra, which the agent does not use; they would keep all capabilities.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        commands(prog_name="kafka-probe")
    except KafkaProbeError as error:
        click.echo(f"kafka-probe: {printable_lines(str(error))}", err=True)
        return error.exit_code
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def options(
    names: Iterable[str], defaults: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a flag per named field of `Config`, and --config.

    Values remain text: `Config` parses and checks them. Secrets have no flag. defaults: those of the command, where
    they are not the fields'.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for name in reversed([name for name in names if not is_secret(Config.model_fields[name])]):
            field = Config.model_fields[name]
            default = defaults.get(name) or default_of(field)
            text = f"{field.description} [default: {default}]" if default else field.description
            command = click.option(flag_of(name), name, cls=SettingOption, metavar=metavar_of(field), help=text)(
                command
            )
        file = click.Path(dir_okay=False, path_type=Path)
        text = "TOML file with the same settings; flags and variables override it"
        return click.option("--config", "file", type=file, envvar=variable_of("config"), metavar="FILE", help=text)(
            command
        )

    return decorate


def _choice(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds flags that choose connections and APIs. what: the noun in the help of --api."""
    flags = (
        click.option("--client", metavar="PATTERN", help="only of clients with such an id, with * and ? as in shells"),
        click.option(
            "--workload", metavar="PATTERN", help="only of such a command, container, systemd unit, pod or pod's owner"
        ),
        click.option("--pid", metavar="N", help="only of this process"),
        click.option("--address", metavar="IP[:PORT]", help="only with this address at either end"),
        click.option("--connection", metavar="ID", help="only of this connection: its conn_id or flow_id"),
        click.option("--api", metavar="PATTERN", help=f"only {what} of these APIs"),
    )
    return lambda command: reduce(lambda decorated, flag: flag(decorated), reversed(flags), command)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kafka_probe.__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Show who uses Kafka brokers, on this host or from the pipeline's tables, and why connections end.

    Each setting of the agent, see `run --help`, can also be a variable (--ports is KAFKA_PROBE_PORTS) or a key of the
    file that --config names. Secrets have no flag, only a variable or a key: sasl_plain_password, ssl_password and
    listen_token. KAFKA_PROBE_TABLES, or the key tables, is --tables of the commands that read tables.
    """


@commands.command(
    epilog="""\b
Examples:
  kafka-probe run --bootstrap-servers kafka-1:9092,kafka-2:9092
  kafka-probe run --sink stdout | head
  kafka-probe run --config /etc/kafka-probe.toml --log-format json
  kafka-probe run --bootstrap-servers localhost:9092 --requests slower:200
"""
)
@options(Config.model_fields)
def run(file: Path | None, **flags: str | None) -> None:
    """Run the daemon: watch traffic and send events to a Kafka topic until stopped. SIGHUP reloads the settings."""
    again = partial(_configured, flags, file)
    config = again()
    if config.sink == "kafka" and not config.bootstrap_servers:
        raise UsageError("Name the brokers that receive the events with --bootstrap-servers, or use --sink stdout.")
    server, sink = _server(config), _sink(config)
    with closing(server) if server else nullcontext():
        _watch(config, sink, log.info, server, again, archive_sink=_archive_sink(config, sink))


@commands.command(
    epilog="""\b
Examples:
  kafka-probe top
  kafka-probe top --once 10 --ports 9092,9093
  kafka-probe top --side server --json | jq .client.id
"""
)
@options(CAPTURE_FIELDS, _QUIET)
@click.option(
    "--once", type=click.FloatRange(min=0.1), metavar="SECONDS", help="watch for this time, print one table and exit"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per row and interval instead of the table")
@click.option("--internal", is_flag=True, help="show kafka-probe's own traffic as well")
def top(file: Path | None, once: float | None, as_json: bool, internal: bool, **flags: str | None) -> None:
    """Show a live table of clients, APIs and topics with their rates and latencies.

    With the extra `top` it takes keys: sort, filter, side, pause, and a client with its conversation.
    """
    from kafka_probe.follow import followed_later
    from kafka_probe.top import LiveTop, PlainTop
    from kafka_probe.top_sinks import top_sink

    config = _configured(flags, file, _QUIET)
    if once is not None:
        config = config.model_copy(update={"interval_s": min(config.interval_s, once)})
    if sys.stderr.isatty():
        first = f"first figures {config.interval_s:g} s later ..."
        _to_stderr(f"Attaching to the kernel, then watching {_ports(config)}; {first}")
    sink = top_sink(once, as_json, internal=internal, ports=_ports(config))
    if isinstance(sink, PlainTop | LiveTop):
        _watch(config, sink)
    else:
        _watch(followed_later(config), sink, archive_sink=sink)


@commands.command(
    epilog="""\b
Examples:
  kafka-probe trace
  kafka-probe trace --requests errors
  kafka-probe trace --requests slower:100 --json | jq .topics
"""
)
@options(CAPTURE_FIELDS, _TRACED)
@_choice("requests")
@click.option("--topic", metavar="PATTERN", help="only requests that name such a topic")
@click.option(
    "--error",
    metavar="NAME|CODE|any",
    help="only responses with this error, such as NOT_LEADER_OR_FOLLOWER; any: with any error",
)
@click.option("--json", "as_json", is_flag=True, help="print the events as JSON, one per line")
@click.option("--internal", is_flag=True, help="print kafka-probe's own requests as well")
def trace(file: Path | None, as_json: bool, internal: bool, **flags: str | None) -> None:
    """Print one line per request and its response. Narrow terminals get fewer fields."""
    from kafka_probe.trace import RequestFilter, trace_sink

    choice = {name: flags.pop(name) for name in (*_CHOICE, "topic", "error")}
    config = _configured(flags, file, _TRACED)
    wanted = RequestFilter.of(config.requests, choice)
    _watch(config, trace_sink(as_json=as_json, wanted=wanted), internal_requests=internal)


@commands.command(
    epilog="""\b
Examples:
  kafka-probe follow --client 'billing-*'
  kafka-probe follow --address 10.57.2.2:39282 -v
  kafka-probe follow --pid 4711 --json | jq .contents
  kafka-probe follow --client 'billing-*' --pcapng billing.pcapng
"""
)
@options((name for name in CAPTURE_FIELDS if name not in ("interval_s", "requests")), _QUIET)
@_choice("frames")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per frame")
@capture_flags
@click.option("-v", "--verbose", is_flag=True, help="show more items of each list")
def follow(
    file: Path | None,
    *,
    as_json: bool,
    pcapng: str | None,
    pcapng_bytes: int | None,
    verbose: bool,
    **flags: str | None,
) -> None:
    """Show connections as people read them: each request with its response, pauses and the end."""
    from kafka_probe.follow import FollowSink, follow_settings

    most_bytes = capture_size(pcapng, pcapng_bytes, as_json=as_json)
    choice = {name: flags.pop(name) for name in _CHOICE}
    config = follow_settings(_configured(flags, file, _QUIET), choice)
    with _follow_output(config, pcapng, most_bytes, as_json=as_json, verbose=verbose) as (output, descriptor):
        sink = FollowSink(output, descriptor, notice=_to_stderr, ports=_ports(config))
        if sys.stderr.isatty():
            _to_stderr(f"Attaching to the kernel, then watching {_ports(config)} ...")
        _watch(config, sink, archive_sink=sink)


@commands.command()
@options(SinkConfig.model_fields)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per finding")
def check(file: Path | None, as_json: bool, **flags: str | None) -> None:
    """Check the agent's requirements: print ok or a remedy for each. Exit with status 3 if one is not met."""
    from kafka_probe.check import findings

    config = load(flags, file)
    _warn_of_other_variables()
    all_ok = True
    for finding in findings(config):
        all_ok &= finding.ok
        if as_json:
            click.echo(json.dumps(asdict(finding)))
        else:
            detail = printable(finding.detail, MESSAGE_LIMIT)
            click.echo(f"{'ok  ' if finding.ok else 'FAIL'} {finding.name:11} {detail}")
            if not finding.ok:
                click.echo(f"     {'':11} -> {printable(finding.remedy, MESSAGE_LIMIT)}")
    sys.exit(0 if all_ok else 3)


@commands.command("compile")
@options(Config.model_fields)
def compile_(file: Path | None, **flags: str | None) -> None:
    """Compile the BPF programs into --cache-dir as root, for an agent with these settings that runs as another user."""
    from kafka_probe.memory import bounds_of
    from kafka_probe.startup import compile_programs

    config = _configured(flags, file)
    compile_programs(config, bounds_of(config, archives=_archives(config)))


@commands.command()
def version() -> None:
    """Print the versions of kafka-probe and of its event schema."""
    click.echo(f"kafka-probe {kafka_probe.__version__} (event schema {events.SCHEMA_VERSION})")


def _configured(
    flags: Mapping[str, object], file: Path | None, defaults: Mapping[str, object] = MappingProxyType({})
) -> Config:
    """Return the configuration of a command that captures traffic, and configure logging by it."""
    from kafka_probe import logs

    config = load(flags, file, defaults)
    logs.configure(config)
    _warn_of_other_variables()
    return config


def _warn_of_other_variables() -> None:
    for name, nearest in other_variables().items():
        log.warning("The variable %s is not a setting and is ignored; the most similar one is %s.", name, nearest)


def _ports(config: Config) -> str:
    return "all ports" if config.ports == "auto" else f"ports {', '.join(map(str, config.ports))}"


def _to_stderr(line: str) -> None:
    click.echo(printable(line, MESSAGE_LIMIT), err=True)


def _sink(config: Config) -> Sink:
    match config.sink:
        case "kafka":
            from kafka_probe.sinks.kafka import KafkaSink

            return KafkaSink(config)
        case "stdout":
            from kafka_probe.sinks.stdout import StdoutSink

            if config.spool_dir:
                log.warning("--spool-dir has no effect with --sink stdout; remove one of them.")
            return StdoutSink(buffer_bytes=config.sink_buffer_bytes)


def _archive_sink(config: Config, sink: Sink) -> Sink | None:
    """Return the destination of frames; None if none are archived."""
    if not _archives(config):
        return None
    if config.sink == "stdout":
        return sink
    from kafka_probe.memory import ARCHIVE_WAITING_BYTES
    from kafka_probe.sinks.kafka import KafkaSink

    waiting = {"sink_buffer_bytes": ARCHIVE_WAITING_BYTES, "spool_dir": None}
    return KafkaSink(config.model_copy(update={"topic": config.archive_topic, **waiting}))


def _archives(config: Config) -> bool:
    """Return True if `run` archives frames. Standard output gets them only with --archive."""
    return config.archive.which != "off" if config.sink == "stdout" else config.archives


@contextmanager
def _follow_output(
    config: Config, pcapng: str | None, most_bytes: int, *, as_json: bool, verbose: bool
) -> Iterator[tuple[Output, int]]:
    """Yield the form of output of `follow`, and the descriptor to write to."""
    from kafka_probe.follow_outputs import JsonOutput, TextOutput
    from kafka_probe.sinks.stdout import STDOUT

    if pcapng is None:
        yield JsonOutput() if as_json else TextOutput(STDOUT, verbose=verbose), STDOUT
        return
    try:
        from kafka_probe.conversations.capture_file import decode_as
        from kafka_probe.follow_packets import PacketOutput
    except ImportError as error:
        raise UsageError(f"--pcapng needs {error.name}: pip install '.[console]' in kafka-probe's clone.") from None
    with capture_output(pcapng) as file:
        if config.ports != "auto" and (options := decode_as(config.ports)):
            _to_stderr(f"Wireshark and tshark need {options}")
        yield PacketOutput(file, most_bytes), file.fileno()


def _server(config: Config) -> Server | None:
    if config.listen == "off":
        return None
    from kafka_probe.server.server import Server

    return Server(config, config.listen)


def _watch(
    config: Config,
    sink: Sink,
    report: Callable[[str], None] = _to_stderr,
    server: Server | None = None,
    again: Callable[[], Config] | None = None,
    *,
    archive_sink: Sink | None = None,
    internal_requests: bool = False,
) -> None:
    """Run an agent with this sink until a signal or the sink stops it.

    report: gets the losses and counters at the end; again: reloads the settings on SIGHUP.
    """
    from kafka_probe.agent import Agent
    from kafka_probe.memory import bounds_of
    from kafka_probe.sinks.sink import AppSink, ConnectionsSink, EndingSink, TableSink
    from kafka_probe.startup import attached

    try:
        bounds = bounds_of(config, archives=archive_sink is not None)
        local_sinks = [server] if server else []
        agent = Agent(config, sink, local_sinks, bounds, archive_sink=archive_sink, internal_requests=internal_requests)
        if isinstance(sink, EndingSink):
            sink.on_closed = agent.stop
        if isinstance(sink, ConnectionsSink):
            sink.connections = agent.connections
        if isinstance(sink, TableSink):
            sink.lags, sink.both_ends_here = agent.lags, agent.both_ends_here
        if again:
            signal.signal(signal.SIGHUP, lambda *_: agent.reload(again))
        with _stopped_by_signal(agent.stop), attached(config, bounds) as (programs, listing):
            if server:
                server.start(agent, sink, bounds.clients_bytes)
            run = partial(agent.run, programs, listing)
            if isinstance(sink, AppSink):
                sink.follow = agent.follow
                sink.show_while(run, agent.stop)
            else:
                run()
    finally:
        sink.close(config.flush_timeout_s)
        if archive_sink:
            archive_sink.close(config.flush_timeout_s)
    for section, counts in agent.summary().items():
        counted = [f"{name} {count}" for name, count in counts.items() if count]
        report(f"{section}: {', '.join(counted) or 'none'}")
    if isinstance(sink, EndingSink) and sink.failure:
        raise KafkaProbeError(f"The output cannot be written: {sink.failure}.")


@contextmanager
def _stopped_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    def handle(_number: int, _frame: Any) -> None:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        stop()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
