"""The commands that answer questions from the tables: which rows they print, and in which forms."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kafka_probe.cli import commands
from kafka_probe.errors import KafkaProbeError
from kafka_probe_console import answer_command, printing
from kafka_probe_console.agents_command import agents
from kafka_probe_console.disconnects_command import disconnects
from kafka_probe_console.storms_command import storms
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

ago = FirstUse().ago
DOCUMENTS = ("README.md", "docs/guide/answers.md", "docs/guide/disconnects.md", "docs/guide/host.md")
HOSTILE = "=1+1\x1b[31m"
Rows = Sequence[dict[str, Any]]


def ended(cause: str, client_id: str | None, at: datetime, comm: str | None = None, **of: object) -> dict[str, Any]:
    """Return a verdict. comm: of the client's end; None: only the broker's end was watched."""
    client = {"id": client_id}
    watched = {"node": "node-1", "peer": "10.0.0.1:9092", "client": client, "workload": {"comm": comm, "pid": 7}}
    server = {"node": "broker-1", "local": "10.0.0.1:9092", "client": client, "workload": {"comm": "java", "pid": 1}}
    return {"cause": cause, "ts": at, "client": watched if comm else None, "server": server, **of}


def verdict_rows() -> Rows:
    return [
        *(
            ended("middlebox_reset", f"billing-{n % 3}", ago(minutes=n), "python", idle_us=300_000_000)
            for n in range(1, 31)
        ),
        *(ended("normal", "orders", ago(minutes=n)) for n in range(1, 11)),
        ended("normal", "kafka-probe-agent", ago(minutes=1), "kafka-probe"),
        ended("process_exit", HOSTILE, ago(hours=3), "java"),
        ended("normal", "old", ago(days=3)),
    ]


def storm_rows() -> Rows:
    storm = {"id": "a", "kind": "idle_disconnects", "cause": "middlebox_reset", "opened_ts": ago(minutes=30)}
    return [
        {**storm, "ts": ago(minutes=30), "state": "active", "count": 20, "share": 0.25, "since_ts": ago(minutes=31)},
        {
            **storm,
            "ts": ago(minutes=20),
            "state": "resolved",
            "count": 30,
            "share": 0.5,
            "idle_us": 300_000_000,
            "since_ts": ago(minutes=31),
            "resolved_ts": ago(minutes=20),
            "scope": "network 10.0.0.0/24",
            "workloads": [{"count": 30, "name": "python billing"}],
        },
        {"id": "b", "kind": "crash_loop", "opened_ts": ago(days=3), "ts": ago(days=3), "state": "active", "count": 5},
        {
            "id": "c",
            "kind": "crash_loop",
            "opened_ts": ago(days=4),
            "ts": ago(days=4),
            "state": "resolved",
            "resolved_ts": ago(days=3.9),
        },
    ]


def report(node: str, agent_id: str, at: datetime, **of: object) -> dict[str, Any]:
    return {"node": node, "agent_id": agent_id, "ts": at, "received_ts": at, "version": "0.1.0", "losses": {}, **of}


def agent_rows() -> Rows:
    return [
        report("node-1", "old", ago(hours=2), cpu_us=5, losses={"gap": 9}),
        report("node-1", "new", ago(minutes=11), seq=7, cpu_us=1_000_000, connections=1, losses={"gap": 0}),
        report(
            "node-1",
            "new",
            ago(minutes=1),
            seq=8,
            cpu_us=13_000_000,
            connections=8,
            rss_bytes=1 << 26,
            losses={"gap": 2, "x": 0, "peer_limited": 1},
        ),
        report("node-2", "third", ago(minutes=30), cpu_us=7, backend="kprobe", losses=None),
        report(
            "node-3", "forged", ago(minutes=2), seq=1, cpu_us=-(1 << 62), losses={"gap": (1 << 63) - 1, "x": 1 << 62}
        ),
        report("node-3", "forged", ago(minutes=1), seq=2, cpu_us=1 << 62, losses={"gap": (1 << 63) - 1, "x": 1 << 62}),
    ]


def open_rows() -> Rows:
    """Return the ends of connections that are watched at both ends, at the broker's, at the client's, and unknown."""
    at = ago(minutes=5)
    return [
        *(end(side, "1", "billing", at, flow_id="both") for side in ("client", "server")),
        *(end("server", str(n), "orders", at, flow_id=f"of broker {n}") for n in (2, 3)),
        end("server", "4", "kafka-probe-agent", at, flow_id="own"),
        end("client", "5", "billing", at, flow_id="of client"),
        end("client", "6", "billing", at),
        # Its own end is listed, and has no flow_id yet.
        end("client", "7", None, at, local="10.57.1.12:52224", found="listed"),
        end("server", "7", "billing", at, flow_id="of a listed one", peer="10.57.1.12:52224"),
    ]


@dataclass(frozen=True, slots=True)
class Tables:
    path: Path

    def run(self, command: click.Command, *flags: str) -> Result:
        return asked(command, self.path, *flags)

    def rows(self, command: click.Command, *flags: str) -> list[dict[str, Any]]:
        return answered(command, self.path, *flags)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    path = tmp_path_factory.mktemp("tables")
    of_table = {"verdicts": verdict_rows(), "storms": storm_rows(), "agents": agent_rows(), "opens": open_rows()}
    for name, rows in of_table.items():
        write_rows(path, name, rows)
    return Tables(path)


def test_disconnects_are_counted_by_cause_without_those_of_kafka_probe(tables: Tables) -> None:
    found = tables.rows(disconnects)
    assert [(row["cause"], row["count"], row["clients"]) for row in found] == [
        ("middlebox_reset", 30, 3),
        ("normal", 10, 1),
        ("process_exit", 1, 1),
    ]
    assert found[0]["percent"] == pytest.approx(100 * 30 / 41)
    assert (found[0]["top_workload"], found[0]["top_node"]) == ("python", "node-1")
    assert found[0]["top_broker"] == "10.0.0.1:9092"
    assert found[0]["idle_s"] == 300
    assert (found[1]["top_workload"], found[1]["top_node"], found[1]["idle_s"]) == (None, "broker-1", None)
    assert found[0]["last"] == ago(minutes=1).isoformat()


def test_disconnects_of_kafka_probe_and_of_earlier_days_are_counted_on_request(tables: Tables) -> None:
    (normal,) = tables.rows(disconnects, "--internal", "--since", "7d", "--filter", "cause = normal")
    assert (normal["count"], normal["clients"]) == (12, 3)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--by", "client", "--filter", "client ~ 'billing-*'"), ["billing-0", "billing-1", "billing-2"]),
        (("--by", "client", "--filter", "count = 10 and cause = normal"), ["orders"]),
        (("--by", "client", "--sort", "client", "--limit", "1"), [HOSTILE]),
        (("--by", "client", "--from", "4h", "--until", "2h"), [HOSTILE]),
        (("--by", "workload", "--filter", "workload = python"), ["python"]),
    ],
)
def test_disconnects_are_counted_by_more_than_the_cause(
    tables: Tables, flags: tuple[str, ...], expected: list[str]
) -> None:
    assert [row[flags[1]] for row in tables.rows(disconnects, *flags)] == expected


def test_storms_have_their_last_state(tables: Tables) -> None:
    first, second = tables.rows(storms)
    assert (first["id"], first["state"], first["count"], first["percent"]) == ("a", "resolved", 30, 50)
    assert (first["workload"], first["scope"], first["idle_s"]) == ("python billing", "network 10.0.0.0/24", 300)
    assert (second["id"], second["cause"]) == ("b", "crash_loop")
    assert [row["id"] for row in tables.rows(storms, "--since", "7d")] == ["a", "b", "c"]
    assert [row["id"] for row in tables.rows(storms, "--from", "5d", "--until", "2d")] == ["b", "c"]


def test_agents_have_their_last_report_their_cost_and_what_they_lost(tables: Tables) -> None:
    first, second, forged = tables.rows(agents)
    assert (first["runs"], forged["lost"]) == (2, 9 * 10**18)
    assert (first["node"], first["agent_id"], first["state"], first["connections"]) == ("node-1", "new", "reporting", 8)
    assert (first["lost"], first["losses"]) == (3, "gap 2, peer_limited 1")
    assert first["cpu_percent"] == pytest.approx(2)
    assert first["rss_mib"] == 64
    assert (second["node"], second["state"], second["lost"], second["cpu_percent"]) == ("node-2", "silent", 0, None)


def test_each_loss_is_explained_once_below_the_table(tables: Tables) -> None:
    explained = [line for line in tables.run(agents).stdout.splitlines() if ": " in line]
    assert explained == [
        "gap: stretches of bytes with the start of a frame that no hook saw: their frames are missing.",
        "peer_limited: samples of one client address or process beyond its share of the buffer: see Limits.",
    ]
    assert "stretches" not in tables.run(agents, "--columns", "node,lost").stdout


def test_hosts_without_an_agent_are_those_at_the_far_ends_of_what_is_watched(tables: Tables) -> None:
    hosts = tables.rows(agents, "--missing")
    assert [(row["host"], row["side"], row["connections"], row["top_client"]) for row in hosts] == [
        ("10.57.2.2", "client", 2, "orders"),
        ("192.0.2.1", "server", 1, "billing"),
    ]


def test_without_reports_nobody_knows_which_agents_are_silent(tmp_path: Path) -> None:
    write_rows(tmp_path, "agents", [report("node-1", "a", ago(hours=1)), report("node-2", "b", ago(hours=2))])
    old = Tables(tmp_path)
    assert [row["state"] for row in old.rows(agents)] == ["unknown", "unknown"]
    assert "the pipeline or all agents stand still" in old.run(agents).stderr


def test_times_beyond_those_of_a_calendar_are_numbers(tmp_path: Path) -> None:
    write_rows(tmp_path, "storms", [{**storm_rows()[0], "since_ts": datetime(9999, 12, 31, 23, tzinfo=UTC)}])
    (row,) = Tables(tmp_path).rows(storms)
    assert row["since"].startswith("9999-12-31")


def test_a_table_leaves_out_the_last_columns_on_a_narrow_terminal(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables.run(disconnects, "--by", "client").stdout.splitlines()
    assert whole[0].split()[:4] == ["client", "cause", "count", "percent"]
    assert len(whole) == 1 + 5
    monkeypatch.setattr("kafka_probe_console.answer_command.terminal_columns", lambda: 80)
    *lines, last = tables.run(disconnects, "--by", "client").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 1 + 5
    assert last.startswith("Not shown: ")
    assert "first. A wider terminal or --columns shows them." in last
    assert tables.run(disconnects, "--columns", "first,cause,top_node").stdout.split()[:2] == ["first", "cause"]


def test_a_name_longer_than_the_terminal_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, "verdicts", [ended("normal", "c" * 249, ago(minutes=1))])
    monkeypatch.setattr("kafka_probe_console.answer_command.terminal_columns", lambda: 40)
    head, row, _ = Tables(tmp_path).run(disconnects, "--by", "client").stdout.splitlines()
    assert (head, row) == ("client", "c" * 39 + "…")


def test_hostile_names_are_text_on_the_terminal_and_in_csv(tables: Tables) -> None:
    flags = ("--by", "client", "--filter", "cause = process_exit")
    shown = tables.run(disconnects, *flags).stdout
    assert "=1+1\\x1b[31m" in shown
    assert "\x1b" not in shown
    (row,) = csv.DictReader(StringIO(tables.run(disconnects, "--csv", *flags).stdout))
    assert row["client"] == "'=1+1\\x1b[31m"
    assert row["count"] == "1"


def test_more_rows_than_the_limit_are_mentioned(tables: Tables) -> None:
    result = tables.run(disconnects, "--limit", "1")
    assert len(result.stdout.splitlines()) == 2
    assert "Further rows match: raise --limit" in result.stderr
    assert "The newest report of an agent in the tables is from" in result.stderr


def test_nothing_that_matches_is_an_error_with_what_there_is(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No disconnect matches\. The tables have 43, from ") as found:
        tables.run(disconnects, "--filter", "cause = none")
    assert found.value.exit_code == 1
    write_rows(tmp_path, "storms", [])
    with pytest.raises(KafkaProbeError, match=r"No storm matches\. The tables have no storm\."):
        Tables(tmp_path).run(storms)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--columns", "count,x"), "There is no column 'x'. The columns are cause, count, "),
        (("--sort", "x"), "There is no column 'x'"),
        (("--filter", "x = 1"), "There is no column 'x'"),
        (("--json", "--csv"), "Use one of --json and --csv."),
        (("--since", "soon"), "'soon' is no time"),
        (("--since", "999999d"), "is no time"),
        (("--from", "0001-01-01T00:00Z"), "between the years 1 and 9999"),
        (("--until", "9999-12-31T12:00Z"), "between the years 1 and 9999"),
        (("--filter", "cause = \udc80"), "not valid UTF-8"),
        (("--sort", "cause,count"), "Give one column to sort by"),
    ],
)
def test_what_is_used_incorrectly_is_refused(tables: Tables, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(KafkaProbeError, match=re.escape(message)) as found:
        tables.run(disconnects, *flags)
    assert found.value.exit_code == 2


def test_nodes_that_were_not_watched_are_named_where_nothing_matches(tmp_path: Path) -> None:
    write_rows(tmp_path, "storms", storm_rows())
    minutes = {"steady": range(1, 30), "gap": [*range(1, 10), *range(18, 30)], "ended\x1b": range(20, 30)}
    reports = [{"node": node, "received_ts": ago(minutes=minute)} for node, of in minutes.items() for minute in of]
    write_rows(tmp_path, "agents", reports)
    message = re.compile(
        r"Node ended\\x1b has not been watched since \S+ \S+\. "
        r"Node gap was not watched from \S+ \S+ to \S+ \S+\.$"
    )
    with pytest.raises(KafkaProbeError, match=message):
        asked(storms, tmp_path, "--from", "15m", "--until", "10m", "--filter", "id = none")
    with pytest.raises(KafkaProbeError) as watched:
        asked(storms, tmp_path, "--from", "28m", "--until", "25m", "--filter", "id = none")
    assert "watched" not in str(watched.value)


def test_documented_commands_find_rows(tables: Tables) -> None:
    for command in (agents, disconnects, storms):
        assert command.name
        for flags in documented_flags(command.name, *DOCUMENTS):
            assert tables.run(command, *flags).exit_code == 0


def test_the_commands_are_those_of_the_agent() -> None:
    names = CliRunner().invoke(commands, ["--help"]).output
    assert all(
        f"\n  {name} " in names
        for name in (
            *("agents", "changes", "clients", "connections", "disconnects", "map", "producers", "storms", "topic"),
            *("topics", "upgrade", "who", "why"),
        )
    )


def test_without_a_terminal_there_is_no_width(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert printing.terminal_columns(file.fileno()) is None


def test_a_question_that_takes_too_long_is_ended_with_a_sentence(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_command, "_TIME_LIMIT_S", 0)
    with pytest.raises(KafkaProbeError, match=r"^This takes too long: choose a shorter period\.$"):
        asked(disconnects, tables.path)


def test_a_question_is_repeated_until_it_is_interrupted(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = iter([None, None])

    def sleep(seconds: float) -> None:
        assert seconds == 7
        if next(pauses, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    repeated = tables.run(storms, "--watch", "7", "--columns", "id")
    assert (repeated.exit_code, repeated.stdout) == (0, 3 * tables.run(storms, "--columns", "id").stdout)
    pauses = iter([])
    assert "No storm matches." in tables.run(storms, "--watch", "7", "--filter", "id = none").stderr
    with pytest.raises(KafkaProbeError, match="Use --watch without --csv"):
        tables.run(storms, "--watch", "7", "--csv")
