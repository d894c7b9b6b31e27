"""The command `follow`: which connections it shows, and how their frames read while they pass."""

from __future__ import annotations

import json
import os
import pty
import re
import termios
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafka_probe import follow
from kafka_probe.config import Config, load
from kafka_probe.conversations.terminal import Terminal
from kafka_probe.errors import UsageError
from kafka_probe.follow import follow_settings
from kafka_probe.follow_outputs import JsonOutput
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.setting_types import ArchiveFilter
from tests.builders.follower import Follower, answered, asked, exchange, ns_ago
from tests.builders.hostile import LONE_SURROGATE, NAMES, unsafe
from tests.builders.messages import CLIENT_ID
from tests.builders.samples import closed, gone, opened, produced_without_acks, request

HEARTBEAT = ApiKey.HEARTBEAT
HOSTILE = "a\x1b[31m[/x]\n"


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
    third = followed.interval(exchange(3))
    assert third
    assert not any(line.startswith("client") for line in third)


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
    long = request(ApiKey.METADATA, 1, 1, correlation_id=5, ts_ns=ns_ago(0.1))
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
