"""The commands `topic` and `topics`: what clients wrote and read, of which each counts once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError
from kafka_probe_console.topic_command import topic
from kafka_probe_console.topics_command import topics
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
MOST = 2**63 - 1


def traffic(
    side: str, client: str | None, api: str, requests: int, name: str | None = "orders", **of: object
) -> dict[str, Any]:
    """Return a row of traffic of ten minutes ago, with ten records per request unless they are unread."""
    window = {"window_start": TIME.now - timedelta(minutes=11), "window_end": TIME.now - timedelta(minutes=10)}
    is_unread = side == "server" and api == "Fetch"
    sums = {"requests": requests, "record_bytes": 1000 * requests, "uncounted_bytes": 1000 * requests * is_unread}
    ends = {"client": {"node": "node-1", "comm": "python"}, "server": {"node": "broker-1", "comm": "java"}}
    records = {"records": 0 if is_unread else 10 * requests, "topic": name, "level": "topic"}
    return {**window, "side": side, "client_id": client, "api": api, **ends[side], **sums, **records, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of readers and of writers that are watched at both ends, at one end, and in part."""
    path = tmp_path_factory.mktemp("tables")
    group = {"group": "billing", "pod": "billing-7f"}
    write_rows(
        path,
        "traffic",
        [
            traffic("client", "both", "Produce", 100),
            traffic("server", "both", "Produce", 103),  # the broker's report comes a second later
            traffic(
                "server", "broker only", "Produce", 40, refused_records=7, refused_bytes=700, errors={"7": 3, "22": 1}
            ),
            traffic("client", "client only", "Produce", 20),
            traffic("client", "in part", "Produce", 10),
            traffic("client", "in part", "Produce", 10, comm="java"),
            traffic("server", "in part", "Produce", 50),
            traffic("client", "reader", "Fetch", 30, None, topic_id="01", **group),
            traffic("server", "reader", "Fetch", 30, None, topic_id="01", group="billing"),
            traffic("server", "reader", "Fetch", 40, None, topic_id="01", group="fraud"),
            traffic("server", "replica", "Fetch", 5),
            traffic("server", "replica", "Fetch", 1, record_bytes=0, uncounted_bytes=0),  # without data
            traffic("server", "not allowed", "Fetch", 2, record_bytes=0, uncounted_bytes=0, errors={"29": 2}),
            traffic("server", None, "Produce", 1),
            traffic("client", "writer", "Produce", 1, "never read"),
            traffic("client", "refused", "Produce", 5, "never read", refused_records=50, refused_bytes=5000),
            traffic("client", "both", "Metadata", 1000),
            traffic("client", "both", "Produce", 1000, None, level="api"),
        ],
    )
    write_rows(path, "topic_names", [{"ts": TIME.now, "topic_id": "01", "topic": "orders"}])
    return path


def test_each_client_counts_once_by_its_own_ends_and_what_only_brokers_saw_is_a_row_of_its_own(tables: Path) -> None:
    found = answered(topic, tables, "orders", "--filter", "use = writes")
    assert [(row["client"], row["workload"], row["side"], row["requests"]) for row in found] == [
        ("both", "python", "client", 100),
        ("broker only", None, "server", 40),
        ("in part", None, "server", 30),
        ("client only", "python", "client", 20),
        ("in part", "java", "client", 10),
        ("in part", "python", "client", 10),
        (None, None, "server", 1),
    ]
    (refused,) = answered(topic, tables, "orders", "--filter", "refused_records > 0")
    assert (refused["client"], refused["refused_records"], refused["errors"]) == ("broker only", 7, 4)


def test_a_few_large_reads_under_the_client_id_of_another_reader_are_a_row_of_their_own(tmp_path: Path) -> None:
    of_brokers = traffic("server", "billing", "Fetch", 109, record_bytes=9_000_000)
    write_rows(tmp_path, "traffic", [traffic("client", "billing", "Fetch", 100), of_brokers])
    found = answered(topic, tmp_path, "orders")
    assert [(row["side"], row["requests"], row["bytes"]) for row in found] == [
        ("server", 9, 8_900_000),
        ("client", 100, 100_000),
    ]


def test_readers_have_their_group_and_records_that_a_broker_sent_unread_are_unknown(tables: Path) -> None:
    of_broker, reader, replica, _ = answered(topic, tables, "orders", "--filter", "use = reads")
    assert (of_broker["client"], of_broker["group"], of_broker["requests"]) == ("reader", "fraud", 40)
    assert (reader["client"], reader["group"], reader["workload"]) == ("reader", "billing", "billing-7f")
    assert (reader["records"], reader["bytes"]) == (300, 30_000)
    assert (replica["client"], replica["records"], replica["bytes"]) == ("replica", None, 5000)


def test_topics_have_the_sums_of_both_uses(tables: Path) -> None:
    orders, never_read = answered(topics, tables)
    assert (orders["topic"], orders["writers"], orders["readers"], orders["groups"]) == ("orders", 7, 3, 2)
    assert (orders["written_records"], orders["written_bytes"]) == (2110 - 7, 211_000 - 700)
    assert (orders["read_records"], orders["read_bytes"], orders["errors"]) == (None, 75_000, 6)
    assert (never_read["topic"], never_read["readers"], never_read["read_bytes"]) == ("never read", 0, None)
    assert (never_read["writers"], never_read["written_records"], never_read["refused_records"]) == (1, 10, 50)
    assert answered(topics, tables, "--filter", "readers = 0") == [never_read]


def test_a_sum_that_overflowed_is_unknown(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        "traffic",
        [
            traffic("client", str(n), "Produce", 1, record_bytes=MOST - 1, errors={"7": MOST, "8": MOST})
            for n in range(3)
        ],
    )
    (found,) = answered(topics, tmp_path)
    assert (found["written_bytes"], found["written_records"], found["errors"]) == (None, 30, None)
    assert [row["bytes"] for row in answered(topic, tmp_path, "orders")] == [MOST - 1] * 3


def test_forged_sums_hide_nobody(tmp_path: Path) -> None:
    forged = [traffic("client", "x", "Produce", 1, "forged", record_bytes=-MOST) for _ in range(3)]
    future: dict[str, Any] = {
        "window_start": datetime(9998, 1, 1, tzinfo=UTC),
        "window_end": datetime(9998, 1, 2, tzinfo=UTC),
    }
    write_rows(tmp_path, "traffic", [*forged, traffic("client", "honest", "Produce", 1, **future)])
    found = {row["topic"]: row for row in answered(topics, tmp_path)}
    assert found["orders"]["written_bytes"] == 1000
    assert datetime.fromisoformat(found["orders"]["last"]) < datetime.now(UTC) + timedelta(seconds=5)
    assert found["forged"]["written_bytes"] == -MOST


def test_a_topic_that_nobody_used_is_an_error_with_what_there_is(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No use of a topic matches\. The tables have 3, from "):
        answered(topic, tables, "nothing")
    with pytest.raises(KafkaProbeError, match=r"The nearest that matches was at "):
        answered(topic, tables, "orders", "--since", "5m")
    with pytest.raises(KafkaProbeError, match="There is no table traffic in"):
        answered(topics, tmp_path)


def test_documented_commands_find_topics(tables: Path) -> None:
    for command in (topic, topics):
        assert command.name
        for flags in documented_flags(command.name, "README.md", "docs/guide/answers.md"):
            assert asked(command, tables, *flags).exit_code == 0
