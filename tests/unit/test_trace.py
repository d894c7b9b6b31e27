"""One line per exchange, in fixed columns."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import Any

import orjson
import pytest
from rich.cells import cell_len

from kafka_probe.errors import UsageError
from kafka_probe.setting_types import ExchangeSelection
from kafka_probe.trace import HEADER, RequestFilter, line, narrow_line, trace_sink
from tests.builders.events import agent, client, flow, partition, request, workload


def column(text: str, name: str) -> str:
    """Return the text below a heading, which is aligned with its values at one side."""
    start = HEADER.index(name)
    end = start + len(name)
    while start and text[start - 1 : start].strip():
        start -= 1
    return text[start:].split("  ")[0].strip() if text[start:end].strip() else ""


def test_a_line_says_who_asked_what_how_long_it_took_and_about_which_topic() -> None:
    text = line(request())
    assert text.endswith("orders-3@70 5 records\n")
    assert column(text, "SIDE") == "server"
    assert column(text, "PID").split()[0] == "4242"
    assert column(text, "COMM") == "java"
    assert column(text, "CLIENT") == "billing"
    assert column(text, "API") == "Produce v12"
    assert column(text, "LATENCY").split()[0] == "1.500ms"


def test_errors_by_name_who_it_was_and_an_incomplete_decode_are_shown() -> None:
    text = line(request(error_names={"INVALID_TXN_STATE": 2}, group="etl", transactional_id="etl-1", acks=-1))
    assert text.endswith("orders-3@70 5 records, group=etl, txn=etl-1, acks=-1, INVALID_TXN_STATE x2\n")
    assert line(request(status="truncated")).endswith("orders-3@70 5 records, (truncated)\n")


def test_records_that_are_compressed_say_how() -> None:
    compressed, plain = (partition(records=5, codec=codec) for codec in ("zstd", "none"))
    assert line(request(topics=[compressed, plain])).endswith("orders 5 records zstd, orders 5 records\n")


def test_what_is_unknown_is_a_dash() -> None:
    nobody = {"workload": workload(None, pid=None), "client": client(None), "topics": [partition(name=None)]}
    _, *columns = line(request(**nobody, response_bytes=None, latency_us=None)).split()
    assert columns == ["server", "-", "-", "-", "Produce", "v12", "9", "1234", "-", "-", "-"]


def test_names_from_the_wire_cannot_control_the_terminal() -> None:
    text = line(request(client=client("\x1b[2J\nroot"), topics=[partition(name="a\rb")]))
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "\r" not in text


def printed(*events: Any, as_json: bool = False) -> list[bytes]:
    read, write = os.pipe()
    sink = trace_sink(as_json, write)
    sink.send(events)
    sink.close(5)
    os.close(write)
    with os.fdopen(read, "rb") as output:
        return output.read().splitlines()


def test_only_requests_are_printed_under_one_header() -> None:
    lines = printed(request(), agent(), flow(), request(correlation_id=10))
    assert lines[0].decode() == HEADER
    assert len(lines) == 3


def test_nothing_is_printed_without_requests() -> None:
    assert printed(agent()) == []


def test_json_is_the_events_themselves() -> None:
    lines = printed(request(), agent(), as_json=True)
    assert [orjson.loads(text) for text in lines] == [request()]


def chosen(event: Any, selection: str = "all", **choice: str) -> bool:
    return RequestFilter.of(ExchangeSelection.parse(selection), choice).chooses(event)


@pytest.mark.parametrize(
    ("name", "matching", "other"),
    [
        ("client", "bill*", "billing-?"),
        ("topic", "orders", "order"),
        ("api", "Produce", "Fetch"),
        ("workload", "ja*", "python"),
        ("pid", "4242", "42"),
        ("address", "10.57.2.2:39282", "10.57.2.3"),
        ("connection", f"{2:016x}", f"{3:016x}"),
        ("error", "not_leader_or_follower", "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_requests_are_chosen_by_each_condition(name: str, matching: str, other: str) -> None:
    event = request(errors={"6": 1}, error_names={"NOT_LEADER_OR_FOLLOWER": 1})
    assert [chosen(event, **{name: value}) for value in (matching, other)] == [True, False]
    assert chosen(event, **{name: matching, "error": "any"})
    assert chosen(request(topics=[]), topic="orders") is False


def test_only_requests_that_the_selection_has_are_printed_although_agents_send_others() -> None:
    deleted = request(api="DeleteTopics")
    chosen_by = {which: chosen(deleted, which) for which in ("all", "1/100", "errors", "slower:1", "slower:2")}
    assert chosen_by == {"all": True, "1/100": True, "errors": False, "slower:1": True, "slower:2": False}
    assert chosen(deleted, error="any") is False
    with pytest.raises(UsageError, match="--requests"):
        chosen(deleted, "off")


def test_a_wrong_choice_names_the_nearest_error() -> None:
    with pytest.raises(UsageError, match=r"no error NOT_LEADER\. The most similar one is NOT_"):
        chosen(request(), error="not_leader")
    for none in ("none", "0"):
        with pytest.raises(UsageError, match=f"no error {none.upper()}"):
            chosen(request(), error=none)
    with pytest.raises(UsageError, match="pid must be a number"):
        chosen(request(), pid="java")


def test_an_error_that_has_no_name_is_chosen_by_its_code() -> None:
    event = request(errors={"999": 1}, error_names={"999": 1})
    assert [chosen(event, error=error) for error in ("999", "998")] == [True, False]


@pytest.mark.parametrize(("columns", "expected"), [(0, HEADER), (80, "TIME         CLIENT"), (200, HEADER)])
def test_a_terminal_gets_lines_of_its_width(columns: int, expected: str) -> None:
    ours, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    sink = trace_sink(descriptor=terminal)
    sink.send([request()])
    sink.close(5)
    lines = os.read(ours, 1 << 16).decode().splitlines()
    os.close(terminal)
    os.close(ours)
    assert lines[0].startswith(expected)
    assert len(lines) == 2
    assert columns != 80 or max(map(len, lines)) <= 80


def test_wide_characters_take_two_columns() -> None:
    wide = request(
        client=client("\u8acb\u6c42\u66f8\u30b7\u30b9\u30c6\u30e0"), topics=[partition(name="\u6ce8\u6587" * 30)]
    )
    assert cell_len(narrow_line(wide, 80).rstrip("\n")) == 80
    versioned = narrow_line(request(api="ConsumerGroupHeartbeat", api_version=1), 80)
    assert "ConsumerGroupHear v1" in versioned


def test_narrow_lines_fit_and_have_errors_first() -> None:
    long = request(topics=[partition(name="x" * 249)], errors={"6": 2}, error_names={"NOT_LEADER_OR_FOLLOWER": 2})
    text = narrow_line(long, 80)
    assert (len(text), text[-2:]) == (81, "…\n")
    assert text.endswith("Produce v12             1.500ms  NOT_LEADER_OR_FOLL…\n")
    assert narrow_line(request(topics=[]), 80).endswith("Produce v12             1.500ms\n")
