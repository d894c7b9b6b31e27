"""The command `follow`: which connections it shows, and how their frames read while they pass."""

from __future__ import annotations

import json
import os
import pty
import re
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_probe import cli, follow
from kafka_probe.config import Config, load
from kafka_probe.conversations.capture_flags import capture_output
from kafka_probe.conversations.terminal import Terminal
from kafka_probe.errors import UsageError
from kafka_probe.follow import FollowSink, follow_settings
from kafka_probe.follow_outputs import JsonOutput, Output, TextOutput
from kafka_probe.follow_packets import PacketOutput
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.setting_types import ArchiveFilter
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.hostile import LONE_SURROGATE, NAMES, unsafe
from tests.builders.messages import CLIENT_ID
from tests.builders.samples import Samples, closed, gone, opened, produced_without_acks, request, response, stream
from tests.lab.tshark import packets as tshark

METADATA, HEARTBEAT = ApiKey.METADATA, ApiKey.HEARTBEAT
HOSTILE = "a\x1b[31m[/x]\n"
MARK = b"\0end\n"


def asked(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, ago_s: float = 0.1, **of: Any) -> Samples:
    return request(api_key, 1, conn, correlation_id=correlation_id, ts_ns=ns_ago(ago_s), frame_bytes=60, **of)


def answered(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, ago_s: float = 0.1) -> Samples:
    facts = {"correlation_id": correlation_id, "latency_us": 1500, "frame_bytes": 300}
    return response(api_key, 1, conn, ts_ns=ns_ago(ago_s), **facts)


def exchange(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, **of: Any) -> Samples:
    return stream(asked(correlation_id, conn, api_key=api_key, **of), answered(correlation_id, conn, api_key=api_key))


def ns_ago(ago_s: float) -> int:
    return time.monotonic_ns() - round(ago_s * SECOND_NS)


class Follower:
    """An agent that is fed samples, the sink of `follow`, and what this prints."""

    def __init__(self, output: Output | None = None, **choice: str) -> None:
        settings = {"archive": "all", "recorder_bytes": 0, "archive_filter": ArchiveFilter(**choice)}
        self.fed = Fed(archive=settings)
        self.notices: list[str] = []
        self.read, self.written = os.pipe()
        output = output or TextOutput(self.written, verbose=False)
        self.sink = FollowSink(output, self.written, notice=self.notices.append)
        self.sink.connections = self.fed.agent.connections

    def interval(self, *samples: Samples) -> list[str]:
        """Return the lines that are printed after these samples."""
        return self.interval_bytes(*samples).decode().splitlines()

    def interval_bytes(self, *samples: Samples) -> bytes:
        before = len(self.fed.sink.events), len(self.fed.archive_sink.events)
        if samples:
            self.fed.see(*samples)
        self.fed.report()
        self.sink.send(self.fed.archive_sink.events[before[1] :])  # type: ignore[arg-type]  # events as dictionaries
        self.sink.send(self.fed.sink.events[before[0] :])  # type: ignore[arg-type]
        return self.printed()

    def printed(self) -> bytes:
        self.sink.write([MARK])
        output = b""
        while not output.endswith(MARK):
            output += os.read(self.read, 1 << 16)
        return output.removesuffix(MARK)

    def close(self) -> None:
        self.sink.close(1)
        os.close(self.read)
        os.close(self.written)


@pytest.fixture(autouse=True)
def rendered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "RENDER_S", 10.0)


@pytest.fixture
def followed() -> Iterator[Follower]:
    with closing(Follower()) as follower:
        yield follower


def test_requests_have_their_answers_below_them_and_the_close_is_the_last_line(followed: Follower) -> None:
    lines = followed.interval(
        opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2), exchange(1), exchange(2, api_key=HEARTBEAT)
    )
    assert lines[0].startswith(f"client {CLIENT_ID}, billing (process")
    assert lines[1].startswith("10.0.0.7:40001 to 10.0.0.1:9092, seen at the client's end on node-1, flow ")
    assert "Metadata 1 #1, 60 bytes: " in lines[2]
    assert lines[3].strip().startswith("response after 1.5 ms, 300 bytes: ")
    assert "Heartbeat 1 #2" in lines[4]
    assert len(lines) == 6
    ending = closed(1, ts_ns=ns_ago(0), error=104, first_state=7, closing_ns=ns_ago(0), sent_ns=ns_ago(30))
    (end,) = followed.interval(ending, gone(1))
    assert end.strip() == "closed by the server (rst_received) after 30.0 s of silence"
    assert not followed.sink._followed


def test_a_request_that_waits_has_its_line_first_and_its_answer_one_of_its_own(followed: Follower) -> None:
    *_, line, waits = followed.interval(opened(1, rx_base=1, tx_base=2), asked(1, ago_s=1.5))
    assert "Metadata 1 #1" in line
    assert waits.strip() == "no response yet"
    assert followed.interval() == []
    silence, answer = followed.interval(answered(1))
    assert silence.strip().endswith("s of silence")
    assert "  response after 1.5 ms to Metadata 1 #1, 300 bytes: " in answer
    assert followed.interval(asked(2, ago_s=0.2)) == []  # its answer may be on its way


def test_a_request_without_an_answer_is_complete_at_once(followed: Follower) -> None:
    sent = produced_without_acks(correlation_id=1, ts_ns=ns_ago(0.1))
    *_, line = followed.interval(opened(1, rx_base=1, tx_base=2), sent)
    assert re.search(r"Produce \d+ #1, ", line)


def test_lines_of_several_connections_are_below_their_names(followed: Follower) -> None:
    ends = opened(1, rx_base=1, tx_base=2), opened(2, rx_base=3, tx_base=4, local=("10.0.0.8", 5))
    first = followed.interval(*ends, exchange(1), exchange(1, conn=2))
    assert len([line for line in first if line.startswith(f"client {CLIENT_ID}, ")]) == 2
    name, *same = (line for line in followed.interval(exchange(2)) if "of silence" not in line)
    assert name == f"client {CLIENT_ID}, 10.0.0.7:40001 to 10.0.0.1:9092, client's end"
    assert len(same) == 2
    assert not any(line.startswith("client") for line in followed.interval(exchange(3)))


@pytest.mark.parametrize(
    ("choice", "ids"),
    [
        ({}, {1, 2}),
        ({"client": f"{CLIENT_ID[:3]}*"}, {1}),
        ({"client": "nobody"}, set()),
        ({"workload": "bill*"}, {1}),
        ({"pid": str(2**22 + 1)}, {1}),
        ({"address": "10.9.9.9"}, {2}),
        ({"address": "10.9.9.9:555"}, {2}),
        ({"address": "10.9.9.9:55"}, set()),
        ({"connection": f"{2:016x}"}, {2}),
        ({"api": "Heart*"}, set()),
        ({"client": "nobody", "address": "10.9.9.9"}, set()),
    ],
)
def test_all_conditions_of_the_choice_have_to_match(choice: dict[str, str], ids: set[int]) -> None:
    with closing(Follower(JsonOutput(), **choice)) as follower:
        lines = follower.interval(
            opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2),
            opened(2, server_side=True, local=("10.0.0.1", 9092), peer=("10.9.9.9", 555), rx_base=5, tx_base=6),
            exchange(1),
            exchange(2, conn=2, client_id="other"),
        )
    rows = [json.loads(line) for line in lines]
    assert {row["correlation_id"] for row in rows} == ids
    assert len(rows) == 2 * len(ids)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.7:09092", "10.0.0.7:9092"),
        ("::1", "::1"),
        ("[2001:DB8:0::1]:9092", "[2001:db8::1]:9092"),
        ("[::1]", "::1"),
        ("[::ffff:10.0.0.7]:9092", "10.0.0.7:9092"),
    ],
)
def test_an_address_is_compared_as_events_write_it(given: str, written: str) -> None:
    config = Config(node="node-1", archive_filter="topic=orders", requests="all", interval_s=30)
    settings = follow_settings(config, {"address": given, "client": None})
    assert settings.archive_filter == ArchiveFilter(address=written)
    assert (settings.interval_s, settings.requests.which, settings.archive.which) == (1, "off", "all")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("address", text, "an IP address") for text in ("kafka-1", "kafka-1:9092", "10.0.0", "10.0.0.7:x")),
        *(("address", text, "an IP address") for text in ("10.0.0.7:99999", "[::1]:x")),
        ("pid", "abc", "a number"),
        ("connection", "XYZ", "16 hexadecimal digits"),
    ],
)
def test_a_wrong_choice_is_one_sentence(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        follow_settings(Config(node="node-1"), {name: value})
    with pytest.raises(UsageError, match=message):
        load({"archive_filter": f"{name}={value}"})


def test_a_connection_that_ends_inside_its_only_frame_is_shown(followed: Follower) -> None:
    long = request(METADATA, 1, 1, correlation_id=5, ts_ns=ns_ago(0.1))
    ending = closed(1, ts_ns=ns_ago(0), error=104, first_state=7, closing_ns=ns_ago(0))
    long["flags"] |= 2  # of each sample the next one is missing
    lines = followed.interval(opened(1, rx_base=1, tx_base=2), long, ending, gone(1))
    assert "a part of the frame is missing" in "".join(lines)
    assert lines[-1].strip().startswith("closed by the server")
    assert not followed.sink._joiner._begun


def test_hostile_names_are_text(followed: Follower) -> None:
    lines = followed.interval(opened(1, rx_base=1, tx_base=2), asked(1, client_id=HOSTILE, ago_s=2))
    assert lines[0].startswith("client a\\x1b[31m[/x]\\n, ")
    for number, name in enumerate((name for name in NAMES if name != LONE_SURROGATE), 2):
        process = opened(number, comm=name.encode()[:15], rx_base=number, tx_base=number)
        lines = followed.interval(process, asked(1, number, client_id=name, ago_s=2))
        assert len(lines) == 4
        assert not unsafe("".join(lines))


@pytest.mark.parametrize("as_json", [False, True])
def test_samples_beyond_the_bound_are_counted_in_a_notice(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MOST_SAMPLES", 4)
    with closing(Follower(JsonOutput() if as_json else None)) as follower:
        lines = follower.interval(opened(1, rx_base=1, tx_base=2), exchange(1), exchange(2), exchange(3))
        assert not as_json or [json.loads(line) for line in lines]
        (notice,) = follower.notices
        assert notice == "5 frames or parts left out in this interval: choose fewer connections."
        follower.interval(exchange(4))
        assert len(follower.notices) == 1


def test_the_connection_that_was_silent_longest_leaves(followed: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MOST_FOLLOWED", 1)
    followed.interval(opened(1, rx_base=1, tx_base=2), opened(2, rx_base=3, tx_base=4), exchange(1))
    followed.interval(exchange(1, conn=2))
    assert [*followed.sink._followed] == [f"{2:016x}"]
    assert "flow" in followed.interval(exchange(2))[1]  # introduced again


def test_losses_are_noticed_in_the_interval_in_which_they_grow(followed: Follower) -> None:
    for rate, expected in ((0, 0), (19, 1), (19, 1), (20, 2)):
        agent = {"kind": "agent", "losses": {"archive_rate": rate, "activity_limit": 7}}
        followed.sink.send([agent])  # type: ignore[list-item]  # what it uses of the event
        assert len(followed.notices) == expected
    assert followed.notices[0].endswith("lost since the interval before: archive_rate 19.")


def test_what_waits_at_the_end_is_printed(followed: Follower) -> None:
    assert followed.interval(opened(1, rx_base=1, tx_base=2), asked(7)) == []
    followed.sink.close(1)
    text = os.read(followed.read, 1 << 16).decode()
    assert "Metadata 1 #7" in text
    assert text.endswith("no response seen\n")


def test_when_there_is_nothing_to_show_a_sentence_tells_what_there_is() -> None:
    with closing(Follower(client="nobody")) as follower:
        for _ in range(9):
            assert follower.interval(opened(1, rx_base=1, tx_base=2), exchange(1)) == []
        (notice,) = follower.notices
        assert notice.startswith("No frames of the chosen connections so far. The command watches all ports; ")
        assert notice.endswith(" 1 connections are open there, of which 0 use TLS, which is not decoded.")


def test_lines_are_fitted_to_a_terminal_and_to_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    line = f"12:00:00.000000  Metadata 1 #1, 60 bytes: {'topic orders, ' * 20}"
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (24, 80))
        shown = Terminal(theirs).fitted(line).split("\n")
        assert max(map(len, shown)) <= 80
        assert all(part.startswith(" " * 19) for part in shown[1:])
        assert " ".join(part.strip() for part in shown) == line.strip()
        assert Terminal(theirs).fitted("client billing, java").startswith("\x1b[1m")
        monkeypatch.setenv("NO_COLOR", "1")
        assert Terminal(theirs).fitted("client billing, java") == "client billing, java"
    finally:
        os.close(ours)
        os.close(theirs)
    read, write = os.pipe()
    assert Terminal(write).fitted(line) == line
    os.close(read)
    os.close(write)


@contextmanager
def follower_of_packets(file: Path, most_bytes: int = 1 << 30) -> Iterator[Follower]:
    """Yield a follower that replaces the contents of a file; what it writes goes through its pipe."""
    file.write_bytes(b"of an earlier run")
    with file.open("ab") as old, closing(Follower(PacketOutput(old, most_bytes))) as follower:
        yield follower


@pytest.mark.parametrize("most_bytes", [1 << 30, 800])
def test_packets_are_a_capture_file_while_they_pass(most_bytes: int, tmp_path: Path) -> None:
    file = tmp_path / "live.pcapng"
    with follower_of_packets(file, most_bytes) as follower:
        stopped: list[bool] = []
        follower.sink.on_closed = lambda: stopped.append(True)
        first = follower.interval_bytes(
            opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=2000, tx_base=1000), exchange(1), exchange(2)
        )
        assert file.read_bytes() == b""
        ending = closed(1, ts_ns=ns_ago(0), error=104, first_state=7, closing_ns=ns_ago(0), sent_ns=ns_ago(30))
        last = follower.interval_bytes(ending, gone(1))
    file.write_bytes(first + last)
    rows = tshark(file, "tcp.flags.str", "frame.comment")
    flags = [row[0].strip("·") for row in rows]
    assert flags[:3] == ["S", "A··S", "A"]
    assert f"client {CLIENT_ID}" in rows[0][1]
    assert "billing" in rows[0][1]
    if most_bytes > 800:
        assert [flag.replace("·", "") for flag in flags[3:]] == ["AP"] * 4 + ["AR"]
        assert follower.notices == ["8 packets. Ends of connections: 1."]
        assert not stopped
    else:
        assert stopped
        assert "ends early" in follower.notices[-1]


def test_of_a_connection_with_both_ends_here_one_end_is_written(tmp_path: Path) -> None:
    client, server = ("10.0.0.7", 40_001), ("10.0.0.1", 9092)
    ends = (
        opened(1, local=client, peer=server, rx_base=2000, tx_base=1000),
        opened(2, local=server, peer=client, server_side=True, rx_base=1001, tx_base=2000),
    )
    with follower_of_packets(tmp_path / "live") as follower:
        written = follower.interval_bytes(*ends, exchange(1), exchange(1, conn=2))
        written += follower.interval_bytes(closed(1, ts_ns=ns_ago(0)), gone(1), exchange(2, conn=2))
    file = tmp_path / "live.pcapng"
    file.write_bytes(written)
    assert {row[0] for row in tshark(file, "frame.interface_name")} == {"client's end"}
    assert follower.notices == ["7 packets. Ends of connections: 1."]


def test_frames_without_addresses_are_counted_and_nothing_of_them_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_INTERVALS_WAITED", 1)
    with follower_of_packets(tmp_path / "live") as follower:
        follower.sink.connections = lambda: ()
        follower.interval_bytes(opened(1, rx_base=1, tx_base=2), exchange(1))
        follower.sink.close(1)
    assert not follower.sink._output._connections  # type: ignore[attr-defined]  # of the output of packets
    left_out = "2 frames are left out: the addresses of their connections are not known."
    assert follower.notices == [f"0 packets. Ends of connections: 0. {left_out}"]


def test_a_large_request_is_captured_whole_and_an_impossible_one_is_one_packet(tmp_path: Path) -> None:
    with follower_of_packets(tmp_path / "live") as follower:
        follower.interval_bytes(opened(1, rx_base=1, tx_base=2), asked(1))
        sizes = []
        for number, size in enumerate((1 << 20, 1 << 21, (1 << 30) - 1), 2):
            large = asked(number)
            large["frame_bytes"] = size
            sizes.append(len(follower.interval_bytes(large, answered(number))))
        many = []
        for number in range(10, 20):
            many.append(asked(number))
            many[-1]["frame_bytes"] = 1 << 20
        assert 1 << 20 < len(follower.interval_bytes(*many)) < (2 << 20) + (64 << 10)
    assert sizes[0] > 1 << 20
    assert sizes[1] < 1 << 13
    assert sizes[2] < 1 << 11


def test_a_failed_write_is_an_error_and_a_closed_pipe_is_not() -> None:
    with Path("/dev/full").open("ab") as full:
        sink = FollowSink(PacketOutput(full, 1 << 20), full.fileno())
        sink.send([{"kind": "agent", "losses": {}}])  # type: ignore[list-item]  # what it uses of the event
        sink.close(1)
        assert sink.failure == "No space left on device"
    follower = Follower()
    os.close(follower.read)
    follower.sink.write([MARK])
    follower.sink.close(1)
    assert follower.sink.failure is None
    assert follower.sink.trouble() == "the reader closed the pipe"
    os.close(follower.written)


def test_a_command_that_cannot_start_leaves_the_file_and_starts_no_thread(tmp_path: Path) -> None:
    file = tmp_path / "live"
    before = threading.active_count()
    with follower_of_packets(file):
        assert threading.active_count() == before
    assert file.read_bytes() == b"of an earlier run"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--json", "--pcapng", "-"], "Use one of --json and --pcapng."),
        (["--pcapng", ""], "Give a file for --pcapng"),
        (["--pcapng", "/dev/null/x"], "The file '/dev/null/x' of --pcapng cannot be written: Not a directory."),
        (["--pcapng-bytes", "1MiB"], "--pcapng-bytes has no effect without --pcapng."),
    ],
)
def test_flags_that_cannot_be_used_are_refused(flags: list[str], message: str) -> None:
    error = CliRunner().invoke(cli.follow, flags).exception
    assert isinstance(error, UsageError)
    assert message in str(error)


@pytest.mark.parametrize("size", ["1GB5", "1KiB"])
def test_a_size_that_cannot_be_used_is_refused(size: str) -> None:
    result = CliRunner().invoke(cli.follow, ["--pcapng", "-", "--pcapng-bytes", size])
    assert result.exit_code == 2
    assert "Invalid value for '--pcapng-bytes'" in result.stderr


def test_packets_are_not_printed_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        with pytest.raises(UsageError, match="cannot be printed to a terminal"), capture_output(os.ttyname(theirs)):
            pass
    finally:
        os.close(ours)
        os.close(theirs)
