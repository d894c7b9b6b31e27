"""The command `inspect` reads only the parts of tables that may have what it looks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyarrow.fs import LocalFileSystem

from kafka_probe.capture.sample import Flag
from kafka_probe_console.tables import OpenTables, Row
from kafka_probe_console.tables import opened as opened_tables
from tests.unit.console.archived import Archive

DAY = ("--from", "2026-01-05T00:00:00+00:00", "--until", "2026-01-06T00:00:00+00:00")
MINUTES = (0, 20, 45, 10 * 60, 20 * 60)


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


@pytest.mark.parametrize(("since", "counts"), [("1h", 0), ("90m", 1), ("8h", 1), ("12h", 2)])
def test_frames_are_counted_first_if_that_may_leave_out_most_of_a_period(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, since: str, counts: int
) -> None:
    asked: list[str] = []
    rows = OpenTables.rows

    def noted(self: OpenTables, sql: str, *given: Any, **flags: Any) -> Iterator[Row]:
        asked.append(sql)
        return rows(self, sql, *given, **flags)

    monkeypatch.setattr(OpenTables, "rows", noted)
    archive.inspect("--since", since)
    assert sum("SELECT count(*) FROM (SELECT 1 FROM frames" in sql for sql in asked) == counts


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
