"""The command `producers`: how clients write, what they risk, and what they waste."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError
from kafka_probe_console.producers_command import producers
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
MOST = 2**63 - 1


def produce(client: str, acks: int | None, side: str = "client", **of: object) -> list[dict[str, Any]]:
    """Return the rows of traffic of a minute, which ended ten minutes ago: of the API, and of a topic."""
    window = {"window_start": TIME.now - timedelta(minutes=11), "window_end": TIME.now - timedelta(minutes=10)}
    ends = {"client": {"node": "node-1", "comm": "python"}, "server": {"node": "broker-1", "comm": "java"}}
    sums = {"requests": 600, "records": 600, "batches": 600, "record_bytes": 60_000, "codecs": {"none": 600}}
    who = {"side": side, "client_id": client, "acks": acks, "api": "Produce", "topic": "orders", "level": "topic"}
    row = {**window, **ends[side], **sums, **who, **of}
    return [row, {**row, "level": "api", "topic": None, "codecs": None}]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of producers that were seen at both ends, at the broker's, and at the broker's more."""
    path = tmp_path_factory.mktemp("tables")
    good: dict[str, Any] = {"requests": 20, "records": 2000, "batches": 20, "codecs": {"zstd": 19, "none": 1}}
    large: dict[str, Any] = {**good, "record_bytes": 10**6}
    pay: dict[str, Any] = {**large, "transactional_id": "pay-1"}
    of_topics, of_api = zip(*(produce("careful", -1, topic=name, **pay) for name in ("orders", "audit")), strict=True)
    none: dict[str, Any] = {"requests": 0, "records": None, "batches": None, "record_bytes": None, "codecs": None}
    rows = [
        produce("careful", -1, "server", **pay),
        produce("careless", 0),
        produce("two ways", 1, "server", **large),
        produce("two ways", -1, "server", **large),
        produce("in part", 1, records=300),
        produce("in part", 1, "server", requests=900, records=900, batches=900),
        produce("same id", -1, **large),
        produce("same id", 0, "server", **large),
        produce("late", -1, **large),
        produce("late", None, **{**none, "refused_records": 7, "errors": {"22": 7, "6": 2, "19": 1}}),
        produce("by topic", None, **large),
        produce("of a newer API", None, **{**none, "requests": 20}),
        produce("careless", -1, **large),
        produce("careless", 0, "server", **{**large, "requests": 5000}),
        produce("idempotent", -1, **large),
        produce("idempotent", 1, **large),
        produce("idempotent", None, api="InitProducerId"),
        produce("reader", -1, api="Fetch"),
        produce("kafka-probe-agent", -1),
    ]
    write_rows(path, "traffic", [*of_topics, of_api[0], *(row for both in rows for row in both)])
    return path


def by_acks(tables: Path, *flags: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["client"], row["acks"]): row for row in answered(producers, tables, *flags)}


def test_a_producer_has_its_settings_and_its_batches(tables: Path) -> None:
    rows = by_acks(tables)
    assert {*rows} == {
        *(("careful", "all"), ("careless", "0"), ("two ways", "1"), ("two ways", "all"), ("in part", "1")),
        *(("idempotent", "all"), ("idempotent", "1"), ("late", "all"), ("by topic", "differ")),
        *(("careless", "all"), ("of a newer API", "unknown")),
        *(("same id", "all"), ("same id", "0")),
    }
    careful = rows["careful", "all"]
    assert (careful["producer"], careful["codecs"], careful["topics"]) == ("transactional", "zstd, none", 2)
    assert (careful["requests"], careful["records_per_batch"], careful["bytes_per_batch"]) == (20, 100, 50_000)
    assert (careful["side"], careful["workload"], careful["node"]) == ("client", "python", "node-1")
    assert (careful["risks"], careful["waste"]) == (None, None)
    assert (rows["idempotent", "all"]["producer"], rows["idempotent", "1"]["producer"]) == ("idempotent", None)


def test_errors_after_which_clients_send_again_are_retriable(tables: Path) -> None:
    rows = by_acks(tables)
    assert [(row["errors"], row["retriable_errors"]) for row in (rows["late", "all"], rows["careful", "all"])] == [
        (10, 3),
        (0, 0),
    ]


def test_risks_and_waste_are_named(tables: Path) -> None:
    watched = by_acks(tables, "--filter", "side = client or client = 'two ways'")
    rows = {acks: (row["risks"], row["waste"]) for acks, row in watched.items()}
    assert rows["careless", "0"] == ("acks=0", "uncompressed, small batches")
    assert rows["two ways", "1"] == ("acks=1", None)
    assert rows["late", "all"] == ("refused records", None)
    assert rows["by topic", "differ"] == ("acks=differ", None)
    assert rows["of a newer API", "unknown"] == (None, None)
    (careless, *others) = answered(producers, tables, "--filter", "risks ~ '*acks=0*' and side = client")
    assert (careless["client"], careless["requests_per_s"], others) == ("careless", 10, [])


def test_codecs_are_those_of_the_row(tables: Path) -> None:
    rows = answered(producers, tables, "--filter", "client = careless")
    assert {(row["acks"], row["side"], row["codecs"], row["waste"]) for row in rows} == {
        ("all", "client", "zstd, none", None),
        ("0", "client", "none", "uncompressed, small batches"),
        ("0", "server", None, None),
    }


def test_what_only_brokers_saw_of_a_client_is_a_row_of_its_own(tables: Path) -> None:
    rows = answered(producers, tables, "--filter", "client = 'in part'")
    assert [(row["requests"], row["records"], row["side"]) for row in rows] == [
        (600, 300, "client"),
        (300, 600, "server"),
    ]
    unwatched = by_acks(tables)["same id", "0"]
    assert (unwatched["side"], unwatched["workload"], unwatched["risks"]) == ("server", None, "acks=0")


def test_forged_numbers_are_unknown_and_hide_nobody(tmp_path: Path) -> None:
    forged: dict[str, Any] = {"records": MOST, "requests": MOST, "codecs": {"none": MOST}, "errors": {"7": MOST}}
    rows = [*produce("forged", 1, **forged), *produce("forged", 1, **forged), *produce("ok", 1)]
    write_rows(tmp_path, "traffic", rows)
    by_client = {row["client"]: row for row in answered(producers, tmp_path)}
    assert (by_client["forged"]["records"], by_client["forged"]["requests"]) == (None, None)
    assert by_client["ok"]["records"] == 600


def test_nothing_that_matches_is_an_error_with_what_there_is(tables: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No producer matches\. The tables have 10, from "):
        answered(producers, tables, "--filter", "client = nobody")


def test_documented_commands_find_producers(tables: Path) -> None:
    for flags in documented_flags("producers", "README.md", "docs/guide/answers.md"):
        assert asked(producers, tables, *flags).exit_code == 0
