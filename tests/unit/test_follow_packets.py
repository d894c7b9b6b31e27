"""`follow --pcapng`: the capture file that is written while frames pass, and the flags and file of it."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafka_probe import cli, follow
from kafka_probe.conversations.capture_flags import capture_output
from kafka_probe.errors import UsageError
from kafka_probe.follow import FollowSink
from kafka_probe.follow_packets import PacketOutput
from tests.builders.follower import MARK, Follower, answered, asked, exchange, ns_ago
from tests.builders.messages import CLIENT_ID
from tests.builders.samples import closed, gone, opened
from tests.lab.tshark import packets as tshark


@pytest.fixture(autouse=True)
def rendered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "RENDER_S", 10.0)


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


@pytest.mark.root
def test_no_packets_are_written_through_a_link_or_into_a_file_of_another_user(tmp_path: Path) -> None:
    file, link = tmp_path / "theirs.pcapng", tmp_path / "link.pcapng"
    file.write_bytes(b"theirs")
    link.symlink_to(file)
    with (
        pytest.raises(UsageError, match="it is a symbolic link; name the file, or - for a pipe"),
        capture_output(str(link)),
    ):
        pass
    os.chown(file, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"), capture_output(str(file)):
        pass
    assert file.read_bytes() == b"theirs"


def test_packets_are_not_printed_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        with pytest.raises(UsageError, match="cannot be printed to a terminal"), capture_output(os.ttyname(theirs)):
            pass
    finally:
        os.close(ours)
        os.close(theirs)
