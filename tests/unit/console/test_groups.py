"""The command `groups`: how far groups are behind, of which partitions, and what was not seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError
from kafka_probe_console.groups_command import groups
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()


def seen(minutes: float, offset: int, partition: int = 0, **of: object) -> dict[str, Any]:
    """Return an offset that was seen so many minutes ago."""
    at = TIME.now - timedelta(minutes=minutes)
    times = {"received_ts": at + timedelta(seconds=2), "ts": at + timedelta(seconds=1), "seen_ts": at}
    topic = {"topic": "orders", "topic_id": None, "cluster_id": "east", "broker": None}
    return {**times, **topic, "partition": partition, "offset": offset, **of}


def age(minutes: float) -> Any:
    """Return the age in seconds of what was seen so many minutes before the first test."""
    return pytest.approx(60 * minutes + (datetime.now(UTC) - TIME.now).total_seconds(), abs=3)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of a group that is behind, one that is stopped, and of offsets that are known in part."""
    path = tmp_path_factory.mktemp("tables")
    ends = [seen(half / 2, 1000 - 5 * half) for half in range(120)]  # ten records per minute
    ends += [seen(1, 500, 1), seen(30, 500, 1), seen(1, 7, 0, topic=None, topic_id="01"), seen(1, 30, 0, topic="west")]
    ends += [seen(5, 99, topic="west", cluster_id="west")]
    positions = [
        *(seen(minutes, 900 - 10 * minutes, group="billing") for minutes in range(20)),
        seen(3, 500, 1, group="billing"),
        seen(40, 100, group="stopped"),
        seen(1, 5, 2, group="blind"),
        seen(1, 4, topic="names", group="by name", cluster_id=None, broker="10.0.0.1:9092"),
        seen(1, 40, topic="west", cluster_id="west", group="west"),
    ]
    write_rows(path, "partition_ends", ends)
    write_rows(path, "group_positions", positions)
    write_rows(path, "topic_names", [{"ts": TIME.now, "topic_id": "01", "topic": "names"}])
    window = {"window_start": TIME.now - timedelta(minutes=2), "window_end": TIME.now - timedelta(minutes=1)}
    early = {"window_start": TIME.now - timedelta(minutes=42), "window_end": TIME.now - timedelta(minutes=41)}
    write_rows(
        path,
        "traffic",
        [
            *({**window, "group": "billing", "client_id": name} for name in ("a", "a", "b")),
            {**window, "group": "west", "client_id": "d", "cluster_id": "east"},
            {**window, "group": "west", "client_id": "f", "side": "server", "cluster_id": "west"},
            *(
                {**window, "group": "west", "client_id": "e", "side": "client", "node": node, "pid": 1, "start_time": 1}
                for node in ("n1", "n1", "n2")
            ),
            {**early, "group": "stopped", "client_id": "c"},
        ],
    )
    return path


def found(tables: Path, *flags: str) -> dict[str, dict[str, Any]]:
    return {row["group"]: row for row in answered(groups, tables, *flags)}


def test_a_group_is_behind_by_records_and_by_the_age_of_the_first_it_has_not_consumed(tables: Path) -> None:
    row = found(tables)["billing"]
    assert (row["lag"], row["most_lag"], row["partitions"], row["not_seen"], row["members"]) == (100, 100, 2, 0, 2)
    assert row["more_than"] is None
    assert row["lag_s"] == age(9.9)  # when record 900 came


def test_records_after_a_pause_are_not_as_old_as_the_pause(tmp_path: Path) -> None:
    write_rows(tmp_path, "partition_ends", [seen(60, 100), seen(1, 120)])
    write_rows(tmp_path, "group_positions", [seen(50, 100, group="billing")])
    assert found(tmp_path)["billing"]["lag_s"] == age(1 + 0.475)


def test_a_group_that_is_stopped_falls_behind_and_its_age_has_a_bound(tables: Path) -> None:
    row = found(tables)["stopped"]
    assert (row["lag"], row["members"], row["more_than"]) == (900, 0, "more than")
    assert row["lag_s"] == age(59.5)  # of the oldest end
    assert row["position_age_s"] == age(40)


def test_a_partition_whose_end_was_not_seen_has_no_lag(tables: Path) -> None:
    row = found(tables)["blind"]
    assert (row["lag"], row["lag_s"], row["partitions"], row["not_seen"]) == (None, None, 1, 1)


def test_offsets_are_joined_by_the_names_of_topics_and_the_only_cluster_that_has_one(tables: Path) -> None:
    row = found(tables)["by name"]
    assert (row["topic"], row["cluster"], row["lag"]) == ("names", "east", 3)


def test_topics_of_one_name_in_two_clusters_are_two(tables: Path) -> None:
    row = found(tables)["west"]
    assert (row["cluster"], row["lag"]) == ("west", 59)


def test_members_are_counted_by_process_and_not_in_other_clusters(tables: Path) -> None:
    assert found(tables)["west"]["members"] == 3  # e on two nodes, f; d is of another cluster


def test_partitions_have_a_row_each(tables: Path) -> None:
    rows = answered(groups, tables, "--partitions", "--group", "bill*")
    assert [(row["partition"], row["position"], row["end"], row["lag"]) for row in rows] == [
        (0, 900, 1000, 100),
        (1, 500, 500, 0),
    ]
    assert rows[1]["lag_s"] == 0


def test_a_group_that_is_not_there_is_a_sentence(tables: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No group matches\. The tables have 5"):
        asked(groups, tables, "--group", "nobody")


def test_a_clock_in_the_future_makes_no_time_later_than_now(tmp_path: Path) -> None:
    write_rows(tmp_path, "partition_ends", [seen(1, 5), seen(-60 * 24 * 365, 9, received_ts=TIME.now)])
    write_rows(tmp_path, "group_positions", [seen(1, 5, group="billing")])
    row = found(tmp_path)["billing"]
    assert (row["lag"], row["members"]) == (4, None)
    assert 0 <= row["lag_s"] < 120


def test_a_past_time_is_answered_as_it_was_then(tables: Path) -> None:
    when = (TIME.now - timedelta(minutes=10)).isoformat()
    row = found(tables, "--at", when)["billing"]
    assert (row["lag"], row["members"]) == (105, 0)
    assert row["lag_s"] == pytest.approx(10.9 * 60, abs=3)
    assert found(tables, "--at", when)["stopped"]["position_age_s"] == pytest.approx(30 * 60, abs=3)


def test_a_topic_that_was_made_anew_has_no_lag_by_its_old_positions(tmp_path: Path) -> None:
    write_rows(tmp_path, "partition_ends", [seen(9, 900), seen(1, 5)])
    write_rows(tmp_path, "group_positions", [seen(8, 900, group="billing")])
    row = found(tmp_path)["billing"]
    assert (row["lag"], row["lag_s"], row["not_seen"]) == (None, None, 1)


def test_forged_offsets_do_not_overflow(tmp_path: Path) -> None:
    write_rows(tmp_path, "partition_ends", [seen(1, 2**63 - 1, number) for number in range(3)])
    write_rows(tmp_path, "group_positions", [seen(1, 0, number, group="billing") for number in range(3)])
    assert found(tmp_path)["billing"]["lag"] == 9 * 10**18


def test_documented_commands_find_groups(tables: Path) -> None:
    for flags in documented_flags("groups", "README.md", "docs/guide/answers.md"):
        assert asked(groups, tables, *flags).exit_code == 0
