"""The command `connections`: how many are opened, end and are open, each counted once."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe_console.connections_command import connections
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows

ROOT = Path(__file__).parents[3]


@cache
def now() -> datetime:
    """Return the time of the first test, which may be long after the import."""
    return datetime.now(UTC)


def ago(**age: float) -> datetime:
    return now() - timedelta(**age)


def asked(tables: Path, *flags: str) -> Result:
    result = CliRunner().invoke(connections, ["--tables", str(tables), *flags])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(tables: Path, *flags: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in asked(tables, "--json", *flags).stdout.splitlines()]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of a client that reconnects, of one that stays, and of one at the broker's end."""
    path = tmp_path_factory.mktemp("tables")
    stays = {"flow_id": "stays", "received_ts": ago(minutes=20), "still_open_ts": ago(minutes=20)}
    write_rows(
        path,
        "opens",
        [
            *(end(side, "1", "billing", ago(minutes=200), **stays) for side in ("client", "server")),
            *(end("client", f"c{n}", "orders", ago(minutes=n), flow_id=f"f{n}") for n in range(1, 31)),
            *(end("server", f"s{n}", "orders", ago(minutes=n), flow_id=f"f{n}") for n in range(1, 31)),
            end("server", "9", "rdkafka", ago(minutes=5), flow_id="b"),
            end("client", "8", "kafka-probe-agent", ago(minutes=5), flow_id="k"),
        ],
    )
    brief = {"age_us": 30_000_000}
    write_rows(
        path,
        "closes",
        [end("client", f"c{n}", "orders", ago(minutes=n - 0.5), flow_id=f"f{n}", **brief) for n in range(2, 31)],
    )
    return path


def test_each_connection_counts_once_by_its_client(tables: Path) -> None:
    orders, rdkafka, billing = rows(tables, "--since", "60m")
    assert (orders["client"], orders["opened"], orders["ended"], orders["open"]) == ("orders", 30, 29, 1)
    assert (orders["opened_per_min"], orders["ended_per_min"]) == (pytest.approx(0.5, 0.1), pytest.approx(0.5, 0.1))
    assert (orders["lifetime_s"], orders["shortest_s"]) == (pytest.approx(30), pytest.approx(30))
    assert (rdkafka["client"], rdkafka["opened"], rdkafka["open"]) == ("rdkafka", 1, 1)
    assert (billing["client"], billing["opened"], billing["open"], billing["lifetime_s"]) == ("billing", 0, 1, None)


def test_a_shorter_period_has_what_began_and_ended_in_it(tables: Path) -> None:
    by_client = {row["client"]: row for row in rows(tables, "--since", "655s")}
    assert (by_client["orders"]["opened"], by_client["orders"]["ended"]) == (10, 10)
    assert by_client["billing"]["open"] == 1


def test_other_groups_are_those_of_the_clients_end(tables: Path) -> None:
    found = rows(tables, "--by", "workload, broker,node")
    assert [(row["workload"], row["broker"], row["node"], row["opened"]) for row in found] == [
        ("billing-7f", "10.0.0.1:9092", "node-1", 31),
        (None, "10.0.0.1:9092", None, 1),
    ]
    assert len(rows(tables, "--internal")) == 4


def test_what_is_used_incorrectly_and_nothing_that_matches_are_sentences(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--by takes client, workload, broker, node, and not 'pod'"):
        asked(tables, "--by", "client,pod")
    with pytest.raises(KafkaProbeError, match=r"No connection matches\. The tables have 64, from "):
        asked(tables, "--filter", "opened > 99")
    with pytest.raises(KafkaProbeError, match="There is no table opens in"):
        asked(tmp_path)


def test_documented_commands_find_connections(tables: Path) -> None:
    documents = "README.md", "docs/guide/answers.md"
    written = "\n".join((ROOT / document).read_text() for document in documents)
    found = re.findall(r"\.venv/bin/kafka-probe connections --tables kafka-probe-output([^`\n]*)", written)
    assert found
    for flags in found:
        assert asked(tables, *shlex.split(flags)).exit_code == 0
