"""The command `clients`: requests by client and API with latency, errors and throttling, at one of the two ends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError
from kafka_probe.events import bucket_middle_us
from kafka_probe_console.clients_command import clients
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
MOST = 2**63 - 1


def traffic(side: str, client: str | None, requests: int, **of: object) -> dict[str, Any]:
    """Return a row of traffic of a minute, which ended ten minutes ago."""
    window = {"window_start": TIME.now - timedelta(minutes=11), "window_end": TIME.now - timedelta(minutes=10)}
    library = {"software_name": "kafka-python", "software_version": "3.0.12"}
    ends = {"client": {"node": "node-1", "comm": "python"}, "server": {"node": "broker-1", "comm": "java"}}
    kind = {"api": "Produce", "api_version": 9, "level": "api"}
    return {**window, **library, **kind, **ends[side], "side": side, "client_id": client, "requests": requests, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of clients that were seen at both ends, at the broker's, and at the broker's more."""
    path = tmp_path_factory.mktemp("tables")
    errors = {"errors": {"7": 3, "22": 1, "9999": 2}}
    write_rows(
        path,
        "traffic",
        [
            traffic("client", "both", 60, latency={"-80": 98, "-40": 1}, request_bytes=600, throttle_ms=5),
            traffic("client", "both", 60, latency={"-40": 1}, api_version=11, request_bytes=600, **errors),
            traffic("server", "both", 121, latency={"-88": 100}),
            traffic("server", "broker only", 30, latency={"-88": 30}, opaque="tls", api=None),
            traffic("client", "in part", 10, latency={"-80": 10}),
            traffic("server", "in part", 50, latency={"-88": 50}),
            traffic("client", "both", 1000, level="topic"),
            traffic("client", "kafka-probe-agent", 9),
            traffic("client", None, 2),
        ],
    )
    return path


def test_a_client_has_its_sums_and_latencies_of_the_end_that_saw_most(tables: Path) -> None:
    both, in_part, broker_only, nameless = answered(clients, tables)
    assert (both["client"], both["api"], both["requests"], both["side"]) == ("both", "Produce", 120, "client")
    assert (both["requests_per_s"], both["request_bytes"], both["throttle_ms"]) == (2, 1200, 5)
    assert (both["workload"], both["node"], both["versions"]) == ("python", "node-1", "9-11")
    assert both["library"] == "kafka-python 3.0.12"
    assert (in_part["requests"], in_part["side"], in_part["workload"]) == (50, "server", None)
    assert (broker_only["client"], broker_only["api"], broker_only["node"]) == ("broker only", "tls", None)
    assert (nameless["client"], nameless["requests"]) == (None, 2)


def test_percentiles_are_the_middles_of_their_buckets(tables: Path) -> None:
    both, *_ = answered(clients, tables)
    assert both["p50_ms"] == pytest.approx(bucket_middle_us(-80) / 1000)
    assert both["p99_ms"] == pytest.approx(bucket_middle_us(-40) / 1000)
    assert [row["client"] for row in answered(clients, tables, "--sort", "p99_ms", "--limit", "1")] == ["both"]


def test_errors_have_kafkas_names_and_those_of_newer_releases_their_codes(tables: Path) -> None:
    (found,) = answered(clients, tables, "--filter", "errors > 0")
    assert (found["errors"], found["error_names"]) == (6, "REQUEST_TIMED_OUT 3, 9999 2, ILLEGAL_GENERATION 1")


def test_forged_numbers_are_unknown_and_hide_nobody(tmp_path: Path) -> None:
    forged = {"latency": {"-80": MOST, "-79": MOST, "x": 1, "999999": 5}, "errors": {"7": MOST, "8": MOST}}
    write_rows(
        tmp_path,
        "traffic",
        [*(traffic("client", "forged", MOST, **forged) for _ in range(2)), traffic("client", "honest", 1)],
    )
    by_client = {row["client"]: row for row in answered(clients, tmp_path)}
    assert (by_client["forged"]["requests"], by_client["forged"]["errors"]) == (None, None)
    assert by_client["honest"]["requests"] == 1


def test_nothing_that_matches_is_an_error_with_what_there_is(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No client matches\. The tables have 5, from "):
        answered(clients, tables, "--filter", "client = nobody")
    with pytest.raises(KafkaProbeError, match="There is no table traffic in"):
        answered(clients, tmp_path)


def test_documented_commands_find_clients(tables: Path) -> None:
    for flags in documented_flags("clients", "README.md", "docs/guide/answers.md", "docs/guide/host.md"):
        assert asked(clients, tables, *flags).exit_code == 0
