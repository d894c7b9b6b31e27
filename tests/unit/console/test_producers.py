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


def produce(client: str, acks: int, side: str = "client", **of: object) -> dict[str, Any]:
    """Return a row of traffic of a minute, which ended ten minutes ago."""
    window = {"window_start": TIME.now - timedelta(minutes=11), "window_end": TIME.now - timedelta(minutes=10)}
    ends = {"client": {"node": "node-1", "comm": "python"}, "server": {"node": "broker-1", "comm": "java"}}
    sums = {"requests": 600, "records": 600, "batches": 600, "record_bytes": 60_000, "codecs": {"none": 600}}
    kind = {"level": "topic", "topic": "orders", "api": "Produce"}
    return {**window, **kind, **ends[side], **sums, "side": side, "client_id": client, "acks": acks, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of producers that were seen at both ends, at the broker's, and at the broker's more."""
    path = tmp_path_factory.mktemp("tables")
    good: dict[str, Any] = {"requests": 20, "records": 2000, "batches": 20, "codecs": {"zstd": 19, "none": 1}}
    large: dict[str, Any] = {**good, "record_bytes": 10**6}
    write_rows(
        path,
        "traffic",
        [
            produce("careful", -1, transactional_id="pay-1", **large),
            produce("careful", -1, "server", transactional_id="pay-1", **large),
            produce("careful", -1, topic="audit", transactional_id="pay-1", **large),
            produce("careless", 0),
            produce("two ways", 1, "server", **large),
            produce("two ways", -1, "server", refused_records=7, errors={"22": 7}, **large),
            produce("in part", 1, records=300),
            produce("in part", 1, "server", requests=900, records=900, batches=900),
            produce("idempotent", -1, **large),
            produce("idempotent", -1, api="InitProducerId", level="api", topic=None),
            produce("reader", -1, api="Fetch"),
            produce("kafka-probe-agent", -1),
        ],
    )
    return path


def test_a_producer_has_its_settings_and_its_batches(tables: Path) -> None:
    rows = {(row["client"], row["acks"]): row for row in answered(producers, tables)}
    assert {*rows} == {
        *(("careful", "all"), ("careless", "0"), ("two ways", "1"), ("two ways", "all"), ("in part", "1")),
        ("idempotent", "all"),
    }
    careful = rows["careful", "all"]
    assert (careful["producer"], careful["codecs"], careful["topics"]) == ("transactional", "zstd, none", 2)
    assert (careful["requests"], careful["records_per_batch"], careful["bytes_per_batch"]) == (40, 100, 50_000)
    assert (careful["watched"], careful["workload"], careful["node"]) == ("client", "python", "node-1")
    assert (careful["risks"], careful["waste"]) == (None, None)
    assert (rows["idempotent", "all"]["producer"], rows["careless", "0"]["producer"]) == ("idempotent", None)


def test_risks_and_waste_are_named(tables: Path) -> None:
    rows = {(row["client"], row["acks"]): (row["risks"], row["waste"]) for row in answered(producers, tables)}
    assert rows["careless", "0"] == ("acks=0", "uncompressed, small batches")
    assert rows["two ways", "1"] == ("acks=1", None)
    assert rows["two ways", "all"] == ("refused records", None)
    (careless, *others) = answered(producers, tables, "--filter", "risks ~ '*acks=0*'")
    assert (careless["client"], careless["requests_per_s"], others) == ("careless", 10, [])


def test_a_producer_counts_at_the_end_that_saw_most(tables: Path) -> None:
    (in_part,) = answered(producers, tables, "--filter", "client = 'in part'")
    assert (in_part["records"], in_part["watched"], in_part["workload"]) == (900, "broker", None)


def test_forged_numbers_are_unknown_and_hide_nobody(tmp_path: Path) -> None:
    forged: dict[str, Any] = {"records": MOST, "requests": MOST, "codecs": {"none": MOST}, "errors": {"7": MOST}}
    write_rows(tmp_path, "traffic", [produce("forged", 1, **forged), produce("forged", 1, **forged), produce("ok", 1)])
    by_client = {row["client"]: row for row in answered(producers, tmp_path)}
    assert (by_client["forged"]["records"], by_client["forged"]["requests"]) == (None, None)
    assert by_client["ok"]["records"] == 600


def test_nothing_that_matches_is_an_error_with_what_there_is(tables: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No producer matches\. The tables have 6, from "):
        answered(producers, tables, "--filter", "client = nobody")


def test_documented_commands_find_producers(tables: Path) -> None:
    for flags in documented_flags("producers", "README.md", "docs/guide/answers.md"):
        assert asked(producers, tables, *flags).exit_code == 0
