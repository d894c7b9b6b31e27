"""The place of the tables: of a flag, a variable and the configuration file, the first that is set."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kafka_probe.errors import KafkaProbeError
from kafka_probe_console.agents_command import agents
from tests.builders.tables import write_rows
from tests.lab.answers import asked


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Return tables with a report of one agent."""
    now = datetime.now(UTC)
    path = tmp_path / "tables"
    write_rows(path, "agents", [{"node": "node-1", "agent_id": "a", "received_ts": now, "ts": now}])
    return path


def test_a_missing_table_and_a_missing_flag_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"There is no table agents in .*: set --tables, or `tables` in the file"):
        asked(agents, tmp_path)
    with pytest.raises(KafkaProbeError, match="Set --tables, KAFKA_PROBE_TABLES, or `tables` in"):
        CliRunner().invoke(agents, [], catch_exceptions=False)


def test_a_configuration_file_says_where_the_tables_are(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, nowhere = tmp_path / "kafka-probe.toml", str(tmp_path / "nothing")

    def rows(*flags: str) -> str:
        return CliRunner().invoke(agents, [*flags, "--json"], catch_exceptions=False).stdout

    expected = rows("--tables", str(tables))
    assert expected
    file.write_text(f"ports = [9092]\ntables = '{tables}'\n")
    assert rows("--config", str(file)) == expected
    monkeypatch.setenv("KAFKA_PROBE_CONFIG", str(file))
    assert rows() == expected
    with pytest.raises(KafkaProbeError, match=f"no table agents in {nowhere}"):
        rows("--tables", nowhere)
    monkeypatch.setenv("KAFKA_PROBE_TABLES", nowhere)
    with pytest.raises(KafkaProbeError, match=f"no table agents in {nowhere}"):
        rows()
    for unreadable in (tmp_path, tmp_path / "missing"):
        assert rows("--config", str(unreadable), "--tables", str(tables)) == expected
    monkeypatch.delenv("KAFKA_PROBE_TABLES")
    with pytest.raises(KafkaProbeError, match=f"{tmp_path} cannot be read: Is a directory"):
        rows("--config", str(tmp_path))
    file.write_text("tables = 1\n")
    with pytest.raises(KafkaProbeError, match=f"tables in {file}: must be a text"):
        rows()
    file.write_text("topik = 'x'\n")
    with pytest.raises(KafkaProbeError, match="Unknown key topik"):
        rows()
    completed = ShellComplete(agents, {}, "kafka-probe agents", "_COMPLETE").get_completions([], "--si")
    assert [item.value for item in completed] == ["--since"]
    assert rows("--tables", str(tables)) == expected
