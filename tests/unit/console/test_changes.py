"""The command `changes`: what is new, gone, doubled or halved against an earlier period."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe_console.changes_command import changes
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()


def traffic(minutes_ago: int, client: str, requests: int, side: str = "client", **of: object) -> dict[str, Any]:
    """Return a row of traffic of a minute that began so long ago."""
    begin = TIME.ago(minutes=minutes_ago)
    window = {"window_start": begin, "window_end": begin + timedelta(minutes=1)}
    library = {"software_name": "librdkafka", "software_version": "2.3.0"}
    kind = {"level": "api", "api": "Fetch", "api_version": 13}
    return {**window, **kind, **library, "side": side, "client_id": client, "requests": requests, **of}


def of_topic(minutes_ago: int, topic: str, requests: int, api: str = "Produce") -> dict[str, Any]:
    return traffic(minutes_ago, "steady", requests, level="topic", topic=topic, api=api)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of two hours, the second of which began an hour ago."""
    path = tmp_path_factory.mktemp("tables")
    write_rows(
        path,
        "traffic",
        [
            *(traffic(ago, "steady", 600) for ago in (90, 30)),
            *(traffic(ago, "steady", 600, "server") for ago in (90, 30)),
            traffic(90, "retired", 60),
            traffic(30, "arrived", 60, "server"),
            traffic(90, "busier", 300),
            traffic(30, "busier", 620),
            traffic(90, "idler", 300, software_version="2.3.0"),
            traffic(30, "idler", 120, software_version="2.4.0", api_version=15),
            traffic(90, "rare", 1),
            traffic(30, "rare", 3),
            *(traffic(ago, "kafka-probe-agent", 1000) for ago in (30, 1)),
            of_topic(90, "orders", 600),
            of_topic(30, "orders", 600),
            of_topic(30, "audit", 5),
            of_topic(90, "orders", 100, "Fetch"),
            of_topic(25 * 60 + 30, "yesterday", 100),
        ],
    )
    reports = [(90, "both"), (30, "both"), (30, "node-3"), (90, "node-\x1b[2J")]
    write_rows(path, "agents", [{"received_ts": TIME.ago(minutes=ago), "node": node} for ago, node in reports])
    return path


def found(tables: Path, *flags: str) -> set[tuple[str, str, str | None, str]]:
    return {(row["what"], row["name"], row["client"], row["change"]) for row in answered(changes, tables, *flags)}


def test_clients_libraries_versions_and_topics_are_compared_with_the_hour_before(tables: Path) -> None:
    assert found(tables) == {
        *(("client", "retired", "retired", "gone"), ("client", "arrived", "arrived", "new")),
        *(("client", "busier", "busier", "more"), ("client", "idler", "idler", "less")),
        *(("library", f"librdkafka 2.{n}.0", "idler", change) for n, change in ((3, "gone"), (4, "new"))),
        *(("API version", "Fetch 13", "idler", "gone"), ("API version", "Fetch 15", "idler", "new")),
        *(("writes to topic", "audit", None, "new"), ("reads of topic", "orders", None, "gone")),
    }


def test_rates_are_those_of_one_end_by_the_minute(tables: Path) -> None:
    (busier,) = answered(changes, tables, "--filter", "what = client and client = busier")
    assert (busier["before_per_min"], busier["after_per_min"]) == pytest.approx((5, 620 / 60), rel=0.1)
    (largest, *_) = answered(changes, tables)
    assert (largest["client"], largest["difference_per_min"]) == ("busier", pytest.approx(320 / 60, rel=0.1))


def test_a_time_is_that_of_the_change(tables: Path) -> None:
    at = TIME.ago(hours=1).isoformat()
    assert found(tables, "--at", at) == found(tables)


def test_of_an_hour_that_is_not_over_its_part_is_compared(tables: Path) -> None:
    rows = answered(changes, tables, "--at", TIME.ago(minutes=40).isoformat(), "--filter", "what = client")
    assert {(row["name"], row["change"]) for row in rows} == {
        ("arrived", "new"),
        *((name, "new") for name in ("steady", "busier", "idler", "rare")),
    }
    with pytest.raises(UsageError, match="2999-01-01 is in the future"):
        asked(changes, tables, "--at", "2999-01-01")


def test_a_period_may_be_compared_with_the_same_one_a_day_earlier(tables: Path) -> None:
    assert ("writes to topic", "yesterday", None, "gone") in found(tables, "--since", "1h", "--against", "25h")
    assert ("writes to topic", "orders", None, "new") in found(tables, "--since", "1h", "--against", "25h")
    assert found(tables, "--since", "1h", "--against", "1h") == found(tables)


def test_nodes_that_were_watched_in_one_period_only_are_named(tables: Path) -> None:
    assert r"Agents of node-\x1b[2J, node-3 reported in one of them only" in asked(changes, tables).stderr


def test_a_period_ends_with_the_newest_traffic(tmp_path: Path) -> None:
    nameless: dict[str, Any] = {"client_id": None, "software_version": "2.4.0"}
    steady = [traffic(ago, "steady", 1000) for ago in range(3, 11)]
    write_rows(tmp_path, "traffic", [*steady, *(traffic(ago, "", 200, **nameless) for ago in range(3, 7))])
    with pytest.raises(KafkaProbeError, match="No change matches"):
        answered(changes, tmp_path, "--since", "6m")


def test_periods_that_cannot_be_compared_are_refused(tables: Path) -> None:
    with pytest.raises(UsageError, match="--against 10m is shorter than the period, which is "):
        asked(changes, tables, "--against", "10m")
    with pytest.raises(UsageError, match="Give --from with --until"):
        asked(changes, tables, "--until", "1h")
    with pytest.raises(KafkaProbeError, match=r"No change matches\. The tables have 7 clients, from "):
        asked(changes, tables, "--filter", "name = nothing")


def test_documented_commands_find_changes(tables: Path) -> None:
    for flags in documented_flags("changes", "README.md", "docs/guide/answers.md"):
        at = TIME.ago(hours=1).isoformat()
        assert asked(changes, tables, *(at if flag == "14:00" else flag for flag in flags)).exit_code == 0
