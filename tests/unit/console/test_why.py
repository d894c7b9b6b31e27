"""The command `why`: which disconnects it prints, with what it knows of each."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_console.disconnect_storms import KnownStorm
from kafka_probe_console.period import moment
from kafka_probe_console.why_command import why
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.messages import CLIENT_ID
from tests.builders.samples import closed, gone, opened, request, response, stream
from tests.builders.tables import write_rows, write_tables
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
HOSTILE = "\x1b[31m" + "x" * 300
RESET = "after 33.0 s of silence the client received an RST that the broker's host never sent"
CLIENT = {
    "node": "node-1",
    "agent_id": "a",
    "conn_id": "1",
    "local": "10.57.1.11:52224",
    "peer": "192.0.2.1:9092",
    "client": {"id": "billing-1", "software_name": "kafka-python", "software_version": "3.0.12"},
    "workload": {"comm": "python", "pid": 412, "pod": "billing-7f"},
    "topics": ["orders", "payments"],
    "requests": 5,
    "close": {"last_api": "Produce", "in_flight": 1},
}
SERVER = {
    **CLIENT,
    "node": "broker-1",
    "agent_id": "b",
    "local": "10.0.0.1:9092",
    "peer": "10.57.2.2:49631",
    "workload": {"comm": "java", "pid": 99},
    "requests": 4,
}


def at() -> datetime:
    """Return the minute of the disconnect."""
    return TIME.ago(minutes=10).replace(second=0, microsecond=0)


def of_day() -> str:
    return f"{at().astimezone():%H:%M}"


def storm(**of: object) -> dict[str, Any]:
    times = {"ts": at(), "since_ts": at() - timedelta(seconds=5), "resolved_ts": at() + timedelta(minutes=2)}
    kind = {"id": "5707", "kind": "idle_disconnects", "subject": "middlebox_reset", "idle_us": 32_000_000}
    return {**kind, **times, "count": 30, **of}


def client(client_id: str) -> dict[str, Any]:
    return {**SERVER, "client": {"id": client_id}}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables of a reset connection with a storm, and of others of which the broker's end was watched."""
    path = tmp_path_factory.mktemp("tables")
    others = (
        ("broker_shutdown", {"server": client("orders")}),
        ("auth_failure", {"server": client(HOSTILE)}),
        ("normal", {"server": client("kafka-probe-agent")}),
    )
    times, hour = {"ts": at() - timedelta(minutes=9), "judged_ts": at()}, timedelta(hours=1)
    reset = {"cause": "middlebox_reset", "evidence": RESET, "idle_us": 33_000_000, "flow_id": "f1"}
    ends = {"ends": "both", "client": {**CLIENT, "opened_ts": at() - timedelta(minutes=1)}, "server": SERVER}
    verdicts = [
        {"ts": at(), "judged_ts": at() + timedelta(seconds=5), **reset, **ends},
        *(
            {**times, "cause": cause, "evidence": "e", "ends": "server only", "by": "server", **end}
            for cause, end in others
        ),
    ]
    write_rows(path, "verdicts", verdicts)
    restart = {"id": "b", "kind": "broker_restart", "subject": "10.0.0.1:9092", "count": 20, "idle_us": None}
    storms = [
        storm(resolved_ts=None, count=20, ts=at() - timedelta(seconds=1)),
        storm(),
        storm(id="other silence", idle_us=20_000_000),
        storm(id="later", since_ts=at() + hour),
        storm(**restart, since_ts=at() - hour, resolved_ts=None),
    ]
    write_rows(path, "storms", storms)
    return path


def test_a_disconnect_has_both_ends_with_their_processes_and_addresses(tables: Path) -> None:
    (found,) = answered(why, tables, "--client", "billing-*")
    assert (found["process"], found["workload"], found["node"]) == ("python[412]", "billing-7f", "node-1")
    assert (found["client_address"], found["seen_as"]) == ("10.57.1.11:52224", "10.57.2.2:49631")
    assert (found["broker"], found["broker_seen_as"]) == ("10.0.0.1:9092", "192.0.2.1:9092")
    assert (found["broker_process"], found["broker_node"]) == ("java[99]", "broker-1")
    assert (found["library"], found["topics"], found["requests"]) == ("kafka-python 3.0.12", "orders, payments", 5)
    assert (found["last_api"], found["in_flight"], found["idle_s"]) == ("Produce", 1, 33)
    assert datetime.fromisoformat(found["ended"]) == at()


def test_what_to_change_has_the_numbers_of_its_silence(tables: Path) -> None:
    (found,) = answered(why, tables, "--client", "billing-1")
    assert "connections.max.idle.ms of at most 26400, or TCP keepalive" in found["change"]
    assert "of at most 26.4 s. Or raise the idle timeout of the firewall" in found["change"]
    (restarted,) = answered(why, tables, "--client", "orders")
    assert restarted["change"].startswith("Nothing if this was intended; otherwise check the broker's log.")


def test_a_storm_is_that_of_its_time_cause_and_silence_or_of_its_broker(tables: Path) -> None:
    (found,) = answered(why, tables, "--client", "billing-1")
    assert re.fullmatch(r"30 such disconnects since \S+ \S+, until \S+ \S+: storm 5707", found["storm"])
    (restarted,) = answered(why, tables, "--client", "orders")
    assert re.fullmatch(r"20 such disconnects since \S+ \S+, not over yet: storm b", restarted["storm"])
    (refused,) = answered(why, tables, "--filter", "cause = auth_failure")
    assert refused["storm"] is None


CRASH = {"cause": "process_exit", "by": "client", "ended": 90_000_000, "opened": 0, "idle_s": None}
POD = {"process": "java[7]", "workload": "orders-7f", "seen_as": "10.57.2.2:49631", "broker": "10.0.0.1:9092"}
BRIEF = {"cause": "normal", "opened": 60_000_000}
UNWATCHED = {"process": None, "workload": None}


@pytest.mark.parametrize(
    ("kind", "subject", "of", "is_one"),
    [
        ("client_crash_loop", "java team/orders-7f", {}, True),
        ("client_crash_loop", "java team/orders-8f", {}, False),
        ("client_crash_loop", "python team/orders-7f", {}, False),
        ("client_crash_loop", "java team/orders-7f", BRIEF, False),
        ("client_crash_loop", "java", {"workload": "java"}, True),
        ("client_crash_loop", "java team/orders-7f", {"ended": 400_000_000}, False),
        ("reconnects", "java team/orders-7f", BRIEF, True),
        ("reconnects", "java team/orders-7f", {**BRIEF, "opened": 1_000_000}, False),
        ("reconnects", "java team/orders-7f", {**BRIEF, "opened": None}, False),
        ("reconnects", "behind 10.57.2.2", {**BRIEF, **UNWATCHED}, True),
        ("reconnects", "behind 10.57.2.3", {**BRIEF, **UNWATCHED}, False),
        ("reconnects", "java team/orders-7f", {}, False),
        ("broker_restart", "10.0.0.1:9092", {"by": "server"}, True),
        ("of a newer release", "process_exit", {}, False),
    ],
)
def test_a_storm_of_a_workload_has_its_crashes_or_brief_connections(
    kind: str, subject: str, of: dict[str, Any], is_one: bool
) -> None:
    storm = KnownStorm("s", kind, subject, 0, since_us=80_000_000, until_us=300_000_000, disconnects=20)
    assert storm.has({**CRASH, **POD, **of}) is is_one


@pytest.mark.parametrize(
    "address", ["10.57.1.11:52224", "10.57.2.2:49631", "10.57.2.2", "192.0.2.1:9092", "192.0.2.1", "10.57.1.11"]
)
def test_an_address_is_that_of_either_end_on_either_side_of_nat(tables: Path, address: str) -> None:
    assert [row["client"] for row in answered(why, tables, "--address", address, "--client", "bill*")] == ["billing-1"]
    assert answered(why, tables, "--address", "10.0.0.1:9092")[0]["client"] == "billing-1"


def test_the_text_has_a_heading_and_a_line_per_value(tables: Path) -> None:
    lines = asked(why, tables, "--at", of_day()).stdout.splitlines()
    assert lines[0] == f"{at().astimezone():%Y-%m-%d %H:%M:%S %Z}  middlebox_reset  billing-1"
    assert lines[1].startswith("  change           Make the clients close or probe idle connections earlier: ")
    assert lines[2].startswith("  storm            30 such disconnects since ")
    assert lines[3:6] == [
        f"  evidence         {RESET}",
        "  idle_s           33.0",
        "  process          python[412]",
    ]
    assert not [line for line in lines if line.split()[0] in ("group", "last_frames")]


def test_the_text_fits_a_narrow_terminal_and_names_are_text(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_probe_console.answer_command.terminal_columns", lambda: 60)
    text = asked(why, tables).stdout
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert "\\x1b[31mxxx" in text
    assert len(text.split("\n\n")) == 3


def test_last_frames_are_those_of_the_clients_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(archive={"archive": "all"})
    # Both ends of one connection.
    for conn, server_side, rx_base, tx_base in ((1, False, 7, 1), (2, True, 2, 7)):
        fed.see(opened(conn, server_side=server_side, rx_base=rx_base, tx_base=tx_base))
        for number in range(20):
            ask = request(ApiKey.METADATA, 12, conn, correlation_id=number, ts_ns=(10 + number) * SECOND_NS)
            answer = response(ApiKey.METADATA, 12, conn, correlation_id=number, ts_ns=(10 + number) * SECOND_NS + 5000)
            fed.see(stream(ask, answer))
    fed.see(closed(1, ts_ns=80 * SECOND_NS), gone(1))
    fed.report()
    events = [event for event in fed.events() if event["kind"] in ("open", "close")]
    flows = {event["flow_id"] for event in events}
    assert len(flows) == 1
    frames = fed.archive_sink.events
    write_tables(tmp_path, events, frames)
    ended = datetime.now(UTC)
    of_client = next(event for event in events if event["side"] == "client")
    end = {**CLIENT, "agent_id": of_client["agent_id"], "conn_id": of_client["conn_id"], "client": {"id": CLIENT_ID}}
    write_rows(
        tmp_path,
        "verdicts",
        [{"ts": ended, "judged_ts": ended, "cause": "unknown", "evidence": "e", "client": end, "flow_id": flows.pop()}],
    )
    (found,) = answered(why, tmp_path)
    assert [line.split()[3] for line in found["last_frames"][::2]] == [f"#{number}," for number in range(16, 20)]
    assert all(line.split()[:2] == ["response", "after"] for line in found["last_frames"][1::2])
    monkeypatch.setattr("kafka_probe_console.answer_command.terminal_columns", lambda: 60)
    *_, last = asked(why, tmp_path).stdout.splitlines()
    assert "response after " in last


def test_last_frames_are_of_the_ends_that_the_verdict_names(tmp_path: Path) -> None:
    fed = Fed(archive={"archive": "all"})
    fed.see(opened(1, rx_base=7, tx_base=1))
    fed.see(request(ApiKey.METADATA, 12, 1, correlation_id=5, ts_ns=10 * SECOND_NS))
    fed.report()
    write_tables(tmp_path, fed.events(), fed.archive_sink.events)
    (opening,) = (event for event in fed.events() if event["kind"] == "open")
    end = {**SERVER, "agent_id": opening["agent_id"], "conn_id": opening["conn_id"]}
    reset = {"ts": at(), "judged_ts": at(), "cause": "unknown", "evidence": "e", "flow_id": opening["flow_id"]}
    other = {**CLIENT, "agent_id": "other"}
    write_rows(tmp_path, "verdicts", [{**reset, "client": other, "server": end}, {**reset, "client": other}])
    assert sorted(len(row["last_frames"]) for row in answered(why, tmp_path)) == [0, 2]


def test_details_that_cannot_be_read_hide_no_disconnect(tmp_path: Path) -> None:
    write_rows(tmp_path, "verdicts", [{"ts": at(), "judged_ts": at(), "cause": "normal", "evidence": "e"}])
    log = tmp_path / "storms" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    result = asked(why, tmp_path, "--json")
    assert json.loads(result.stdout)["cause"] == "normal"
    assert "Some facts are left out. The table" in result.stderr


def test_a_name_is_never_more_than_part_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = "x" + " " * 150 + "change           Run this"
    wide = "\u4e2d" * 100
    verdict = {"ts": at(), "judged_ts": at(), "cause": "normal", "evidence": f"{forged} {wide}"}
    write_rows(tmp_path, "verdicts", [{**verdict, "server": client(forged)}])
    monkeypatch.setattr("kafka_probe_console.answer_command.terminal_columns", lambda: 60)
    lines = asked(why, tmp_path).stdout.splitlines()
    assert max(map(cell_len, lines)) <= 60
    assert [line for line in lines if line.startswith("  change")] == [line for line in lines if "Nothing: the" in line]


def test_a_cause_of_a_newer_release_has_no_advice_and_a_short_silence_no_limit(tmp_path: Path) -> None:
    times = {"ts": at(), "judged_ts": at(), "evidence": "e"}
    causes = ({"cause": "of a newer release"}, {"cause": "middlebox_reset", "idle_us": 300})
    write_rows(tmp_path, "verdicts", [{**times, **cause} for cause in causes])
    changes = {row["cause"]: row["change"] for row in answered(why, tmp_path)}
    assert changes["of a newer release"] is None
    assert "max.idle" not in changes["middlebox_reset"]


def test_addresses_beyond_nat_are_those_of_the_first_open(tmp_path: Path) -> None:
    nat = {"agent_id": "a", "conn_id": "1", "nat": {"local": "192.0.2.77:5000", "peer": "10.0.0.1:9092"}}
    write_rows(tmp_path, "opens", [{**nat, "ts": at() - timedelta(days=3)}])
    write_rows(tmp_path, "verdicts", [{"ts": at(), "judged_ts": at(), "cause": "normal", "client": CLIENT}])
    (found,) = answered(why, tmp_path, "--address", "192.0.2.77")
    assert (found["seen_as"], found["broker"]) == ("192.0.2.77:5000", "10.0.0.1:9092")


def test_a_time_of_day_is_the_last_one_also_when_clocks_are_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        after = datetime(2026, 10, 25, 2, 30, tzinfo=UTC)  # 03:30 there; 02:30 was at 00:30 and 01:30 UTC
        assert moment("02:30", after) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
        assert moment("03:31", after) == datetime(2026, 10, 24, 1, 31, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_nothing_at_a_time_names_the_nearest_that_matches(tables: Path) -> None:
    nearest = f"{at().astimezone():%Y-%m-%d %H:%M}"
    with pytest.raises(
        KafkaProbeError, match=rf"No disconnect of this time matches\. The nearest .* at {nearest}"
    ) as of:
        asked(why, tables, "--client", "billing-1", "--at", (at() + timedelta(minutes=6)).isoformat())
    assert of.value.exit_code == 1
    with pytest.raises(KafkaProbeError, match=r"No disconnect matches\. The tables have 4, from "):
        asked(why, tables, "--client", "nobody", "--at", of_day())


def test_at_is_used_alone_and_is_a_time(tables: Path) -> None:
    with pytest.raises(UsageError, match="Use --at without --since"):
        asked(why, tables, "--at", "14:03", "--since", "1h")
    with pytest.raises(UsageError, match="'25:00' is no time"):
        asked(why, tables, "--at", "25:00")
    with pytest.raises(UsageError, match="between the years 1 and 9999"):
        asked(why, tables, "--at", "0001-01-01T00:00:00Z")


def test_documented_commands_find_disconnects(tables: Path) -> None:
    for flags in documented_flags("why", "README.md", "docs/guide/answers.md", "docs/guide/disconnects.md"):
        assert asked(why, tables, *(of_day() if flag == "14:03" else flag for flag in flags)).exit_code == 0
