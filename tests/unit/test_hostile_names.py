"""Names that strangers choose are text in all that the agent prints, logs, exposes and answers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import click
import orjson
import pytest
from click.testing import CliRunner

from kafka_probe import cli, logs
from kafka_probe.check import Finding
from kafka_probe.config import Config
from kafka_probe.errors import StartError
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.sinks.stdout import StdoutSink
from kafka_probe.top import LiveTop, PlainTop
from kafka_probe.trace import trace_sink
from tests.builders import events as builders
from tests.builders.fed_agent import Fed
from tests.builders.hostile import LONE_SURROGATE, NAMES, unsafe
from tests.builders.samples import opened, request
from tests.lab.agent_server import Served, serving
from tests.lab.http import Answer, get, samples
from tests.lab.processes import wait_until

PLAIN = [name for name in NAMES if name.strip() and name.isprintable() and not unsafe(name) and len(name) <= 20]
"""Names that every output shows as they are."""

OUTPUTS: dict[str, tuple[Callable[[int], StdoutSink], int]] = {
    "top": (lambda descriptor: PlainTop(descriptor=descriptor), 3),
    "top --json": (lambda descriptor: PlainTop(as_json=True, descriptor=descriptor), 1),
    "trace": (lambda descriptor: trace_sink(descriptor=descriptor), 2),
    "trace --json": (lambda descriptor: trace_sink(True, descriptor), 1),
    "run --sink stdout": (lambda descriptor: StdoutSink(descriptor=descriptor), 3),
}
"""Sink of each command, and how many lines it prints of one flow, one request and one interval."""


def named(name: str) -> list[Any]:
    """Return a flow, a request and an interval in which every name that a stranger chooses is this one."""
    common = {
        "client": builders.client(name, software_name=name, software_version=name),
        "workload": builders.workload(name, pod=name, unit=name, cmdline=name),
    }
    ids = dict.fromkeys(("group", "instance_id", "transactional_id", "mechanism"), name)
    return [
        builders.flow(**common, topics=[builders.topic(name)]),
        builders.request(**common, **ids, topics=[builders.partition(name=name)]),
        builders.agent(),
    ]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
@pytest.mark.parametrize("output", OUTPUTS)
def test_standard_output_has_safe_lines_and_no_more_than_without_the_name(output: str, name: str) -> None:
    make, expected = OUTPUTS[output]
    descriptor = os.memfd_create("stdout")
    sink = make(descriptor)
    sink.send(named(name))
    sink.close(5)
    with os.fdopen(descriptor, "rb") as printed:
        printed.seek(0)
        *lines, end = printed.read().decode().split("\n")
    assert (len(lines), end) == (expected, "")
    assert not unsafe("".join(lines))
    if output in ("top", "trace"):
        assert max(map(len, lines)) < 4000
        assert name not in PLAIN or name in lines[1]
    else:
        row = orjson.loads(lines[0])
        assert (row["client_id"] if "client_id" in row else row["client"]["id"]) == name


def test_the_live_table_shows_names_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("LINES", "100")
    live = LiveTop()
    live.send([event for name in NAMES for event in named(name)[:1]])
    live.send([builders.agent()])
    live.close(1)
    output = capsys.readouterr().out
    assert not unsafe(output)
    assert [name for name in PLAIN if name not in output] == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_has_one_record_per_line(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    logs.configure(Config(log_format=form))
    names = (*NAMES, LONE_SURROGATE)
    for name in names:
        logging.getLogger("kafka_probe").warning("refused: %s", name)
    *lines, end = capsys.readouterr().err.split("\n")
    assert (len(lines), end) == (len(names), "")
    assert not unsafe("".join(lines))
    messages = [orjson.loads(line)["message"] if form == "json" else line for line in lines]
    assert not unsafe("".join(messages))
    assert [name for name in PLAIN if not any(message.endswith(f"refused: {name}") for message in messages)] == []


def listed(served: Served, path: str) -> list[Answer]:
    """Return all pages of a list."""
    pages: list[Answer] = []
    while not pages or sum(len(page.json()["rows"]) for page in pages) < pages[0].json()["total"]:
        offset = sum(len(page.json()["rows"]) for page in pages)
        pages.append(served.get(f"/api/v1/{path}?limit=1000&offset={offset}"))
    return pages


def test_metrics_have_labels_of_bounded_visible_text_and_the_api_has_json() -> None:
    events = [
        builders.flow(
            client={"id": name, "software_name": name, "software_version": name},
            workload=builders.workload(name, unit=name),
            topics=[builders.topic(name)],
        )
        for name in NAMES
    ]
    fed = Fed()
    for conn, name in enumerate(NAMES, 1):
        fed.see(opened(conn), request(ApiKey.METADATA, 12, conn, client_id=name))
    with serving(connections=fed.agent.connections()) as served:
        served.server.send([*events, builders.agent(open=[builders.open_now(comm=name) for name in NAMES])])
        wait_until(lambda: "last_interval_timestamp_seconds 1" in served.get("/metrics").text, "the events")
        pages = {
            accept: get(f"{served.url}/metrics", accept=accept) for accept in ("*/*", "application/openmetrics-text")
        }
        lists = {path: listed(served, path) for path in ("clients", "topics", "connections")}
    for page in (*pages.values(), *chain(*lists.values())):
        assert page.status == 200
        assert not unsafe(page.text)
    labels = [dict(found) for _, found in samples(pages["*/*"].text)]
    assert max(len(value) for found in labels for value in found.values()) <= 256
    for name in PLAIN:
        assert {name} == {found["topic"] for found in labels if found.get("comm") == name and "topic" in found}
    rows = {path: [row for page in found for row in page.json()["rows"]] for path, found in lists.items()}
    assert {row["client"]["id"] for row in rows["clients"]} == set(NAMES)
    assert set(PLAIN) <= {row["topic"] for row in rows["topics"]}
    assert len(rows["connections"]) == len(NAMES)
    assert set(PLAIN) <= {row["client"]["id"] for row in rows["connections"]}


@pytest.mark.parametrize("name", [*NAMES, LONE_SURROGATE], ids=lambda name: ascii(name)[:30])
def test_a_finding_and_an_error_are_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_probe.check.findings", lambda _: iter([Finding("brokers", True, name)]))
    text = CliRunner().invoke(cli.commands, ["check"])
    assert (text.exit_code, text.stdout.count("\n"), unsafe(text.stdout)) == (0, 1, [])
    json = CliRunner().invoke(cli.commands, ["check", "--json"])
    assert (json.exit_code, json.stdout.count("\n"), unsafe(json.stdout)) == (0, 1, [])


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_an_error_of_the_command_is_text(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def fails(**_: object) -> None:
        raise StartError(f"Cannot read {name}.")

    monkeypatch.setattr(cli, "commands", fails)
    monkeypatch.setattr("sys.argv", ["kafka-probe"])
    assert cli.execute() == StartError.exit_code
    shown = capsys.readouterr().err
    assert shown.startswith("kafka-probe: Cannot read ")
    assert not unsafe(shown)
