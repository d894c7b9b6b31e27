"""The command `inspect`: which archived frames it finds, and how it shows them."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import time
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyarrow.fs import LocalFileSystem

import kafka_probe
from kafka_probe.capture.sample import Flag
from kafka_probe.cli import commands
from kafka_probe.errors import KafkaProbeError
from kafka_probe.protocol import archive_compatibility
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.kernel_allow_list import rules_hash
from kafka_probe_console import waiting
from kafka_probe_console.inspect_command import inspect
from kafka_probe_console.tables import opened as opened_tables
from scripts import archive_rules
from tests.builders import tables as builder
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.messages import CLIENT_ID, GROUP, TOPIC
from tests.builders.samples import Samples, closed, gone, opened, request, response, stream
from tests.builders.tables import write_tables

API_VERSIONS, METADATA, HEARTBEAT, PRODUCE = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.HEARTBEAT,
    ApiKey.PRODUCE,
)
NAT = {"local": "192.0.2.9:41000", "peer": "192.0.2.1:9092"}
ROOT = Path(__file__).parents[3]
HOSTILE = "=1+1\x1b[31m[/x]"


def exchange(
    correlation_id: int, api_key: int, version: int, conn: int = 1, *, at_s: float, took_us: int = 1500
) -> Samples:
    asked = request(api_key, version, conn, frame_bytes=60)
    answered = response(api_key, version, conn, latency_us=took_us, frame_bytes=300)
    asked["ts_ns"], answered["ts_ns"] = at_s * SECOND_NS, at_s * SECOND_NS + took_us * 1000
    samples = stream(asked, answered)
    samples["correlation_id"] = correlation_id
    return samples


@dataclass(frozen=True, slots=True)
class Archive:
    """Tables in a directory, and the events that they have."""

    path: Path
    events: list[dict[str, Any]]

    def inspect(self, *flags: str) -> Result:
        result = CliRunner().invoke(inspect, ["--tables", str(self.path), *flags])
        if result.exception and not isinstance(result.exception, SystemExit | KafkaProbeError):
            raise result.exception
        return result

    def rows(self, *flags: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.inspect("--json", *flags).output.splitlines()]

    def ids(self, *flags: str) -> list[int]:
        return [row["correlation_id"] for row in self.rows(*flags)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Return the archive of three connections, of which one was reset and one has a hostile client id."""
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2, handshake_us=400))
    fed.see(exchange(1, API_VERSIONS, 3, at_s=10), exchange(2, METADATA, 12, at_s=11, took_us=250_000))
    fed.see(exchange(3, HEARTBEAT, 4, at_s=45), request(PRODUCE, 9, correlation_id=4, ts_ns=50 * SECOND_NS))
    fed.see(opened(2, server_side=True, local=("10.0.0.1", 9092), peer=("10.9.9.9", 555), rx_base=5, tx_base=6))
    fed.see(exchange(9, METADATA, 1, conn=2, at_s=20), opened(3, rx_base=8, tx_base=9))
    fed.see(request(METADATA, 1, 3, client_id=HOSTILE, correlation_id=30, ts_ns=30 * SECOND_NS))
    fed.see(
        closed(1, ts_ns=80 * SECOND_NS, error=104, first_state=7, closing_ns=80 * SECOND_NS, sent_ns=50 * SECOND_NS),
        gone(1),
    )
    fed.report()
    events = [
        {**event, **({"nat": NAT} if event["kind"] == "open" and event["conn_id"] == f"{1:016x}" else {})}
        for event in fed.events()
        if event["kind"] in ("open", "close")
    ]
    (flow_id,) = {event["flow_id"] for event in events if event["conn_id"] == f"{1:016x}"}
    path = tmp_path_factory.mktemp("tables")
    verdict = {"flow_id": flow_id, "cause": "middlebox_reset", "evidence": "neither end sent the reset"}
    write_tables(path, events, fed.archive_sink.events, [verdict])
    return Archive(path, events)


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


def with_damage(archive: Archive, path: Path, *columns: str) -> Archive:
    """Return a copy with frames in row groups of one row. These columns are damaged, except for connection 1."""
    for name in ("opens", "closes"):
        shutil.copytree(archive.path / name, path / name)
    frames = DeltaTable(archive.path / "frames").to_pyarrow_table().sort_by("flow_id")
    write_deltalake(path / "frames", frames, writer_properties=WriterProperties(max_row_group_size=1))
    (uri,) = DeltaTable(path / "frames").file_uris()
    file = Path(uri.removeprefix("file://"))
    content, groups = bytearray(file.read_bytes()), pq.read_metadata(file)
    (first_flow,) = {row["flow_id"] for row in archive.rows("--workload", "billing")}
    for group in map(groups.row_group, range(groups.num_row_groups)):
        chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}
        if chunks["flow_id"].statistics.min != first_flow:
            for chunk in map(chunks.__getitem__, columns):
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                content[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(content)
    return Archive(path, [])


def test_parts_of_files_that_have_none_of_the_connections_are_not_read(archive: Archive, tmp_path: Path) -> None:
    damaged = with_damage(archive, tmp_path, "flow_id")
    assert damaged.ids("--workload", "billing") == archive.ids("--workload", "billing")
    assert "cannot be read" in str(damaged.inspect().exception)


def test_what_frames_contain_is_read_only_of_connections_with_the_first_frames(
    archive: Archive, tmp_path: Path
) -> None:
    damaged = with_damage(archive, tmp_path, "data")
    assert damaged.ids("--limit", "2") == [1, 1]
    assert "cannot be read" in str(damaged.inspect().exception)


DAY = ("--from", "2026-01-05T00:00:00+00:00", "--until", "2026-01-06T00:00:00+00:00")
MINUTES = (0, 20, 45, 10 * 60, 20 * 60)


def write_request(archive: Archive, path: Path, at: timedelta, **of: object) -> None:
    """Add a file with a request of the archive at that time of the day."""
    frames = DeltaTable(archive.path / "frames").to_pyarrow_table()
    (row,) = [row for row in frames.to_pylist() if row["correlation_id"] == 1 and not row["flags"] & 1]
    ts = datetime(2026, 1, 5, tzinfo=UTC) + at
    times = {"ts": ts, "received_ts": ts, "date": ts.date(), "hour": ts.hour}
    table = pa.Table.from_pylist([{**row, **times, **of}], frames.schema)
    write_deltalake(path / "frames", table, partition_by=["date", "hour"], mode="append")


@pytest.fixture
def day(archive: Archive, tmp_path: Path) -> Archive:
    """Return an archive of requests at MINUTES of a day, each in a file of its own. Their ids count from 0."""
    opens = DeltaTable(archive.path / "opens").to_pyarrow_table()
    dates = pa.array([date(2026, 1, 5)] * len(opens), pa.date32())
    write_deltalake(tmp_path / "opens", opens.set_column(opens.schema.get_field_index("date"), "date", dates))
    for number, minutes in reversed([*enumerate(MINUTES)]):
        write_request(archive, tmp_path, timedelta(minutes=minutes), correlation_id=number)
    return Archive(tmp_path, [])


@pytest.mark.parametrize("limit", range(1, len(MINUTES) + 2))
@pytest.mark.parametrize("condition", [(), ("--workload", "billing"), ("--api", "ApiVersions")])
def test_the_first_frames_of_a_long_period_are_those_of_the_whole(
    day: Archive, condition: tuple[str, ...], limit: int
) -> None:
    found = day.ids(*DAY, *condition, "--limit", str(limit))
    assert found == [*range(len(MINUTES))][:limit]


def test_frames_after_the_end_of_a_short_period_are_not_found(day: Archive) -> None:
    assert day.ids(*DAY[:2], "--until", "2026-01-05T00:10:00+00:00", "--limit", "2") == [0]
    assert day.ids(*DAY[:2], "--limit", "9") == [*range(len(MINUTES))]
    assert "No frame matches" in str(day.inspect("--from", "9999-12-30T20:00:00+00:00").exception)


def test_a_part_of_a_frame_with_a_slightly_later_time_is_read(archive: Archive, tmp_path: Path) -> None:
    shutil.copytree(archive.path / "opens", tmp_path / "opens")
    for part, flags in enumerate((int(Flag.MORE), 0)):
        write_request(archive, tmp_path, timedelta(minutes=30, microseconds=part - 1), part=part, flags=flags)
    found = Archive(tmp_path, []).inspect(*DAY, "--limit", "1").output
    assert found
    assert "missing" not in found


def test_files_after_the_first_frames_are_not_read(day: Archive) -> None:
    for uri in DeltaTable(day.path / "frames").file_uris():
        file = Path(uri.removeprefix("file://"))
        if "hour=10" in uri or "hour=20" in uri:
            file.write_bytes(b"\xff" * file.stat().st_size)
    assert day.ids(*DAY, "--limit", "3") == [0, 1, 2]
    for flags in ((*DAY, "--limit", "4"), (*DAY, "--limit", "3", "--sort", "bytes"), ("--limit", "3")):
        assert "cannot be read" in str(day.inspect(*flags).exception)


def test_files_on_disk_are_read_without_python(archive: Archive) -> None:
    with opened_tables(str(archive.path)) as tables:
        tables.require("frames")
        assert isinstance(tables._data["frames"].filesystem.base_fs, LocalFileSystem)


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
