"""The command `inspect`: which archived frames it finds, and how it shows them."""

from __future__ import annotations

import csv
import json
import re
import shlex
import time
from base64 import b64encode
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import kafka_probe
from kafka_probe.cli import commands
from kafka_probe.errors import KafkaProbeError
from kafka_probe.protocol import archive_compatibility
from kafka_probe.protocol.kernel_allow_list import rules_hash
from kafka_probe_console import waiting
from kafka_probe_console.inspect_command import inspect
from scripts import archive_rules
from tests.builders import tables as builder
from tests.builders.fed_agent import Fed
from tests.builders.messages import CLIENT_ID, GROUP, TOPIC
from tests.builders.samples import opened
from tests.builders.tables import write_tables
from tests.unit.console.archived import API_VERSIONS, METADATA, Archive, exchange

ROOT = Path(__file__).parents[3]


def test_all_frames_are_found_in_the_order_of_time(archive: Archive) -> None:
    rows = archive.rows()
    assert [(row["correlation_id"], row["direction"]) for row in rows] == [
        *((number, direction) for number in (1, 2, 9) for direction in ("request", "response")),
        (30, "request"),
        *((3, direction) for direction in ("request", "response")),
        (4, "request"),
    ]
    first = rows[0]
    assert (first["client"], first["api"], first["api_version"], first["frame_bytes"]) == (
        CLIENT_ID,
        "ApiVersions",
        3,
        60,
    )
    assert (first["local"], first["side"]) == ("10.0.0.7:40001", "client")
    assert archive.inspect("--count").output == "10\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--api", "metadata"), [2, 2, 9, 9, 30]),
        (("--address", "10.9.9.9"), [9, 9]),
        (("--address", "10.9.9.9:555"), [9, 9]),
        (("--address", "192.0.2.9:41000"), [1, 1, 2, 2, 3, 3, 4]),
        (("--side", "server"), [9, 9]),
        (("--workload", "bill*"), [1, 1, 2, 2, 3, 3, 4]),
        (("--cause", "middlebox_reset", "--api", "Produce"), [4]),
        (("--slower", "200"), [2]),
        (("--correlation-id", "3"), [3, 3]),
        (("--topic", TOPIC, "--address", "10.0.0.7:40001", "--correlation-id", "4"), [4]),
        (("--group", GROUP), [3]),
        (("--error", "any"), [2, 9, 3]),
        (("--client", "bill*", "--limit", "2"), [1, 1]),
        (("--sort", "latency", "--limit", "1"), [2]),
    ],
)
def test_conditions_narrow_what_is_found(archive: Archive, flags: tuple[str, ...], expected: list[int]) -> None:
    assert archive.ids(*flags) == expected


def test_a_conversation_reads_as_requests_with_their_answers_pauses_and_the_end(archive: Archive) -> None:
    lines = archive.inspect("--address", "192.0.2.9:41000", "--conversation").output.splitlines()
    assert lines[0].startswith(f"client {CLIENT_ID} (")
    assert "billing (process" in lines[0]
    assert lines[1].startswith("10.0.0.7:40001 to 10.0.0.1:9092, seen at the client's end")
    text = "\n".join(line.partition("  ")[2].strip() or line for line in lines[2:])
    assert "ApiVersions 3 #1, 60 bytes: software name" in text
    assert "response after 1.5 ms, 300 bytes: " in text
    assert "33.8 s of silence" in text
    assert "no response seen\nclosed by the server (rst_received) after 30.0 s of silence" in text
    assert lines[-1].strip() == "middlebox_reset: neither end sent the reset"
    assert text.index("ApiVersions") < text.index("Metadata") < text.index("Heartbeat") < text.index("Produce 9")


def test_a_connection_without_frames_does_not_count_as_one_that_was_shown(tmp_path: Path) -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1), opened(2, rx_base=3, tx_base=4), exchange(1, API_VERSIONS, 0, conn=2, at_s=10))
    fed.report()
    write_tables(tmp_path, fed.events("open"), fed.archive_sink.events)
    output = Archive(tmp_path, []).inspect("--address", "10.0.0.7", "--conversation", "--limit", "1").output
    assert "ApiVersions 0 #1" in output


def test_a_conversation_needs_no_row_about_its_connection(tmp_path: Path) -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1, rx_base=1, tx_base=2), exchange(1, API_VERSIONS, 0, at_s=10))
    write_tables(tmp_path, [], fed.archive_sink.events)
    lines = Archive(tmp_path, []).inspect("--conversation").output.splitlines()
    assert lines[0] == "client without id, an unknown process"
    assert lines[1].startswith("unknown to unknown, seen at the client's end on node-1, flow ")
    assert [line.split()[1] for line in lines[2:]] == ["ApiVersions", "after"]


def test_frames_that_were_copied_by_other_rules_are_read_by_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1), exchange(1, METADATA, 12, at_s=10))
    fed.report()
    older = {"hash": "0" * 16, "requests": [], "responses": [int(METADATA)], "hidden": {}, "emptied": {}}
    table = tmp_path / "rules.json"
    table.write_text(json.dumps({**json.loads(archive_compatibility.TABLE.read_text()), "0.0.9": older}))
    monkeypatch.setattr(archive_compatibility, "TABLE", table)
    monkeypatch.setattr(archive_compatibility, "_rules_by_hash", archive_compatibility._rules_by_hash.__wrapped__)
    contents = {}
    for rules in (rules_hash(), "0" * 16, "1" * 16):
        events = json.loads(json.dumps(fed.archive_sink.events))
        for event in events:
            event["copy_rules"] = rules
            columns = event["samples"]
            if rules == "0" * 16:  # of a request the client id alone
                client_id = b64encode(len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()).decode()
                pairs = zip(columns["flags"], columns["data"], strict=True)
                columns["data"] = [data if flags & 1 else client_id for flags, data in pairs]
        write_tables(tmp_path / rules, fed.sink.events, events)
        contents[rules] = [row["contents"] for row in Archive(tmp_path / rules, []).rows()]
    now, before, unknown = contents.values()
    assert before[1] == now[1]
    assert TOPIC in now[0]
    assert before[0] == "the rest was not copied"
    assert unknown == [f"copied by rules {'1' * 16}, which this release does not know; a newer one reads it"] * 2


def test_the_rules_of_this_release_are_in_the_table() -> None:
    assert archive_compatibility.TABLE.read_text() == archive_rules.build()


def test_a_release_keeps_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\n## [{kafka_probe.__version__}] - 2026-12-01\n")
    monkeypatch.setattr(archive_rules, "CHANGELOG", changelog)
    assert archive_rules.build() == archive_compatibility.TABLE.read_text()
    monkeypatch.setattr(archive_rules, "rules_hash", lambda: "changed")
    with pytest.raises(ValueError, match="raise the version first"):
        archive_rules.build()


def test_what_matters_of_each_api_is_named(archive: Archive) -> None:
    contents = {(row["correlation_id"], row["direction"]): row["contents"] for row in archive.rows()}
    assert "Produce 0-" in contents[1, "response"]
    assert f"topic {TOPIC}" in contents[2, "request"] or TOPIC in contents[2, "request"]
    assert "broker " in contents[2, "response"]
    assert f"group {GROUP}" in contents[3, "request"]
    assert "bytes of records" in contents[4, "request"]


def test_hostile_names_are_text_in_a_terminal_and_in_csv(archive: Archive) -> None:
    flags = ("--correlation-id", "30")
    for output in ((), ("--json",), ("--conversation",)):
        shown = archive.inspect(*flags, *output).output
        assert "=1+1" in shown
        assert "\x1b" not in shown
    (row,) = csv.DictReader(StringIO(archive.inspect(*flags, "--csv").output))
    assert row["client"] == r"'=1+1\x1b[31m[/x]"
    assert row["latency_us"] == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--client", "nobody"), "No connection matches. The tables have the clients "),
        (("--correlation-id", "77"), "No frame matches. The archive has 10 frames, from "),
        (("--api", "Banana"), "There is no API Banana."),
        (("--since", "soon"), "'soon' is no time"),
        (("--since", "1h", "--from", "2h"), "Use --since or --from, not both."),
        (("--from", "1h", "--until", "2h"), "--until must be after --from"),
        (("--count", "--json"), "Use one of"),
        (("--flow", "ffff", "--conversation"), "No frame matches."),
    ],
)
def test_what_finds_nothing_or_is_wrong_is_one_sentence(archive: Archive, flags: tuple[str, ...], message: str) -> None:
    result = archive.inspect(*flags)
    assert isinstance(result.exception, KafkaProbeError)
    assert str(result.exception).startswith(message)


@pytest.mark.parametrize(
    "value", ["x' OR '1'='1", "'; COPY frames TO '/tmp/x'", "read_text('/etc/passwd')", "%", "*' --"]
)
@pytest.mark.parametrize("flag", ["--client", "--address", "--flow", "--node", "--topic", "--cause", "--workload"])
def test_values_are_never_text_of_a_question(archive: Archive, flag: str, value: str) -> None:
    result = archive.inspect(flag, value)
    assert isinstance(result.exception, KafkaProbeError)
    assert " matches. " in str(result.exception)


def test_documented_commands_find_frames_here_or_none(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = "\n".join((ROOT / document).read_text() for document in ("README.md", "docs/guide/archive.md"))
    found = re.findall(r"\.venv/bin/kafka-probe inspect ([^`\n]+)", written)
    assert found
    for command in found:
        words = shlex.split(command.replace("kafka-probe-output", str(archive.path)))
        result = CliRunner().invoke(inspect, words)
        assert "--tables" in words
        assert result.exit_code == 0 or " matches. " in str(result.exception), command


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_search_has_a_bar_on_a_terminal_until_the_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(waiting, "LONG_S", 0.01)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with waiting.Waiting() as search:
        time.sleep(0.3)
        assert [*search.until_first("ab")] == ["a", "b"]
    assert ("Reading the tables" in capsys.readouterr().err) == terminal


def test_more_frames_than_are_read_at_once_are_found_with_their_ends(tmp_path: Path) -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1, rx_base=1, tx_base=2), *(exchange(number, METADATA, 1, at_s=10) for number in range(700)))
    fed.report()
    write_tables(tmp_path, fed.sink.events, fed.archive_sink.events)
    large = Archive(tmp_path, [])
    assert len(large.ids("--limit", "2000")) == 1400
    assert large.ids("--topic", TOPIC, "--limit", "3") == [0, 1, 2]  # requests of one time
    assert "#699" in large.inspect("--topic", TOPIC, "--conversation").output


def test_tables_of_a_release_without_names_of_containers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_OPENS", "_CLOSES"):
        schema = getattr(builder, name)
        older = pa.struct([field for field in schema.field("workload").type if field.name != "container_name"])
        at = schema.get_field_index("workload")
        monkeypatch.setattr(builder, name, schema.set(at, pa.field("workload", older)))
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2), exchange(1, METADATA, 1, at_s=10))
    fed.report()
    write_tables(tmp_path, fed.sink.events, fed.archive_sink.events)
    before = Archive(tmp_path, [])
    assert before.ids("--workload", "bill*") == [1, 1]
    assert before.rows("--client", "*")[0]["client"] == CLIENT_ID


def test_a_missing_and_a_damaged_table_are_one_sentence_each(tmp_path: Path) -> None:
    nowhere = Archive(tmp_path / "nothing", []).inspect()
    assert str(nowhere.exception).startswith(f"There is no table frames in {tmp_path}/nothing: set --tables")
    log = tmp_path / "frames" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{]")
    damaged = Archive(tmp_path, []).inspect()
    assert isinstance(damaged.exception, KafkaProbeError)
    assert str(damaged.exception).startswith(f"The table {tmp_path}/frames cannot be read: ")


def test_it_is_a_subcommand_of_the_one_command() -> None:
    shown = CliRunner().invoke(commands, ["inspect", "--help"])
    assert "archived frames" in shown.output
    assert "inspect" in CliRunner().invoke(commands, ["--help"]).output
