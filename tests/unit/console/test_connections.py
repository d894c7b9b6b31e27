"""The command `connections`: how many are opened, end and are open, each counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe_console.connections_command import connections
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
ago = TIME.ago


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of a client that reconnects, of one that stays, and of one at the broker's end."""
    path = tmp_path_factory.mktemp("tables")
    stays = {"flow_id": "stays", "received_ts": ago(minutes=20), "still_open_ts": ago(minutes=20), "found": "midstream"}
    new = {"found": "start"}
    write_rows(
        path,
        "opens",
        [
            *(end(side, "1", "billing", ago(minutes=200), **stays) for side in ("client", "server")),
            *(end("client", f"c{n}", "orders", ago(minutes=n), flow_id=f"f{n}", **new) for n in range(1, 31)),
            *(end("server", f"s{n}", "zero", ago(minutes=n), flow_id=f"f{n}", **new) for n in range(1, 31)),
            end("server", "9", "rdkafka", ago(minutes=5), flow_id="b", **new),
            end("client", "8", "kafka-probe-agent", ago(minutes=5), flow_id="k", **new),
        ],
    )
    closes = [
        end("client", f"c{n}", "orders", ago(minutes=n - 0.5), flow_id=f"f{n}", age_us=30_000_000, **new)
        for n in range(2, 30)
    ]
    closes += [
        end("client", "c30", "orders", ago(minutes=28), flow_id="f30", age_us=120_000_000, **new),
        # Their opens are older than what is read.
        end("client", "a", "orders", ago(minutes=4), flow_id="a", age_us=86_400_000_000, **new),
        end("client", "l", "orders", ago(minutes=3), flow_id="l", age_us=7_000_000, found="listed"),
    ]
    write_rows(path, "closes", closes)
    return path


def test_each_connection_counts_once_by_its_client(tables: Path) -> None:
    orders, rdkafka, billing = answered(connections, tables, "--since", "60m")
    assert (orders["client"], orders["opened"], orders["ended"], orders["open"]) == ("orders", 30, 31, 1)
    assert (orders["opened_per_min"], orders["ended_per_min"]) == (pytest.approx(0.5, 0.1), pytest.approx(0.52, 0.1))
    assert (orders["lifetime_ms"], orders["shortest_ms"]) == (pytest.approx(30_000), pytest.approx(30_000))
    assert (rdkafka["client"], rdkafka["opened"], rdkafka["open"]) == ("rdkafka", 1, 1)
    assert (billing["client"], billing["opened"], billing["open"], billing["lifetime_ms"]) == ("billing", 0, 1, None)


def test_a_shorter_period_has_what_began_and_ended_in_it(tables: Path) -> None:
    by_client = {row["client"]: row for row in answered(connections, tables, "--since", "655s")}
    assert (by_client["orders"]["opened"], by_client["orders"]["ended"]) == (10, 12)
    assert by_client["billing"]["open"] == 1
    (ended,) = answered(connections, tables, "--from", "29m", "--until", "1655s")
    assert (ended["opened"], ended["ended"], ended["lifetime_ms"]) == (1, 2, pytest.approx(75_000))


def test_a_broker_has_its_address_beyond_nat_and_forged_numbers_change_nobody_else(tmp_path: Path) -> None:
    nat = {"local": "10.57.2.2:1", "peer": "10.0.0.1:9092"}
    forged = {"age_us": 2**62, "flow_id": "x", "found": "start"}
    write_rows(tmp_path, "opens", [end("client", "1", "a", ago(minutes=6), flow_id="a", found="start", nat=nat)])
    write_rows(tmp_path, "closes", [end("client", "2", "x", ago(minutes=1), **forged)])
    honest, _ = answered(connections, tmp_path, "--by", "client,broker", "--since", "10m")
    assert (honest["client"], honest["broker"], honest["opened_per_min"]) == ("a", nat["peer"], pytest.approx(0.1, 0.1))


def test_other_groups_are_those_of_the_clients_end(tables: Path) -> None:
    found = answered(connections, tables, "--by", "workload, broker,node")
    assert [(row["workload"], row["broker"], row["node"], row["opened"]) for row in found] == [
        ("billing-7f", "10.0.0.1:9092", "node-1", 30),
        (None, "10.0.0.1:9092", None, 1),
        ("billing-7f", "192.0.2.1:9092", "node-1", 0),
    ]
    assert len(answered(connections, tables, "--internal")) == 4


def test_what_is_used_incorrectly_and_nothing_that_matches_are_sentences(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--by takes client, workload, broker, node, and not 'pod'"):
        asked(connections, tables, "--by", "client,pod")
    with pytest.raises(KafkaProbeError, match=r"No connection matches\. The tables have 33, from "):
        asked(connections, tables, "--filter", "opened > 99")
    with pytest.raises(KafkaProbeError, match="There is no table opens in"):
        asked(connections, tmp_path)


def test_documented_commands_find_connections(tables: Path) -> None:
    for flags in documented_flags("connections", "README.md", "docs/guide/answers.md"):
        assert asked(connections, tables, *flags).exit_code == 0
