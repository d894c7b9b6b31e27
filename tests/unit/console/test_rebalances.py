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
JOIN, SYNC, LEAVE, BEAT, CONSUMER = "JoinGroup", "SyncGroup", "LeaveGroup", "Heartbeat", "ConsumerGroupHeartbeat"
VERSIONS = {JOIN: 9, SYNC: 5, LEAVE: 5, BEAT: 4, CONSUMER: 1}
Row = dict[str, Any]


def change(minutes: float, membership: str, member: str | None, api: str = JOIN, **of: object) -> Row:
    """Return a change that was complete so many minutes ago, as the client's end reports it."""
    ends = {"node": "node-1", "local": f"10.57.1.11:{member}", "peer": "192.0.2.1:9092", "side": "client"}
    who = {
        "client": {"id": f"client of {member}", "software_name": "apache-kafka-java", "software_version": "4.0.0"},
        "workload": {"pid": 412, "comm": "java"},
    }
    # A request has the same correlation id at both ends.
    what = {"api": api, "api_version": VERSIONS[api], "correlation_id": round(minutes * 60_000), "flow_id": f"{member}"}
    at = TIME.now - timedelta(minutes=minutes)
    times = {"ts": at, "received_ts": at, "agent_id": "a", "conn_id": f"conn {member}", "latency_us": 2_000_000}
    group = {"group": "billing", "member_id": member, "membership": membership}
    return {**ends, **who, **what, **times, **group, **of}


def at_broker(row: Row) -> Row:
    """Return the same change as the broker's end reports it."""
    ends = {"side": "server", "node": "broker-1", "local": "10.0.0.1:9092", "peer": "192.0.2.9:40000"}
    return {**row, **ends, "agent_id": "b", "workload": {"pid": 99, "comm": "java"}}


def found(path: Path, rows: list[Row], *flags: str) -> list[Row]:
    """Return the answer to the rows, in the order of time."""
    write_rows(path, "requests", rows)
    return answered(rebalances, path, *flags)[::-1]


def changes(rows: list[Row]) -> set[tuple[str, str]]:
    return {(row["client"].removeprefix("client of "), row["change"]) for row in rows}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of a group of three generations, of which one member leaves and one times out."""
    path = tmp_path_factory.mktemp("tables")
    rows = [
        change(60 * 30, "joined", "old", generation=1),
        change(30, "rejoined", "old", generation=2),
        change(29.9, "assigned", "old", SYNC, generation=2),
        change(30.1, "new", "first"),
        change(30, "rejoined", "first", generation=2, reason="metadata_change"),
        change(30, "rejoined", "second", generation=2, workload={"pid": 7, "comm": "python"}),
        change(25, "left", "first", LEAVE, reason="poll_timeout"),
        change(20, "rejoined", "old", generation=3),
        change(10, "removed", "second", BEAT, error_names={"UNKNOWN_MEMBER_ID": 1}),
    ]
    only_broker = at_broker(change(20, "joined", "unwatched", generation=3))
    others = [
        change(9, "removed", "x", BEAT, group="other", error_names={"UNKNOWN_MEMBER_ID": 1}),
        change(8, "refused", None, group="other", error_names={"GROUP_MAX_SIZE_REACHED": 1}),
        {**change(3, "", "y"), "membership": None},
    ]
    write_rows(path, "requests", [*rows, *map(at_broker, rows), only_broker, *others])
    return path


def test_members_join_again_leave_and_time_out(tables: Path) -> None:
    rows = answered(rebalances, tables, "--group", "bill*", "--since", "1h", "--filter", "not client ~ '*unwatched'")
    assert [(row["change"], row["client"], row["reason"], row["generation"]) for row in rows] == [
        ("rejoined", "client of old", None, 3),
        ("timed_out", "client of second", None, 2),
        ("left", "client of first", "poll_timeout", None),
        ("joined", "client of first", "metadata_change", 2),
        ("rejoined", "client of old", None, 2),
        ("rejoined", "client of second", None, 2),
    ]
    assert [row["stood_still_s"] for row in rows] == [None, None, None, None, pytest.approx(8), None]


def test_who_it_was_is_known_at_the_clients_end_and_its_address_at_the_brokers(tables: Path) -> None:
    rows = {(row["client"], row["change"]): row for row in answered(rebalances, tables, "--group", "billing")}
    left, timed_out = rows["client of first", "left"], rows["client of second", "timed_out"]
    assert (left["workload"], left["process"], left["node"]) == ("java", "java[412]", "node-1")
    assert (timed_out["workload"], timed_out["process"]) == ("python", "python[7]")
    unwatched = rows["client of unwatched", "joined"]
    assert (unwatched["workload"], unwatched["process"], unwatched["node"]) == (None, None, None)
    assert (unwatched["address"], unwatched["broker"]) == ("192.0.2.9:40000", "10.0.0.1:9092")


def test_groups_refuse_members_and_forget_them(tables: Path) -> None:
    rows = answered(rebalances, tables, "--filter", "group = other")
    assert [(row["change"], row["error"]) for row in rows] == [
        ("refused", "GROUP_MAX_SIZE_REACHED"),
        ("removed", "UNKNOWN_MEMBER_ID"),
    ]


def test_a_member_of_a_newer_group_gets_partitions_when_it_joins_or_later(tmp_path: Path) -> None:
    of: Any = {"group": "new", "member_epoch": 1}
    rows = [
        change(300, "joined", "at once", CONSUMER, partitions=2, **of),
        change(60, "assigned", "at once", CONSUMER, partitions=1, **of),
        change(300, "joined", "later", CONSUMER, **of),
        change(299, "assigned", "later", CONSUMER, partitions=1, **of),
        change(59, "assigned", "later", CONSUMER, partitions=2, **of),
        change(58, "fenced", "later", CONSUMER, **of),
    ]
    assert [(row["change"], row["stood_still_s"]) for row in found(tmp_path, rows)] == [
        ("joined", pytest.approx(62)),
        ("joined", pytest.approx(2)),
        ("reassigned", None),
        ("reassigned", None),
        ("fenced", None),
    ]


def test_a_member_that_leaves_while_the_others_join_has_not_timed_out(tmp_path: Path) -> None:
    slow = [change(30, "rejoined", name, generation=1) for name in ("slow", "fast")]
    # The broker lets the others join while it processes the request to leave, and responds to that last.
    next_ones = [
        change(20, "rejoined", "fast", generation=2),
        change(19.9999, "left", "slow", LEAVE, reason="poll_timeout"),
    ]
    rows = found(tmp_path, [*slow, *next_ones])
    assert ("slow", "timed_out") not in changes(rows)
    assert ("slow", "left") in changes(rows)


def test_a_static_member_keeps_its_place_with_another_member_id(tmp_path: Path) -> None:
    def static(minutes: float, member: str, generation: int) -> Row:
        return change(minutes, "joined", member, instance_id="i1", generation=generation)

    others = [change(30, "rejoined", "x", generation=1), change(20, "rejoined", "x", generation=2)]
    assert ("m1", "timed_out") not in changes(
        found(tmp_path, [static(30, "m1", 1), static(25, "m2", 1), static(20, "m2", 2), *others])
    )
    assert ("m2", "timed_out") in changes(found(tmp_path, [static(30, "m1", 1), static(25, "m2", 1), *others]))


def test_members_that_somebody_removes_have_not_timed_out(tmp_path: Path) -> None:
    first = [change(30, "rejoined", name, generation=1) for name in ("m1", "m2")]
    static = change(30, "joined", "m3", instance_id="i3", generation=1)
    stays = [change(minutes, "rejoined", "x", generation=n) for n, minutes in ((1, 30), (2, 20))]
    named: Any = [{"member_id": "m1", "instance_id": ""}, {"member_id": "m2", "instance_id": ""}]
    both = change(25, "left", None, LEAVE, members=named)
    by_instance = change(25, "left", None, LEAVE, member_id="", instance_id="i3", reason="admin")
    rows = found(tmp_path, [*first, static, *stays, both, by_instance])
    assert "timed_out" not in {row["change"] for row in rows}
    left = [(row["member_id"], row["instance_id"], row["reason"]) for row in rows if row["change"] == "left"]
    assert sorted(left, key=str) == [("m1", None, None), ("m2", None, None), (None, "i3", "admin")]


def test_groups_of_one_name_at_two_coordinators_are_two(tmp_path: Path) -> None:
    other: Any = {"peer": "192.0.2.7:9092"}
    rows = [
        *(change(30, "rejoined", name, generation=5) for name in ("a", "b")),
        change(20, "rejoined", "c", generation=9, **other),
    ]
    assert "timed_out" not in {row["change"] for row in found(tmp_path, rows)}


def test_generations_may_begin_again_with_1(tmp_path: Path) -> None:
    rows = [
        *(change(90 - generation, "rejoined", "a", generation=generation) for generation in (1, 2, 3)),
        change(86, "left", "a", LEAVE),
        *(change(50, "rejoined", name, generation=1) for name in ("b", "c")),
        change(40, "rejoined", "c", generation=2),
    ]
    timed_out = [row for row in found(tmp_path, rows) if row["change"] == "timed_out"]
    assert [(row["client"], row["generation"]) for row in timed_out] == [("client of b", 1)]
    (time,) = {row["time"] for row in found(tmp_path, rows) if (row["client"], row["generation"]) == ("client of c", 2)}
    assert timed_out[0]["time"] == time


def test_members_that_joined_long_ago_time_out_as_others_do(tmp_path: Path) -> None:
    rows = [change(60 * 100, "rejoined", name, generation=1) for name in ("a", "b")]
    rows.append(change(10, "rejoined", "a", generation=2))
    assert changes(found(tmp_path, rows, "--since", "2h")) == {("a", "rejoined"), ("b", "timed_out")}


def test_a_generation_of_which_not_all_has_arrived_is_not_judged(tmp_path: Path) -> None:
    rows = [change(30, "rejoined", name, generation=1) for name in ("a", "b")]
    rows.append(change(1, "rejoined", "a", generation=2))
    assert "timed_out" not in {row["change"] for row in found(tmp_path, rows)}


def test_a_removal_is_shown_if_the_time_out_is_before_the_period(tmp_path: Path) -> None:
    rows = [
        *(change(90, "rejoined", name, generation=1) for name in ("a", "b")),
        change(65, "rejoined", "a", generation=2),
        change(10, "removed", "b", BEAT),
    ]
    assert changes(found(tmp_path, rows, "--since", "1h")) == {("b", "removed")}
    assert ("b", "removed") not in changes(found(tmp_path, rows, "--since", "2h"))


def test_clocks_of_clients_may_differ_by_more_than_generations_take(tmp_path: Path) -> None:
    rows = [
        change(30 - late - 0.5 * generation / 60, "rejoined", name, generation=generation)
        for generation in (2, 3)
        for name, late in (("a", 0), ("b", -1 / 60))
    ]
    assert "timed_out" not in {row["change"] for row in found(tmp_path, rows)}


def test_a_member_that_leaves_long_after_it_timed_out_has_timed_out(tmp_path: Path) -> None:
    rows = [change(30, "rejoined", name, generation=1) for name in ("a", "b")]
    rows += [change(20, "rejoined", "a", generation=2), change(15, "left", "b", LEAVE, response_bytes=None)]
    assert {("b", "timed_out"), ("b", "left")} <= changes(found(tmp_path, rows))


def test_a_time_out_is_printed_once(tmp_path: Path) -> None:
    static: Any = {"instance_id": "i1", "generation": 1}
    rows = [
        *(change(minutes, "rejoined", "a", generation=n) for minutes, n in ((30, 1), (29.9, 1), (20, 2), (10, 3))),
        *(change(minutes, "joined", name, **static) for minutes, name in ((30, "m1"), (29.5, "m2"))),
    ]
    timed_out = [row for row in found(tmp_path, rows) if row["change"] == "timed_out"]
    assert [(row["client"], row["generation"]) for row in timed_out] == [("client of m2", 1)]


def test_a_time_out_just_before_the_end_of_a_period_is_in_that_period(tmp_path: Path) -> None:
    rows = [change(30, "rejoined", name, generation=1) for name in ("a", "b")]
    rows.append(change(20, "rejoined", "a", generation=2))
    end = (TIME.now - timedelta(minutes=19.5)).isoformat()
    assert ("b", "timed_out") in changes(found(tmp_path, rows, "--from", "1h", "--until", end))


def test_an_assignment_that_is_returned_again_is_no_change(tmp_path: Path) -> None:
    of: Any = {"group": "new", "member_epoch": 4, "partitions": 2}
    rows = [change(minutes, "assigned", "a", CONSUMER, **of) for minutes in (30, 20)]
    assert len(found(tmp_path, rows)) == 1


def test_members_of_cooperative_groups_do_not_stand_still(tmp_path: Path) -> None:
    rows = [
        change(10, "rejoined", "a", generation=1, assignor="cooperative-sticky"),
        change(9.9, "assigned", "a", SYNC, generation=1),
    ]
    assert [row["stood_still_s"] for row in found(tmp_path, rows)] == [None]


def test_what_the_broker_did_counts_not_what_a_client_claims(tmp_path: Path) -> None:
    row = change(10, "joined", "a", generation=1)
    rows = found(tmp_path, [row, {**at_broker(row), "membership": "refused"}])
    assert [(row["change"], row["workload"]) for row in rows] == [("refused", "java")]


def test_tables_without_changes_of_members_are_a_sentence(tmp_path: Path, tables: Path) -> None:
    write_rows(tmp_path, "traffic", [{"window_start": TIME.now, "window_end": TIME.now}])
    with pytest.raises(KafkaProbeError, match="no request that changed the members of a group"):
        asked(rebalances, tmp_path)
    with pytest.raises(KafkaProbeError, match=r"No change of a group's members matches\. The tables have 21"):
        asked(rebalances, tables, "--group", "nobody")


def test_documented_commands_find_rebalances(tables: Path) -> None:
    for flags in documented_flags("rebalances", "README.md", "docs/guide/answers.md"):
        assert asked(rebalances, tables, *flags).exit_code == 0
