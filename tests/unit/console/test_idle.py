"""The command `idle`: which open connections an idle limit would cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import UsageError
from kafka_probe_console.errors import TableError
from kafka_probe_console.idle_command import idle
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
ago = TIME.ago
MINUTE_US = 60_000_000


def reported(conn: int, client: str, longest_min: float | None, side: str = "client", **of: object) -> dict[str, Any]:
    """Return the newest report of an end, a minute ago."""
    silences: dict[str, object] = {}
    if longest_min is not None:
        longest_us = int(longest_min * MINUTE_US)
        silences = {"longest_silence_us": longest_us, "present_silence_us": MINUTE_US, "still_open_ts": ago(minutes=1)}
    received = {"flow_id": f"f{conn}", "received_ts": ago(minutes=1), "keepalive_s": 7200}
    return end(side, str(conn), client, ago(minutes=200), **{**silences, **received, **of})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of clients with silences below and above four minutes."""
    path = tmp_path_factory.mktemp("tables")
    rows = [
        reported(1, "billing", 9),
        reported(1, "billing", 9.5, "server", present_silence_us=MINUTE_US // 2),
        reported(2, "billing", 3, keepalive_s=None),
        {**reported(2, "billing", None, keepalive_s=60), "received_ts": ago(minutes=100)},
        {**reported(2, "billing", 2, keepalive_s=0), "received_ts": ago(minutes=50)},
        reported(3, "orders", 30, keepalive_s=60),
        reported(4, "orders", 30, keepalive_s=0),
        reported(4, "orders", 30, "server", keepalive_s=120),
        reported(5, "audit", None, keepalive_s=0),
        reported(6, "audit", 60),
        reported(7, "kafka-probe-agent", 60),
    ]
    write_rows(path, "opens", rows)
    of_both = {"flow_id": "f6", "age_us": 90 * MINUTE_US}
    write_rows(path, "closes", [end("client", "6", "audit", ago(seconds=30), **of_both)])
    return path


def test_a_limit_cuts_the_connections_that_were_silent_for_longer(tables: Path) -> None:
    billing, audit, orders = answered(idle, tables, "--limit", "240s")
    assert (billing["client"], billing["workload"], billing["open"], billing["cut"]) == ("billing", "billing-7f", 2, 1)
    assert (billing["longest_s"], billing["silent_s"], billing["host"], billing["nodes"]) == (570, 60, None, 1)
    assert (audit["client"], audit["open"], audit["not_known"], audit["longest_s"]) == ("audit", 1, 1, None)
    assert (orders["client"], orders["cut"], orders["saved"]) == ("orders", 0, 2)


def test_the_keepalive_of_the_last_report_saves_a_connection_below_the_limit(tables: Path) -> None:
    by_client = {row["client"]: row for row in answered(idle, tables, "--limit", "100s")}
    assert (by_client["orders"]["cut"], by_client["orders"]["saved"], by_client["billing"]["cut"]) == (1, 1, 2)
    settings = {name: (row["keepalive"], row["keepalive_s"]) for name, row in by_client.items()}
    assert settings == {"orders": ("ok, too late", 120), "billing": ("off, too late", 7200), "audit": ("off", None)}


def test_a_connection_counts_once_with_an_end_that_was_only_listed(tmp_path: Path) -> None:
    """The agents of both ends were started anew: their connection moved nothing since."""
    listed: dict[str, object] = {"flow_id": None, "found": "listed", "keepalive_s": None}
    before = [reported(1, "billing", 9, side, keepalive_s=0) for side in ("client", "server")]
    after = [reported(number, "billing", 5, side, **listed) for number, side in ((2, "client"), (3, "server"))]
    write_rows(tmp_path, "opens", [*before, *after])
    (row,) = answered(idle, tmp_path)
    assert (row["open"], row["cut"], row["longest_s"], row["keepalive"]) == (1, 1, 540, "off")
    direct = (
        {"local": "10.57.1.11:52224", "peer": "10.0.0.1:9092"},
        {"peer": "10.57.1.11:52224", "local": "10.0.0.1:9092"},
    )
    write_rows(tmp_path / "listed", "opens", [{**row, **ends} for row, ends in zip(after, direct, strict=True)])
    (row,) = answered(idle, tmp_path / "listed")
    assert (row["open"], row["cut"], row["longest_s"], row["keepalive"]) == (1, 1, 300, "not known")


def test_a_client_that_only_brokers_saw_has_its_host(tmp_path: Path) -> None:
    write_rows(tmp_path, "opens", [reported(1, "billing", 9, "server"), reported(2, "billing", 2, "server")])
    (row,) = answered(idle, tmp_path)
    assert (row["workload"], row["host"], row["open"], row["cut"]) == (None, "10.57.2.2", 2, 1)


def test_what_would_save_them_is_printed_where_some_would_be_cut(tables: Path) -> None:
    assert "connections.max.idle.ms of at most 192000" in asked(idle, tables, "--limit", "4m").stdout
    assert "connections.max.idle.ms" not in asked(idle, tables, "--limit", "2h").stdout


def test_the_number_of_rows_has_a_flag_of_its_own(tables: Path) -> None:
    result = asked(idle, tables, "--rows", "1", "--json")
    assert len(result.stdout.splitlines()) == 1
    assert "Further rows match: raise --rows" in result.stderr


def test_kafka_probe_itself_is_shown_on_demand(tables: Path) -> None:
    assert "kafka-probe-agent" not in {row["client"] for row in answered(idle, tables)}
    assert "kafka-probe-agent" in {row["client"] for row in answered(idle, tables, "--internal")}


@pytest.mark.parametrize("limit", ["240", "4 minutes", "-1s", "1s"])
def test_a_limit_that_is_no_idle_limit_is_refused(tables: Path, limit: str) -> None:
    with pytest.raises(UsageError, match=r"such as|at least 2s"):
        asked(idle, tables, "--limit", limit)


def test_tables_of_an_earlier_release_have_no_silences(tmp_path: Path, tables: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    rows = DeltaTable(str(tables / "opens")).to_pyarrow_table().drop_columns(["longest_silence_us"])
    write_deltalake(str(tmp_path / "opens"), rows)
    with pytest.raises(TableError, match="longest_silence_us"):
        asked(idle, tmp_path)


@pytest.mark.parametrize("flags", documented_flags("idle", "README.md", "docs/guide/answers.md"))
def test_documented_commands_answer(tables: Path, flags: list[str]) -> None:
    assert answered(idle, tables, *flags)
