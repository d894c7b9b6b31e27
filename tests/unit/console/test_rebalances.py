"""The command `rebalances`: who joined or left a group, why, and how long members stood still."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError
from kafka_probe_console.rebalances_command import rebalances
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
VERSIONS = {"JoinGroup": 9, "SyncGroup": 5, "LeaveGroup": 5, "Heartbeat": 4, "ConsumerGroupHeartbeat": 1}


def change(
    minutes: float, membership: str, member: str | None, number: int, api: str = "JoinGroup", **of: object
) -> dict[str, Any]:
    """Return a change of so many minutes ago, with the correlation id `number`, as the client's end reports it."""
    ends = {"node": "node-1", "local": f"10.57.1.11:{number}", "peer": "192.0.2.1:9092", "side": "client"}
    who = {
        "client": {"id": f"client of {member}", "software_name": "apache-kafka-java", "software_version": "4.0.0"},
        "workload": {"pid": 412, "comm": "java"},
    }
    what = {"api": api, "api_version": VERSIONS[api], "correlation_id": number, "flow_id": f"flow {member}"}
    at = TIME.now - timedelta(minutes=minutes)
    times = {"ts": at, "received_ts": at, "agent_id": "a", "conn_id": f"conn {member}", "latency_us": 2_000_000}
    group = {"group": "billing", "member_id": member, "membership": membership}
    return {**ends, **who, **what, **times, **group, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of a group of three generations, of which one member leaves and one times out."""
    path = tmp_path_factory.mktemp("tables")
    beat, epoch = "ConsumerGroupHeartbeat", {"group": "new", "member_epoch": 1}
    rows = [
        change(60 * 30, "joined", "old", 1, generation=1),
        change(30, "joined", "old", 2, generation=2),
        change(29.9, "assigned", "old", 3, "SyncGroup", generation=2),
        change(30.1, "new", "first", 1),
        change(30, "joined", "first", 2, generation=2, reason="metadata_change"),
        change(30, "joined", "second", 2, generation=2, workload={"pid": 7, "comm": "python"}),
        change(25, "left", "first", 4, "LeaveGroup", reason="poll_timeout"),
        change(25, "left", "first", 4, "LeaveGroup", side="server", agent_id="b", node="broker-1", local="b", peer="c"),
        change(20, "joined", "old", 4, generation=3, side="server", local="192.0.2.1:9092", peer="10.0.0.9:4"),
        change(10, "removed", "second", 5, "Heartbeat", error_names={"UNKNOWN_MEMBER_ID": 1}),
        change(9, "removed", "x", 1, "Heartbeat", group="other", error_names={"UNKNOWN_MEMBER_ID": 1}),
        change(8, "refused", None, 1, group="other", error_names={"GROUP_MAX_SIZE_REACHED": 1}),
        change(7, "joined", "n", 1, beat, **epoch),
        change(6, "assigned", "n", 2, beat, **epoch),
        change(5, "assigned", "n", 3, beat, **epoch),
        change(4, "fenced", "n", 4, beat, **epoch),
    ]
    write_rows(path, "requests", [*rows, {**change(3, "", "y", 1), "membership": None}])
    return path


def test_members_join_again_leave_and_time_out(tables: Path) -> None:
    found = answered(rebalances, tables, "--group", "bill*", "--since", "1h")
    assert [(row["change"], row["client"], row["reason"], row["generation"]) for row in found] == [
        ("rejoined", "client of old", None, 3),
        ("timed_out", "client of second", None, 2),
        ("left", "client of first", "poll_timeout", None),
        ("joined", "client of first", "metadata_change", 2),
        ("rejoined", "client of old", None, 2),
        ("rejoined", "client of second", None, 2),
    ]
    assert [row["stood_still_s"] for row in found] == [None, None, None, None, pytest.approx(8), None]


def test_who_it_was_is_known_at_the_clients_end_and_its_address_at_the_brokers(tables: Path) -> None:
    at_broker, timed_out, left, *_ = answered(rebalances, tables, "--group", "billing")
    assert (left["workload"], left["process"], left["node"]) == ("java", "java[412]", "node-1")
    assert (timed_out["workload"], timed_out["process"]) == ("python", "python[7]")
    assert (at_broker["workload"], at_broker["process"], at_broker["node"]) == (None, None, None)
    assert (at_broker["address"], at_broker["broker"]) == ("10.0.0.9:4", "192.0.2.1:9092")


def test_members_of_other_protocols_and_of_groups_that_refuse_them(tables: Path) -> None:
    found = answered(rebalances, tables, "--filter", "not group = billing")
    assert [(row["group"], row["change"], row["error"], row["stood_still_s"]) for row in found] == [
        ("new", "fenced", None, None),
        ("new", "reassigned", None, None),
        ("new", "joined", None, pytest.approx(62)),
        ("other", "refused", "GROUP_MAX_SIZE_REACHED", None),
        ("other", "removed", "UNKNOWN_MEMBER_ID", None),
    ]


def test_tables_without_changes_of_members_are_a_sentence(tmp_path: Path, tables: Path) -> None:
    write_rows(tmp_path, "traffic", [{"window_start": TIME.now, "window_end": TIME.now}])
    with pytest.raises(KafkaProbeError, match="no request that changed the members of a group"):
        asked(rebalances, tmp_path)
    with pytest.raises(KafkaProbeError, match=r"No change of a group's members matches\. The tables have 16"):
        asked(rebalances, tables, "--group", "nobody")


def test_documented_commands_find_rebalances(tables: Path) -> None:
    for flags in documented_flags("rebalances", "README.md", "docs/guide/answers.md"):
        assert asked(rebalances, tables, *flags).exit_code == 0
