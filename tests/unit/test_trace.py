"""One line per exchange, in fixed columns."""

from __future__ import annotations

import os
from typing import Any

import orjson

from kafka_probe.trace import HEADER, line, trace_sink
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
