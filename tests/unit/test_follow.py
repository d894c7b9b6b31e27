"""The command `follow`: which connections it shows, and how their frames read while they pass."""

from __future__ import annotations

import json
import os
import pty
import re
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kafka_probe import follow
from kafka_probe.conversations.terminal import Terminal
from kafka_probe.follow import Choice, FollowSink
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.hostile import LONE_SURROGATE, NAMES, unsafe
from tests.builders.messages import CLIENT_ID
from tests.builders.samples import Samples, closed, gone, opened, produced_without_acks, request, response, stream

METADATA, HEARTBEAT = ApiKey.METADATA, ApiKey.HEARTBEAT
HOSTILE = "a\x1b[31m[/x]\n"


def asked(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, ago_s: float = 0.1, **of: Any) -> Samples:
    return request(api_key, 1, conn, correlation_id=correlation_id, ts_ns=ns_ago(ago_s), frame_bytes=60, **of)


def answered(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, ago_s: float = 0.1) -> Samples:
    facts = {"correlation_id": correlation_id, "latency_us": 1500, "frame_bytes": 300}
    return response(api_key, 1, conn, ts_ns=ns_ago(ago_s), **facts)


def exchange(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, **of: Any) -> Samples:
    return stream(asked(correlation_id, conn, api_key=api_key, **of), answered(correlation_id, conn, api_key=api_key))


def ns_ago(ago_s: float) -> int:
    return time.monotonic_ns() - round(ago_s * SECOND_NS)


@dataclass
class Follower:
    """An agent that is fed samples, and its sink."""

    sink: FollowSink
    read: int
    fed: Fed = field(default_factory=lambda: Fed(archive={"archive": "all", "recorder_bytes": 0}))

    def interval(self, *samples: Samples) -> list[str]:
        """Return the lines that are printed after these samples."""
        before = len(self.fed.sink.events), len(self.fed.archive_sink.events)
        if samples:
            self.fed.see(*samples)
        self.fed.report()
        self.sink.connections = self.fed.agent.connections
        self.sink.send(self.fed.archive_sink.events[before[1] :])  # type: ignore[arg-type]  # events as dictionaries
        self.sink.send(self.fed.sink.events[before[0] :])  # type: ignore[arg-type]
        return self.printed()

    def printed(self) -> list[str]:
        self.sink.write([b"end\n"])
        text = ""
        while not text.endswith("end\n"):
            text += os.read(self.read, 1 << 16).decode()
        return text.splitlines()[:-1]


@pytest.fixture
def followed(request: pytest.FixtureRequest) -> Iterator[Follower]:
    settings = getattr(request, "param", {})
    notices = settings.pop("notices", [])
    read, write = os.pipe()
    sink = FollowSink(settings.pop("choice", Choice()), notice=notices.append, descriptor=write, **settings)
    yield Follower(sink, read)
    sink.close(1)
    os.close(read)
    os.close(write)


def test_requests_have_their_answers_below_them_and_the_close_is_the_last_line(followed: Follower) -> None:
    lines = followed.interval(
        opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2), exchange(1), exchange(2, api_key=HEARTBEAT)
    )
    assert lines[0].startswith(f"client {CLIENT_ID}, billing (process")
    assert lines[1].startswith("10.0.0.7:40001 to 10.0.0.1:9092, seen at the client's end on node-1, flow ")
    assert "Metadata 1 #1, 60 bytes: " in lines[2]
    assert lines[3].strip().startswith("answer after 1.5 ms, 300 bytes: ")
    assert "Heartbeat 1 #2" in lines[4]
    assert len(lines) == 6
    ending = closed(1, ts_ns=ns_ago(0), error=104, first_state=7, closing_ns=ns_ago(0), sent_ns=ns_ago(30))
    (end,) = followed.interval(ending, gone(1))
    assert end.strip() == "closed by peer (rst_received) after 30.0 s of silence"
    assert not followed.sink._followed


def test_a_request_that_waits_has_its_line_first_and_its_answer_one_of_its_own(followed: Follower) -> None:
    *_, line, waits = followed.interval(opened(1, rx_base=1, tx_base=2), asked(1, ago_s=1.5))
    assert "Metadata 1 #1" in line
    assert waits.strip() == "no answer yet"
    assert followed.interval() == []
    silence, answer = followed.interval(answered(1))
    assert silence.strip().endswith("s of silence")
    assert "  answer to Metadata 1 #1, 300 bytes: " in answer
    assert followed.interval(asked(2, ago_s=0.2)) == []  # its answer may be on its way


def test_a_request_without_an_answer_is_complete_at_once(followed: Follower) -> None:
    sent = produced_without_acks(correlation_id=1, ts_ns=ns_ago(0.1))
    *_, line = followed.interval(opened(1, rx_base=1, tx_base=2), sent)
    assert re.search(r"Produce \d+ #1, ", line)


def test_lines_of_several_connections_are_below_their_names(followed: Follower) -> None:
    ends = opened(1, rx_base=1, tx_base=2), opened(2, rx_base=3, tx_base=4, local=("10.0.0.8", 5))
    first = followed.interval(*ends, exchange(1), exchange(1, conn=2))
    assert len([line for line in first if line.startswith(f"client {CLIENT_ID}, ")]) == 2
    assert len(followed.interval(exchange(2, conn=2))) == 2  # the last one was the same
    name, *others = followed.interval(exchange(2))
    assert name.startswith(f"client {CLIENT_ID}, ")
    assert len(others) == 2


@pytest.mark.parametrize(
    ("choice", "ids"),
    [
        (Choice(), {1, 2}),
        (Choice(client=f"{CLIENT_ID[:3]}*"), {1}),
        (Choice(client="nobody"), set()),
        (Choice(workload="bill*"), {1}),
        (Choice(pid=2**22 + 1), {1}),
        (Choice(address="10.9.9.9"), {2}),
        (Choice(address="10.9.9.9:555"), {2}),
        (Choice(address="10.9.9.9:55"), set()),
        (Choice(connection=f"{2:016x}"), {2}),
        (Choice(client="nobody", address="10.9.9.9"), set()),
    ],
)
def test_all_conditions_of_the_choice_have_to_match(choice: Choice, ids: set[int]) -> None:
    read, write = os.pipe()
    follower = Follower(FollowSink(choice, as_json=True, descriptor=write), read)
    try:
        lines = follower.interval(
            opened(1, tgid=2**22 + 1, comm=b"billing", rx_base=1, tx_base=2),
            opened(2, server_side=True, local=("10.0.0.1", 9092), peer=("10.9.9.9", 555), rx_base=5, tx_base=6),
            exchange(1),
            exchange(2, conn=2, client_id="other"),
        )
        rows = [json.loads(line) for line in lines]
        assert {row["correlation_id"] for row in rows} == ids
        assert len(rows) == 2 * len(ids)
    finally:
        follower.sink.close(1)
        os.close(read)
        os.close(write)


def test_hostile_names_are_text(followed: Follower) -> None:
    lines = followed.interval(opened(1, rx_base=1, tx_base=2), asked(1, client_id=HOSTILE, ago_s=2))
    assert lines[0].startswith("client a\\x1b[31m[/x]\\n, ")
    for number, name in enumerate((name for name in NAMES if name != LONE_SURROGATE), 2):
        process = opened(number, comm=name.encode()[:15], rx_base=number, tx_base=number)
        lines = followed.interval(process, asked(1, number, client_id=name, ago_s=2))
        assert len(lines) == 4
        assert not unsafe("".join(lines))


def test_what_exceeds_a_bound_is_left_out_and_counted(followed: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MOST_SAMPLES", 4)
    monkeypatch.setattr(follow, "MOST_FOLLOWED", 1)
    ends = opened(1, rx_base=1, tx_base=2), opened(2, rx_base=3, tx_base=4)
    lines = followed.interval(*ends, exchange(1), exchange(1, conn=2), exchange(2))
    assert re.fullmatch(r"[1-9] more parts of frames left out: narrow the choice of connections", lines[-1])
    assert len(followed.sink._followed) == 1
    assert len([line for line in followed.interval(exchange(3)) if "left out" in line]) == 0


NOTICES: list[str] = []


@pytest.mark.parametrize("followed", [{"choice": Choice(client="nobody"), "notices": NOTICES}], indirect=True)
def test_when_there_is_nothing_to_show_a_sentence_tells_what_there_is(followed: Follower) -> None:
    followed.interval(opened(1, rx_base=1, tx_base=2), exchange(1))
    for _ in range(9):
        assert followed.interval(exchange(1)) == []
    assert NOTICES == [
        "No frames so far. 1 connections are open, of which 0 match; 0 of these are TLS and not decoded."
    ]


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
