"""The coverage table lists every API, and what the decoder keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.protocol import coverage
from kafka_probe.protocol.kernel_allow_list import HEADER_ONLY
from kafka_probe.protocol.schemas import apis


@pytest.fixture
def table(tmp_path: Path) -> list[dict[str, Any]]:
    assert coverage.main(["--json", str(tmp_path / "build" / "protocol.json")]) == 0
    written: dict[str, list[dict[str, Any]]] = json.loads((tmp_path / "build" / "protocol.json").read_text())
    return written["apis"]


def test_every_api_has_its_versions_in_both_directions(table: list[dict[str, Any]]) -> None:
    assert [row["key"] for row in table] == list(range(93))
    for row in table:
        versions = list(apis()[row["key"]].versions)
        assert row["request_versions"] == row["response_versions"] == versions


def test_what_never_leaves_is_header_only(table: list[dict[str, Any]]) -> None:
    by_name = {row["name"]: row for row in table}
    for name in HEADER_ONLY:
        assert by_name[name]["request_header_only"]
        assert by_name[name]["response_facts"] == []


def test_strings_that_stay_in_the_kernel_are_not_among_those_that_leave() -> None:
    rows = dict(row.strip("| ").split(" | ") for row in coverage.copied_strings().splitlines()[2:])
    assert "Produce" in rows["Name"]
    assert "DescribeLogDirs" in rows["LogDir"]
    assert "PrincipalName" not in rows  # of header-only APIs
    assert not rows.keys() & {"Reason", "Principal", "CommittedMetadata", "Value"}  # hidden or emptied


def test_the_table_says_what_is_kept(table: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    fetch = table[1]
    assert {"topic names", "topic ids", "session id", "isolation level", "fetch offset"} <= set(fetch["request_facts"])
    assert {"errors", "high watermark", "throttle time"} <= set(fetch["response_facts"])
    coverage.main([])
    assert capsys.readouterr().out.count("\n") == 2 * len(table)
    assert "| 0 | Produce | 0-13 | topic names, " in coverage.markdown()
