"""The command `who`: which connections a name finds, and what it knows of both ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe_console.who_command import who
from tests.builders import tables as builder
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
ago = TIME.ago


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of an open, a closed and an old connection, and of one without a flow id."""
    path = tmp_path_factory.mktemp("tables")
    topics = [{"topic": "orders"}, {"topic": None}, {"topic": "payments"}]
    repeated = {"still_open_ts": ago(minutes=30), "received_ts": ago(minutes=30), "requests": 3600, "topics": topics}
    other = {"local": "10.57.1.12:4000", "peer": "10.0.0.1:9092", "workload": {"pid": 7, "comm": "java"}}
    opens = [
        end("client", "1", None, ago(minutes=90), flow_id="f1"),
        end("server", "1", None, ago(minutes=90), flow_id="f1"),
        end("client", "1", "billing-1", ago(minutes=90), flow_id="f1", group="billing", request_bytes=9, **repeated),
        end("server", "1", "billing-1", ago(minutes=90), flow_id="f1", **{**repeated, "requests": 3000}),
        end("client", "2", "orders", ago(minutes=50), flow_id="f2", **other),
        end("client", "3", None, ago(minutes=40), **{**other, "local": "10.57.1.13:4000"}),
        end("server", "4", "old", ago(hours=20), flow_id="f4", peer="10.57.1.99:1"),
    ]
    closes = [
        end("client", "2", "orders", ago(minutes=45), flow_id="f2", age_us=300_000_000, requests=600, **other),
    ]
    write_rows(path, "opens", opens)
    write_rows(path, "closes", closes)
    verdict = {"key": "f2", "cause": "process_exit", "evidence": "the process ended"}
    write_rows(path, "verdicts", [{**verdict, "ts": ago(minutes=45), "judged_ts": ago(minutes=44)}])
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("10.57.1.11:52224", "10.57.1.11", "10.57.2.2:39282", "10.57.2.2", "192.0.2.1:9092", "f1", "billing-*"),
        *("412", "billing-7f", "python", "python[412]", "3f2a*", "kafka.service", "java[99]"),
    ],
)
def test_any_name_of_either_end_finds_the_connection(tables: Path, name: str) -> None:
    assert "f1" in [row["flow_id"] for row in answered(who, tables, name)]
    assert "f2" not in [row["flow_id"] for row in answered(who, tables, name)]


def test_a_connection_has_both_ends_and_its_newest_sums_once(tables: Path) -> None:
    (found,) = answered(who, tables, "billing-1")
    assert (found["client"], found["process"], found["state"]) == ("billing-1", "python[412]", "open")
    assert (found["workload"], found["node"], found["library"]) == ("billing-7f", "node-1", "kafka-python 3.0.12")
    assert (found["address"], found["seen_as"], found["reported_ends"]) == ("10.57.1.11:52224", "10.57.2.2:39282", 2)
    assert (found["broker"], found["broker_seen_as"]) == ("10.0.0.1:9092", "192.0.2.1:9092")
    assert (found["broker_process"], found["broker_node"]) == ("java[99]", "broker-1")
    assert (found["group"], found["topics"], found["requests"]) == ("billing", "orders, payments", 3600)
    assert datetime.fromisoformat(found["opened"]) == ago(minutes=90)
    assert datetime.fromisoformat(found["last"]) == ago(minutes=30)
    assert found["requests_per_s"] == pytest.approx(1)
    assert (found["cause"], found["evidence"]) == (None, None)


def test_a_closed_connection_has_its_end_and_its_cause(tables: Path) -> None:
    (found,) = answered(who, tables, "orders")
    assert (found["state"], found["cause"], found["evidence"]) == ("closed", "process_exit", "the process ended")
    assert datetime.fromisoformat(found["ended"]) == ago(minutes=45)
    assert found["requests_per_s"] == pytest.approx(2)
    (first, *lines) = asked(who, tables, "orders").stdout.splitlines()
    assert first == "closed  10.57.1.12:4000  java[7]  orders"
    assert lines[:2] == ["  cause           process_exit", "  evidence        the process ended"]


def test_a_connection_without_a_flow_id_is_one_of_its_own(tables: Path) -> None:
    (found,) = answered(who, tables, "10.57.1.13")
    assert (found["flow_id"], found["client"], found["conn_id"], found["state"]) == (None, None, "3", "open")


def test_a_client_id_is_not_at_the_place_of_a_process_that_was_not_watched(tmp_path: Path) -> None:
    write_rows(tmp_path, "opens", [end("server", "1", "java[412]", ago(minutes=30), flow_id="f1", workload=None)])
    (first, *_) = asked(who, tmp_path, "java*").stdout.splitlines()
    assert first.split("  ")[2:] == ["-", "java[412]"]


def test_what_is_not_reported_any_more_is_found_at_its_time(tables: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No connection of this time matches\. The nearest .* was at "):
        answered(who, tables, "old")
    (found,) = answered(who, tables, "old", "--at", "20h")
    assert (found["state"], found["address"], found["seen_as"]) == ("open", "10.57.1.99:1", "10.57.1.99:1")


def test_a_shorter_period_has_what_was_open_then(tables: Path) -> None:
    assert [row["flow_id"] for row in answered(who, tables, "10.57.1.11", "--since", "20m")] == ["f1"]
    with pytest.raises(KafkaProbeError, match=r"No connection of this time matches\. The nearest .* was at "):
        answered(who, tables, "orders", "--since", "20m")


def test_the_newest_connection_is_first(tables: Path) -> None:
    assert [row["flow_id"] for row in answered(who, tables, "java")] == [None, "f2", "f1"]
    with pytest.raises(KafkaProbeError, match=r"No connection matches\. The tables have 4, from "):
        answered(who, tables, "nobody")


def test_an_end_that_gets_its_flow_id_later_is_one_connection(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        "opens",
        [
            end("client", "1", "billing", ago(minutes=90), found="listed"),
            end("client", "1", "billing", ago(minutes=60), flow_id="f1"),
            end("server", "1", "billing", ago(minutes=60), flow_id="f1"),
        ],
    )
    close = end("client", "1", "billing", ago(minutes=5), flow_id="f1")
    write_rows(tmp_path, "closes", [close])
    (found,) = answered(who, tmp_path, "billing")
    assert (found["flow_id"], found["state"], found["reported_ends"]) == ("f1", "half closed", 2)


def test_of_several_ends_that_claim_a_flow_the_one_that_was_asked_for_is_shown(tmp_path: Path) -> None:
    forged = {"agent_id": "evil", "local": "6.6.6.6:6", "workload": {"pid": 666, "comm": "evil"}}
    write_rows(
        tmp_path,
        "opens",
        [
            end("client", "1", "billing", ago(minutes=9), flow_id="f1"),
            end("client", "1", "evil", ago(minutes=1), flow_id="f1", **forged),
        ],
    )
    (found,) = answered(who, tmp_path, "10.57.1.11:52224")
    assert (found["client"], found["process"], found["reported_ends"]) == ("billing", "python[412]", 2)


def test_of_several_ends_that_claim_a_flow_one_that_fits_the_other_end_is_shown(tmp_path: Path) -> None:
    direct = {"peer": "10.0.0.1:9092", "flow_id": "f1"}
    forged = {**direct, "agent_id": "evil", "local": "6.6.6.6:6", "peer": "10.0.0.1:1"}
    write_rows(
        tmp_path,
        "opens",
        [
            end("client", "1", "billing", ago(minutes=9), **direct),
            end("server", "1", "billing", ago(minutes=9), flow_id="f1", peer="10.57.1.11:52224"),
            end("client", "1", "evil", ago(minutes=1), **forged),
        ],
    )
    assert [(row["client"], row["reported_ends"]) for row in answered(who, tmp_path, "java[99]")] == [("billing", 3)]


def test_addresses_beyond_the_nat_of_a_brokers_host_are_found(tmp_path: Path) -> None:
    nat = {"local": "10.9.9.9:9092", "peer": "10.57.1.77:5000"}
    write_rows(tmp_path, "opens", [end("server", "1", "billing", ago(minutes=9), flow_id="f1", nat=nat)])
    for name in nat.values():
        (found,) = answered(who, tmp_path, name)
        assert (found["address"], found["broker_seen_as"]) == ("10.57.1.77:5000", "10.9.9.9:9092")


def test_forged_clocks_and_ages_move_no_time_beyond_that_of_the_report(tmp_path: Path) -> None:
    far = datetime(9998, 1, 1, tzinfo=UTC)
    opens = [end("client", str(n), "x", far, flow_id=f"f{n}", received_ts=ago(minutes=n)) for n in range(1, 12)]
    write_rows(tmp_path, "opens", [*opens, end("client", "99", "y", ago(seconds=1), flow_id="y")])
    write_rows(tmp_path, "closes", [end("client", "3", "x", ago(minutes=2), flow_id="f3", age_us=2**62)])
    found = answered(who, tmp_path, "10.57.1.11")
    assert found[0]["flow_id"] == "y"
    assert max(row["last"] for row in found) < TIME.now.isoformat()


def test_an_address_beyond_nat_is_found_long_after_the_open_that_had_it(tmp_path: Path) -> None:
    nat = {"local": "192.0.2.77:5000", "peer": "10.0.0.1:9092"}
    first = end("client", "1", "billing", ago(days=3), flow_id="f1", nat=nat)
    write_rows(
        tmp_path, "opens", [first, end("client", "1", "billing", ago(days=3), flow_id="f1", received_ts=ago(hours=1))]
    )
    (found,) = answered(who, tmp_path, "192.0.2.77:5000")
    assert (found["seen_as"], found["broker"], found["broker_seen_as"]) == (nat["local"], nat["peer"], "192.0.2.1:9092")


def test_requests_and_their_rate_are_those_of_the_end_that_was_reported_last(tmp_path: Path) -> None:
    silent = end("client", "1", "billing", ago(minutes=100), flow_id="f1", requests=10)
    report = {"received_ts": ago(minutes=10), "still_open_ts": ago(minutes=10), "requests": 5400}
    write_rows(tmp_path, "opens", [silent, end("server", "1", "billing", ago(minutes=100), flow_id="f1", **report)])
    (found,) = answered(who, tmp_path, "billing")
    assert (found["requests"], found["requests_per_s"]) == (5400, pytest.approx(1))


def test_more_ends_than_are_read_are_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_probe_console.who_command.MOST_ENDS", 2)
    write_rows(tmp_path, "opens", [end("client", str(n), "x", ago(minutes=n), flow_id=f"f{n}") for n in range(1, 4)])
    result = asked(who, tmp_path, "x", "--json")
    assert [json.loads(line)["flow_id"] for line in result.stdout.splitlines()] == ["f1", "f2"]
    sentence = "More than 2 ends match: those that were reported last are shown."
    assert sentence in result.stderr
    assert sentence not in asked(who, tmp_path, "f1").stderr
    with pytest.raises(KafkaProbeError, match=sentence):
        asked(who, tmp_path, "x", "--filter", "flow_id = f3")


def test_ends_that_are_named_exactly_come_before_those_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_probe_console.who_command.MOST_ENDS", 1)
    named = "10.57.1.11:52224"
    other = {"local": "10.57.1.12:4000", "peer": "10.0.0.1:9092"}
    write_rows(
        tmp_path,
        "opens",
        [
            end("client", "1", "billing", ago(minutes=9), flow_id="f1"),
            end("client", "2", named, ago(minutes=1), flow_id="f2", **other),
        ],
    )
    assert [row["flow_id"] for row in answered(who, tmp_path, named)] == ["f1"]


def test_nothing_and_an_empty_name_are_sentences(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NAME is empty"):
        asked(who, tables, "")
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        asked(who, tables, "\udcff")
    with pytest.raises(KafkaProbeError, match="There is no table opens in"):
        asked(who, tmp_path, "x")


def test_no_close_and_tables_of_a_release_without_names_of_containers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = pa.struct([field for field in builder._OWNER if field.name != "container_name"])
    opens = builder._OPENS.set(builder._OPENS.get_field_index("workload"), pa.field("workload", without))
    monkeypatch.setitem(builder._ANSWERED, "opens", opens)
    write_rows(tmp_path, "opens", [end("client", "1", "billing-1", ago(minutes=1), flow_id="f1")])
    (found,) = answered(who, tmp_path, "billing-1")
    assert found["workload"] == "billing-7f"


def test_documented_commands_find_connections(tables: Path) -> None:
    for flags in documented_flags("who", "README.md", "docs/guide/answers.md"):
        assert asked(who, tables, *flags).exit_code == 0
