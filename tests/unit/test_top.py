"""`flow` events become rows of client, API and topic with rates and latencies."""

from __future__ import annotations

import os
from typing import Any

import orjson
import pytest

from kafka_probe.capture.sample import Protocol
from kafka_probe.connections.offsets import GroupLag
from kafka_probe.events import Event, bucket_of
from kafka_probe.interactive_top import InteractiveTop
from kafka_probe.sinks.stdout import BUFFER_BYTES
from kafka_probe.top import (
    COLUMNS,
    ROWS_KEPT,
    ROWS_SHOWN,
    WIDE,
    LiveTop,
    PlainTop,
    TrafficTable,
    by_topic,
    cells,
    json_lines,
    plain_table,
)
from kafka_probe.top_sinks import top_sink
from tests.builders import samples
from tests.builders.events import SECOND_US, broker_flow, client, close, passed, topic, workload
from tests.builders.fed_agent import Fed

NAMES = [column.name for column in COLUMNS]


def traffic(*events: Event, internal: bool = False) -> TrafficTable:
    summed = TrafficTable(internal=internal)
    summed.add(events)
    return summed


def shown(*events: Event, internal: bool = False) -> list[dict[str, str]]:
    """Return the rows as they are shown, busiest first, by column."""
    summed = traffic(*events, internal=internal)
    return [dict(zip(NAMES, cells(key, row, summed.seconds), strict=True)) for key, row in summed.busiest()]


def test_a_flow_becomes_a_row_with_rates_per_second() -> None:
    assert shown(broker_flow(), passed()) == [
        {
            "SIDE": "server",
            "PID": "7",
            "COMM": "java",
            "CONTAINER": "c0ffee42c0ff",
            "CLIENT": "billing",
            "LIBRARY": "librdkafka 2.5",
            "PEER": "10.0.0.1",
            "API": "Produce v9",
            "TOPIC": "orders",
            "REQ/S": "2.0",
            "KB/S": "1.0",
            "REC/S": "10.0",
            "P50 MS": "2.04",
            "P99 MS": "2.04",
            "LAG": "-",
            "ERRORS": "-",
            "ERROR": "-",
        }
    ]


def test_connections_of_one_client_add_up_and_their_histograms_merge() -> None:
    slow = broker_flow(requests=1, latency={str(bucket_of(90_000)): 1}, errors={"29": 1})
    (row,) = shown(broker_flow(), slow, passed(SECOND_US))
    assert row["REQ/S"] == "11.0"
    assert float(row["P50 MS"]) == pytest.approx(2, rel=0.05)
    assert float(row["P99 MS"]) == pytest.approx(90, rel=0.05)
    assert (row["ERRORS"], row["ERROR"]) == ("1", "TOPIC_AUTHORIZATION_FAILED")


def test_each_topic_of_a_flow_has_its_row_with_its_own_counts() -> None:
    topics = [
        topic("a", requests=10, records=1, bytes=100, errors={"3": 2}),
        topic(None, topic_id="ab" * 16, requests=4, records=2, bytes=200),
    ]
    first, second = shown(broker_flow(topics=topics), passed(SECOND_US))
    assert (first["TOPIC"], first["REQ/S"], first["KB/S"], first["ERRORS"]) == ("a", "10.0", "0.1", "2")
    assert (second["TOPIC"], second["REQ/S"], second["KB/S"], second["ERRORS"]) == ("ab" * 16, "4.0", "0.2", "-")


def test_a_connection_whose_both_ends_are_here_has_the_row_of_its_client() -> None:
    ends = [broker_flow(flow_id="a"), broker_flow(flow_id="a", side="client", peer="10.0.0.1:9092")]
    other = broker_flow(flow_id="b", peer="[2001:db8::7]:40001")
    table = TrafficTable(both_ends_here=lambda: {"a"})
    table.add([*ends, other, passed()])
    assert {(key.side, key.peer) for key in table.rows} == {("client", "10.0.0.1:9092"), ("server", "[2001:db8::7]")}
    assert len(shown(*ends, passed())) == 2


def test_both_ends_are_known_by_the_flow_ids_of_connections() -> None:
    fed = Fed()
    ends = [samples.opened(1), samples.opened(2, server_side=True, rx_base=1), samples.opened(3, tx_base=77)]
    fed.see(*ends)
    flow_ids = [one.identity.flow_id for one in fed.agent.connections()]
    assert fed.agent.both_ends_here() == {one for one in flow_ids if flow_ids.count(one) == 2}


def test_a_fetch_has_the_lag_of_its_group_in_the_topic() -> None:
    flows = [broker_flow(api="Fetch", group="g"), broker_flow(group="g"), broker_flow(api="Fetch", group="h")]
    table = traffic(*flows, passed())
    lags = by_topic([GroupLag("c", "g", "orders", 1, 70, 70), GroupLag("d", "g", "orders", 1, 5, 5)])
    found = {(key.group, key.api): cells(key, row, 5, lags)[NAMES.index("LAG")] for key, row in table.busiest()}
    assert found == {("g", "Fetch"): "75", ("g", "Produce"): "-", ("h", "Fetch"): "-"}


def test_losses_have_their_reasons() -> None:
    losses = {"gap": 1, "ring_full": 30, "resync": 2, "map_full": 3, "malformed": 1, "frame_limit": 0}
    (*_, footer) = plain_table(traffic(passed(losses=losses))).decode().splitlines()
    assert "lost: ring_full 30, map_full 3, resync 2, others 2;" in footer


def test_the_busiest_row_is_first() -> None:
    flows = (
        broker_flow(api=api, requests=requests) for api, requests in (("Produce", 1), ("Fetch", 9), ("Metadata", 5))
    )
    rows = shown(*flows, passed())
    assert [row["API"] for row in rows] == ["Fetch v9", "Metadata v9", "Produce v9"]


def test_a_pod_or_else_a_unit_stands_where_the_container_does() -> None:
    pod, unit = shown(
        broker_flow(requests=20, workload=workload(pod="billing-7c9f-x2x4z", container_id="ab" * 32)),
        broker_flow(workload=workload(unit="kafka-broker.service")),
        passed(),
    )
    assert (pod["CONTAINER"], unit["CONTAINER"]) == ("billing-7c9f-x2x4z", "kafka-broker.service")


def test_what_is_unknown_is_a_dash_and_what_is_the_agents_own_says_so() -> None:
    nobody = {"workload": workload(None, pid=None), "client": client(None, software_name=None, software_version=None)}
    own = broker_flow(**nobody, internal=True, api=None, api_version=None, latency={}, topics=[])
    (row,) = shown(own, passed(), internal=True)
    assert [row[name] for name in ("PID", "CLIENT", "LIBRARY", "TOPIC", "P50 MS")] == ["-"] * 5
    assert row["API"] == "(kafka-probe)"


def test_the_table_is_aligned_and_ends_with_rows_seconds_and_losses() -> None:
    table = traffic(broker_flow(), broker_flow(client=client("\x1b[2J")), passed(losses={"ring_full": 3}))
    lines = plain_table(table).decode().splitlines()
    assert lines[0].split()[:2] == ["SIDE", "PID"]
    assert len(lines) == 4
    assert lines[1].index("Produce") == lines[2].index("Produce") == lines[0].index("API")
    assert lines[-1] == "2 rows over 5.0 s, lost: ring_full 3"
    assert "\x1b" not in "".join(lines)


def test_its_own_traffic_is_left_out_and_counted() -> None:
    own = broker_flow(internal=True, api=None, requests=7)
    assert [row["API"] for row in shown(broker_flow(), own, passed())] == ["Produce v9"]
    assert plain_table(traffic(broker_flow(), own, passed())).decode().splitlines()[-1] == (
        "1 rows over 5.0 s, lost: nothing; 7 of kafka-probe's own requests are left out; --internal shows them"
    )


def test_an_empty_table_names_what_is_open_and_not_decoded() -> None:
    fed = Fed()
    fed.see(*(samples.opened(number) for number in range(1, 7)))
    fed.see(*(samples.rejected(number) for number in range(1, 4)), samples.rejected(4, Protocol.UNKNOWN))
    sink = PlainTop(once_s=5, descriptor=(descriptor := os.memfd_create("stdout")))
    sink.connections = fed.agent.connections
    sink.send([close(opaque="tls"), close(), passed()])
    sink.close(5)
    with os.fdopen(descriptor, "rb") as printed:
        printed.seek(0)
        assert printed.read().decode().splitlines()[-1] == (
            "0 rows over 5.0 s, lost: nothing; no requests on 6 open connections; "
            "4 connections are TLS and not decoded; 1 connection is not Kafka and not decoded"
        )


def output(sink: PlainTop, read: int, write: int) -> str:
    sink.close(5)
    os.close(write)
    with os.fdopen(read) as text:
        return text.read()


def test_a_table_is_printed_when_its_interval_is_complete_and_starts_anew() -> None:
    read, write = os.pipe()
    sink = PlainTop(descriptor=write)
    sink.send([broker_flow()])
    sink.send([broker_flow(), passed()])
    sink.send([broker_flow(), passed()])
    text = output(sink, read, write)
    assert text.count("SIDE") == 2
    assert [line.split()[-8] for line in text.splitlines() if "orders" in line] == ["4.0", "2.0"]


def test_once_prints_one_table_over_all_intervals_and_asks_to_stop() -> None:
    read, write = os.pipe()
    sink = PlainTop(once_s=10, descriptor=write)
    asked: list[bool] = []
    sink.on_closed = lambda: asked.append(True)
    sink.send([broker_flow(), passed()])
    assert not asked
    sink.send([broker_flow(), passed()])
    assert asked
    text = output(sink, read, write)
    assert text.count("SIDE") == 1
    assert "1 rows over 10.0 s, lost: nothing" in text


def test_json_has_one_object_per_row() -> None:
    read, write = os.pipe()
    sink = PlainTop(as_json=True, descriptor=write)
    sink.send([broker_flow(), passed()])
    (row,) = [orjson.loads(line) for line in output(sink, read, write).splitlines()]
    assert (row["client_id"], row["topic"], row["requests"], row["bytes"], row["seconds"]) == (
        "billing",
        "orders",
        10,
        5000,
        5.0,
    )
    assert row["latency_p99_us"] == pytest.approx(2000, rel=0.05)


def test_a_table_with_very_many_rows_has_the_busiest_and_fits_into_the_buffer() -> None:
    topics = [topic(f"{number}" + "\U0001f600" * 256, requests=number) for number in range(22_000)]
    table = traffic(broker_flow(topics=topics), passed())
    lines = plain_table(table).decode().splitlines()
    assert len(lines) == 1 + ROWS_SHOWN + 1
    beyond = sum(range(ROWS_KEPT, 22_000))
    assert lines[-1] == (
        f"{ROWS_KEPT} rows over 5.0 s, lost: nothing; the last {ROWS_KEPT - ROWS_SHOWN} rows left out; "
        f"{beyond} requests of further rows not counted"
    )
    *rows, rest = map(orjson.loads, json_lines(table))
    assert (len(rows), rest["rows_left_out"]) == (ROWS_SHOWN, ROWS_KEPT - ROWS_SHOWN)
    assert sum(row["requests"] for row in rows) + rest["requests"] == sum(range(22_000))
    assert len(plain_table(table)) < BUFFER_BYTES


@pytest.mark.parametrize(
    ("terminal", "term", "asked", "kind"),
    [
        (True, "xterm", {}, InteractiveTop),
        (True, "dumb", {}, PlainTop),
        (False, "xterm", {}, PlainTop),
        (True, "xterm", {"once_s": 5.0}, PlainTop),
        (True, "xterm", {"as_json": True}, PlainTop),
    ],
)
def test_the_table_is_live_on_a_terminal_only(
    terminal: bool, term: str, asked: dict[str, Any], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", term)
    sink = top_sink(**asked)
    sink.close(0)
    assert type(sink) is kind


@pytest.mark.parametrize(("width", "names"), [(WIDE, NAMES), (80, [c.name for c in COLUMNS if not c.wide])])
def test_the_live_table_has_the_columns_that_fit_into_its_terminal(
    width: int, names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    live = LiveTop()
    live.send([broker_flow()])
    live.send([passed()])
    live.close(1)
    header, row, footer = capsys.readouterr().out.splitlines()
    assert header.split() == " ".join(names).split()
    assert "billing" in row
    assert "Produce v9" in row
    assert "…" not in row
    assert footer.strip() == "1 rows over 5.0 s, lost: nothing"


@pytest.mark.parametrize("width", [WIDE, WIDE + 10, 80, 100])
def test_names_that_are_too_long_are_cut_before_anything_else(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    live = LiveTop()
    named = broker_flow(client=client("c" * 100), workload=workload("ThreadPoolTaskE", pid=4_194_303))
    live.send([named, passed()])
    live.close(1)
    _, row, _ = capsys.readouterr().out.splitlines()
    assert "4194303  ThreadPoolTaskE" in row
    assert "c…" in row
    assert "…" not in "".join(row.split()[-4:])
