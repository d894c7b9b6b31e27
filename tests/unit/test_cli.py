"""The command from outside: exit status, one sentence on standard error, signals, and flags from one class."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import orjson
import pytest
from click import Command
from click.testing import CliRunner

from kafka_probe import cli
from kafka_probe.command_group import SettingOption
from kafka_probe.config import Config, DaemonConfig, flag_of, is_secret
from kafka_probe.errors import StartError
from kafka_probe.sinks.stdout import StdoutSink
from kafka_probe.top import PlainTop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_probe.memory import Bounds
from kafka_probe.sinks.sink import Sink

SOURCES = Path(cli.__file__).parents[1]
# Another user could not even read a checkout below a private folder; the kernel asks for capabilities only.
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.fixture(autouse=True)
def _logging_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore logging after a command in this process, which sets it up for its own standard error."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)


def probe(*arguments: str, wrapper: Sequence[str] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `kafka-probe` as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [*wrapper, sys.executable, "-m", "kafka_probe", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", ["run", "top", "trace", "follow", "check"])
def test_an_unknown_flag_is_wrong_use_and_named(command: str) -> None:
    result = probe(command, "--portz", "9092")
    assert result.returncode == 2
    assert "--portz" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_command_is_wrong_use_and_named() -> None:
    result = probe("sniff")
    assert result.returncode == 2
    assert "sniff" in result.stderr


def test_a_bad_value_is_wrong_use_in_one_line() -> None:
    result = probe("trace", "--requests", "slower:now")
    assert result.returncode == 2
    assert result.stderr.startswith("kafka-probe: --requests: ")
    assert result.stderr.count("\n") == 1


def test_a_broken_configuration_file_is_wrong_use_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "probe.toml"
    file.write_text("ports = [9092\n")
    result = probe("run", KAFKA_PROBE_CONFIG=str(file))
    assert result.returncode == 2
    assert str(file) in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_misspelt_variable_is_wrong_use_and_an_unknown_one_a_warning() -> None:
    result = probe("run", KAFKA_PROBE_PROTS="9093")
    assert (result.returncode, result.stderr) == (
        2,
        "kafka-probe: Unknown variable KAFKA_PROBE_PROTS: did you mean KAFKA_PROBE_PORTS?\n",
    )
    result = probe("run", KAFKA_PROBE_TOKEN="1")
    warning = "WARNING The variable KAFKA_PROBE_TOKEN is not a setting and is ignored; the most similar one is "
    assert f"{warning}KAFKA_PROBE_LISTEN_TOKEN." in result.stderr
    assert "Name the brokers" in result.stderr


def test_no_brokers_for_the_events_is_wrong_use_that_says_what_to_do() -> None:
    result = probe("run")
    assert result.returncode == 2
    assert "--bootstrap-servers" in result.stderr
    assert "--sink stdout" in result.stderr


@pytest.mark.root
@pytest.mark.parametrize(
    "arguments", [("run", "--sink", "stdout", "--listen", "off"), ("top",), ("trace",), ("follow",)], ids=lambda a: a[0]
)
def test_without_root_it_does_not_start_and_says_so_in_one_sentence(arguments: tuple[str, ...]) -> None:
    result = probe(*arguments, wrapper=WITHOUT_RIGHTS)
    assert result.returncode == 3
    assert "privileges" in result.stderr
    assert "root" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "TIME" not in result.stdout


@pytest.mark.root
def test_check_without_root_names_the_missing_rights_and_fails() -> None:
    result = probe("check", "--json", wrapper=WITHOUT_RIGHTS)
    found = {finding["name"]: finding for line in result.stdout.splitlines() if (finding := orjson.loads(line))}
    assert result.returncode == 3
    assert not found["privileges"]["ok"]
    assert found["packages"]["ok"]


def test_check_prints_a_line_per_finding_and_the_remedy_of_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from kafka_probe.check import Finding

    found = [Finding("one", True, "is there", "never shown"), Finding("two", False, "is not", "get it")]
    monkeypatch.setattr("kafka_probe.check.findings", lambda _: iter(found))
    result = CliRunner().invoke(cli.commands, ["check"])
    assert result.exit_code == 3
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ok", "one", "is", "there"],
        ["FAIL", "two", "is", "not"],
        ["->", "get", "it"],
    ]


def test_version_says_its_own_and_that_of_the_schema() -> None:
    result = probe("version")
    assert result.returncode == 0
    assert result.stdout.startswith("kafka-probe ")
    assert "event schema 1" in result.stdout


@pytest.mark.parametrize("arguments", [("version",), ("run", "--help")])
def test_what_needs_no_capture_loads_neither_bcc_nor_a_client(arguments: tuple[str, ...]) -> None:
    result = probe(*arguments, PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "kafka_probe.cli" in loaded
    assert loaded.isdisjoint({"bcc", "kafka", "rich.live", "numpy", "uvicorn", "starlette", "prometheus_client"})


def test_every_field_is_a_flag_of_run_except_secrets() -> None:
    flags = {option for parameter in cli.run.params for option in parameter.opts}
    fields = {flag_of(name) for name, field in Config.model_fields.items() if not is_secret(field)}
    assert flags == fields | {"--config"}


@pytest.mark.parametrize("command", [cli.top, cli.trace, cli.follow])
def test_what_only_looks_has_no_flag_of_a_sink_or_a_server(command: Command) -> None:
    names = {parameter.name for parameter in command.params if isinstance(parameter, SettingOption)}
    assert "ports" in names
    assert names.isdisjoint(DaemonConfig.model_fields)


def test_help_of_a_command_has_its_own_options_first_and_defaults_that_are_true() -> None:
    def sections(command: str) -> dict[str, str]:
        text = CliRunner().invoke(cli.commands, [command, "--help"], prog_name="kafka-probe").stdout
        parts = [" ".join(part.split()) for part in text.split("\n\n")]
        return {part.partition(":")[0]: part for part in parts}

    traced, running = sections("trace"), sections("run")
    assert "--topic PATTERN" in traced["Options"]
    assert "are always sent, within limits [default: all]" in traced["Capture"]
    assert "lowest level of logged messages [default: warning]" in traced["Capture"]
    assert "lowest level of logged messages [default: info]" in running["Capture"]
    assert "--topic TEXT" in running["Destination of the events"]
    assert "--listen HOST:PORT|off" in running["HTTP server and archive"]
    assert "Destination of the events" not in traced


def test_help_separates_commands_of_this_host_from_those_that_read_tables() -> None:
    text = CliRunner().invoke(cli.commands, ["--help"], prog_name="kafka-probe").stdout
    of_host, of_tables = text.split("Commands on this host:")[1].split("Commands that read the pipeline's tables:")
    assert [name for name in ("run", "top", "check") if f"\n  {name} " not in of_host] == []
    assert [name for name in ("why", "who", "inspect") if f"\n  {name} " not in of_tables] == []
    assert "..." not in of_host + of_tables


@pytest.mark.parametrize("command", ["run", "top", "trace", "follow"])
def test_help_ends_with_examples(command: str) -> None:
    result = CliRunner().invoke(cli.commands, [command, "--help"], prog_name="kafka-probe")
    assert f"Examples:\n    kafka-probe {command}" in result.stdout


class Standstill:
    """An agent that does nothing until it is stopped. `made` are all of them, with their further settings."""

    made: ClassVar[list[tuple[Standstill, dict[str, object]]]] = []

    def __init__(
        self, config: Config, sink: Sink, _local_sinks: Sequence[Sink], _bounds: Bounds, **settings: object
    ) -> None:
        self.made.append((self, settings))
        self.config = config
        self.sink = sink
        self.stops = 0

    def run(self, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert self.stops == 1

    def stop(self) -> None:
        self.stops += 1

    def connections(self) -> tuple[()]:
        return ()

    lags = both_ends_here = connections

    def summary(self) -> dict[str, dict[str, int]]:
        return {"losses": {"ring_full": 0}, "counters": {"events": 7}}


@pytest.fixture
def standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the agent by one that stands still, and attaching by nothing."""
    monkeypatch.setattr("kafka_probe.agent.Agent", Standstill)
    monkeypatch.setattr("kafka_probe.startup.attached", lambda *_: nullcontext((None, None)))


@pytest.mark.usefixtures("standstill")
def test_a_signal_stops_the_agent_and_the_command_ends_well_with_its_counts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(cli.commands, ["trace", "--json"])
    assert result.exit_code == 0, result.output
    assert result.output == "losses: none\ncounters: events 7\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("standstill")
@pytest.mark.parametrize("internal", [False, True])
def test_trace_and_top_show_own_traffic_on_request(internal: bool) -> None:
    for command in ("trace", "top"):
        arguments = [command, "--json", *(["--internal"] if internal else [])]
        assert CliRunner().invoke(cli.commands, arguments).exit_code == 0
    (_, of_trace), (top, _) = Standstill.made[-2:]
    assert of_trace == {"archive_sink": None, "internal_requests": internal}
    assert isinstance(top.sink, PlainTop)
    assert top.sink._internal == internal


@pytest.mark.usefixtures("standstill")
@pytest.mark.parametrize("terminal", [True, False])
def test_top_says_on_a_terminal_what_it_waits_for_before_it_attaches(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before: list[str] = []

    def attached(*_: object) -> nullcontext[tuple[None, None]]:
        before.append(capsys.readouterr().err)
        return nullcontext((None, None))

    monkeypatch.setattr("kafka_probe.startup.attached", attached)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    cli.commands.main(["top", "--json", "--ports", "9092,9093", "--interval-s", "2"], standalone_mode=False)
    announced = "Attaching to the kernel, then watching ports 9092, 9093; first figures 2 s later ...\n"
    assert before == [announced if terminal else ""]


@pytest.mark.usefixtures("standstill")
def test_the_daemon_logs_its_counts_in_the_form_of_its_log() -> None:
    result = CliRunner().invoke(cli.commands, ["run", "--sink", "stdout", "--listen", "off", "--log-format", "json"])
    assert result.exit_code == 0, result.output
    assert [orjson.loads(line)["message"] for line in result.output.splitlines()] == [
        "losses: none",
        "counters: events 7",
    ]


def test_an_agent_that_cannot_start_still_closes_its_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[float] = []

    def refuse(*_: object) -> None:
        raise StartError("No.")

    monkeypatch.setattr("kafka_probe.startup.attached", refuse)
    monkeypatch.setattr(StdoutSink, "close", lambda _, timeout_s: closed.append(timeout_s))
    result = CliRunner().invoke(cli.commands, ["trace", "--json"])
    assert isinstance(result.exception, StartError)
    assert closed == [10.0]


TWO_SIGNALS = """
import os, signal, threading
from kafka_probe import cli
with cli._stopped_by_signal(lambda: print("stopping", flush=True)):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(30)
"""


def test_a_second_signal_ends_the_process_at_once() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    result = subprocess.run([sys.executable, "-c", TWO_SIGNALS], env=environment, capture_output=True, timeout=20)
    assert result.stdout == b"stopping\n"
    assert result.returncode == -signal.SIGINT
