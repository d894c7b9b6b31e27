"""`inspect --pcapng`: tshark reads archived connections as packets, with their handshake, end and comments."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafka_probe.conversations import capture_flags
from kafka_probe.conversations.capture_file import CaptureFile
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.conversations.packets import Endpoint, PacketMaker
from kafka_probe.conversations.wire_frames import WireFrame, Zeros, wire_frame
from kafka_probe.errors import KafkaProbeError
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_console import archived_frames
from kafka_probe_console.inspect_command import inspect
from tests.builders.copied import copied
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.samples import closed, gone, opened, request, response
from tests.builders.tables import write_tables
from tests.builders.trees import CLIENT_ID, Records, message_of
from tests.lab.tshark import packets as tshark

ISN = 1000
HOSTILE = "a\x1b[31m\nb"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables with two connections: one that the client closed, and one that was reset."""
    fed = Fed(archive={"archive": "all"})
    for conn, client in ((1, CLIENT_ID), (2, HOSTILE)):
        isn = conn * ISN
        local, peer = ("10.1.0.1", 40_000 + conn), ("10.1.0.2", 9093)
        fed.see(opened(conn, local=local, peer=peer, tgid=2**22 + 1, comm=b"billing", tx_base=isn, rx_base=2 * isn))
        asked = request(ApiKey.METADATA, 8, conn, client_id=client, correlation_id=7)
        asked["ts_ns"], asked["tcp_seq"] = SECOND_NS, isn + 1
        asked["frame_bytes"] = 12 + sum(asked["size"].tolist())
        answered = response(ApiKey.METADATA, 8, conn, correlation_id=7)
        answered["ts_ns"], answered["tcp_seq"] = 2 * SECOND_NS, 2 * isn
        answered["frame_bytes"] = 8 + sum(answered["size"].tolist())
        fed.see(asked, answered)
    fed.see(closed(1, ts_ns=3 * SECOND_NS, closing_ns=3 * SECOND_NS, first_state=4), gone(1))
    fed.see(closed(2, ts_ns=3 * SECOND_NS, closing_ns=3 * SECOND_NS, first_state=7, error=104), gone(2))
    fed.report()
    path = tmp_path_factory.mktemp("tables")
    write_tables(path, fed.sink.events, fed.archive_sink.events)
    return path


def export(tables: Path, *flags: str) -> Result:
    result = CliRunner().invoke(inspect, ["--tables", str(tables), *flags])
    if result.exception and not isinstance(result.exception, SystemExit | KafkaProbeError):
        raise result.exception
    return result


def ends(client: str, server: str) -> tuple[Endpoint, Endpoint]:
    found = Endpoint.of(client), Endpoint.of(server)
    assert found[0]
    assert found[1]
    return found[0], found[1]


def test_a_connection_has_its_handshake_its_frames_and_its_end(tables: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.pcapng"
    result = export(tables, "--client", CLIENT_ID, "--pcapng", str(file))
    assert result.stderr == "7 packets. Ends of connections: 1. Wireshark and tshark need -d tcp.port==9093,kafka\n"
    rows = tshark(file, "ip.src", "tcp.srcport", "tcp.flags.str", "tcp.seq_raw", "tcp.ack_raw", "kafka.correlation_id")
    assert [[host, port, flags.strip("·"), *rest] for host, port, flags, *rest in rows] == [
        ["10.1.0.1", "40001", "S", str(ISN), "0", ""],
        ["10.1.0.2", "9093", "A··S", str(2 * ISN - 1), str(ISN + 1), ""],
        ["10.1.0.1", "40001", "A", str(ISN + 1), str(2 * ISN), ""],
        *rows_of_exchange(rows),
        ["10.1.0.1", "40001", "A···F", rows[4][4], rows[5][4], ""],
        ["10.1.0.2", "9093", "A···F", rows[5][4], str(int(rows[4][4]) + 1), ""],
    ]
    assert tshark(file, "frame.number", only="tcp.analysis.flags") == []
    assert tshark(file, "kafka.request_frame", only="frame.number == 5") == [["4"]]


def rows_of_exchange(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows of request and response, whose sizes are not the subject here."""
    asked, answered = rows[3], rows[4]
    assert [asked[5], answered[5]] == ["7", "7"]
    assert int(answered[4]) > int(asked[3])
    return [[host, port, flags.strip("·"), *rest] for host, port, flags, *rest in (asked, answered)]


def test_comments_name_client_library_process_and_hosts_and_nothing_has_an_effect(tables: Path, tmp_path: Path) -> None:
    file = tmp_path / "both.pcapng"
    export(tables, "--api", "Metadata", "--pcapng", str(file))
    comments = [line[0] for line in tshark(file, "frame.comment") if line[0]]
    assert any(f"client {CLIENT_ID}" in text and "billing" in text for text in comments)
    assert not any("\x1b" in text for text in comments)
    assert b"\\x1b[31m\\nb" in file.read_bytes()
    assert b"node-1" in file.read_bytes()
    resets = tshark(file, "ip.src", "tcp.srcport", only="tcp.flags.reset == 1")
    assert resets == [["10.1.0.2", "9093"]]


def test_conditions_on_frames_choose_among_the_connections_of_a_client(tables: Path, tmp_path: Path) -> None:
    result = export(tables, "--client", "*", "--correlation-id", "8", "--pcapng", str(tmp_path / "none"))
    assert "No frame matches" in str(result.exception)
    result = export(tables, "--client", "*", "--correlation-id", "7", "--pcapng", str(tmp_path / "both"))
    assert len(tshark(tmp_path / "both", "frame.number", only="tcp.flags.syn == 1 && tcp.flags.ack == 0")) == 2
    result = export(tables, "--client", "*", "--limit", "1", "--pcapng", str(tmp_path / "one"))
    assert result.stderr.startswith("7 packets. Ends of connections: 1.")
    assert result.stderr.endswith("More connections match: raise --limit, or give a shorter time.\n")


def test_a_client_id_with_a_line_break_is_one_line_of_a_message(tables: Path) -> None:
    assert "a\\x1b[31m\\nb" in str(export(tables, "--client", "absent", "--pcapng", "-").exception)


def test_many_comments_are_shortened_and_count_towards_the_size_of_the_file() -> None:
    connection, stream = PacketMaker(*ends("10.0.0.1:1", "10.0.0.2:9092"), 1, 1), BytesIO()
    output = CaptureFile(stream, 10_000)
    wire = WireFrame([b"head"], ["c" * 400] * 5000)
    (packet,) = connection.frame(1, 1, wire, 4, output.may_fill, response=True)
    assert output.write(packet)
    assert b"4980 more comments on this frame are left out" in stream.getvalue()
    assert not output.write(packet)
    assert len(stream.getvalue()) < 10_000


@dataclass
class BothEnds:
    """Events of connections with both ends archived; the n-th has the flow id that its sequence numbers give."""

    fed: Fed = field(default_factory=lambda: Fed(archive={"archive": "all"}))

    def see(self, conn: int, number: int, *, server_side: bool, latency_us: int = 1000) -> None:
        """Let an agent see an exchange at one end of a connection."""
        client, server, isn = ("10.1.0.1", 40_000 + number), ("10.1.0.2", 9093), number * ISN
        local, peer = (server, client) if server_side else (client, server)
        tx_base, rx_base = (2 * isn, isn + 1) if server_side else (isn, 2 * isn)
        self.fed.see(opened(conn, local=local, peer=peer, server_side=server_side, tx_base=tx_base, rx_base=rx_base))
        asked = request(ApiKey.METADATA, 8, conn, client_id=CLIENT_ID, correlation_id=7)
        asked["ts_ns"], asked["tcp_seq"] = conn * SECOND_NS, isn + 1
        asked["frame_bytes"] = 12 + sum(asked["size"].tolist())
        answered = response(ApiKey.METADATA, 8, conn, correlation_id=7, latency_us=latency_us)
        answered["ts_ns"], answered["tcp_seq"] = conn * SECOND_NS + latency_us * 1000, 2 * isn
        answered["frame_bytes"] = 8 + sum(answered["size"].tolist())
        self.fed.see(asked, answered)

    def written(self, tables: Path, *flags: str, without_opens_of: Sequence[str] = ()) -> list[tuple[str, str, float]]:
        """Export from tables with the events; return interface, source port and time of each packet with payload."""
        self.fed.report()
        events = [
            event
            for event in self.fed.sink.events
            if not (event["kind"] in ("open", "flow", "close") and event["conn_id"] in without_opens_of)
        ]
        write_tables(tables, events, self.fed.archive_sink.events)
        result = export(tables, "--pcapng", str(tables / "file"), *flags)
        assert result.exception is None, result.exception
        columns = ("frame.interface_name", "tcp.srcport", "frame.time_epoch")
        rows = tshark(tables / "file", *columns, only="tcp.len > 0")
        return [(name, port, float(time_s)) for name, port, time_s in rows]


CLIENTS_END, SERVERS_END = "client's end", "server's end"


@pytest.mark.parametrize(
    ("flags", "ends"),
    [
        ((), [CLIENTS_END]),
        (("--end", "server"), [SERVERS_END]),
        (("--side", "server"), [SERVERS_END]),
        (("--side", "server", "--end", "client"), [CLIENTS_END]),
        (("--end", "both", "--limit", "1"), [CLIENTS_END, SERVERS_END]),
        (("--end", "both", "--slower", "5"), [CLIENTS_END, SERVERS_END]),
        (("--end", "server", "--slower", "5"), [SERVERS_END]),
    ],
)
def test_the_end_is_chosen_whichever_end_matches(flags: tuple[str, ...], ends: list[str], tmp_path: Path) -> None:
    both = BothEnds()
    both.see(1, 1, server_side=False, latency_us=9000)
    both.see(2, 1, server_side=True)
    rows = both.written(tmp_path, *flags)
    assert [name for name, _, _ in rows] == [name for name in ends for _ in range(2)]


def test_the_slowest_connections_come_first(tmp_path: Path) -> None:
    both = BothEnds()
    for number, latency_us in ((1, 1000), (2, 9000), (3, 5000)):
        both.see(number, number, server_side=False, latency_us=latency_us)
    rows = both.written(tmp_path, "--sort", "latency", "--limit", "2")
    assert [port for _, port, _ in rows if port != "9093"] == ["40002", "40003"]


def test_an_agent_that_was_restarted_has_two_ends_of_one_side(tmp_path: Path) -> None:
    both = BothEnds()
    both.see(1, 1, server_side=False)
    both.see(2, 1, server_side=False)
    both.see(3, 1, server_side=True)
    rows = both.written(tmp_path)
    assert [name for name, _, _ in rows] == [CLIENTS_END] * 4


def test_the_other_end_is_written_if_the_addresses_of_the_chosen_one_are_not_known(tmp_path: Path) -> None:
    both = BothEnds()
    both.see(1, 1, server_side=False)
    both.see(2, 1, server_side=True)
    rows = both.written(tmp_path, without_opens_of=[f"{1:016x}"])
    assert [name for name, _, _ in rows] == [SERVERS_END] * 2


def test_forged_ends_of_a_flow_hide_no_end(tmp_path: Path) -> None:
    both = BothEnds()
    both.see(1, 1, server_side=False)
    both.see(2, 1, server_side=True)
    both.fed.report()
    frames = both.fed.archive_sink.events
    for side in ("x", "y", "client", "server"):
        forged = json.loads(json.dumps(frames[0]))
        forged["agent_id"] = f"forged {side}"
        forged["wall_offset_ns"] -= SECOND_NS
        for end in forged["ends"]:
            end["side"] = side
        frames.insert(0, forged)
    of_no_connection = json.loads(json.dumps(frames[-1]))
    of_other_flow = json.loads(json.dumps(frames[-1]))
    for end, other in zip(of_no_connection["ends"], of_other_flow["ends"], strict=True):
        end["conn_id"], other["flow_id"] = None, "0" * 16
    frames += [of_no_connection, of_other_flow]
    opens = [event for event in both.fed.sink.events if event["kind"] == "open"]
    both.fed.sink.events.append({**opens[0], "flow_id": "f" * 16, "ts": opens[0]["ts"] + 1})
    flow_id = opens[0]["flow_id"]
    assert [name for name, _, _ in both.written(tmp_path, "--flow", flow_id)] == [CLIENTS_END] * 2


@pytest.mark.parametrize(("ends_of_side", "shown"), [(16, 4), (1, 2)])
def test_a_conversation_has_both_ends_of_a_connection_within_bounds(
    ends_of_side: int, shown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_frames, "MOST_OF_SIDE", ends_of_side)
    both = BothEnds()
    for conn, number, server_side in ((1, 1, False), (2, 2, False), (3, 1, True), (4, 1, False), (5, 1, False)):
        both.see(conn, number, server_side=server_side)
    both.fed.report()
    write_tables(tmp_path, both.fed.sink.events, both.fed.archive_sink.events)
    result = export(tmp_path, "--conversation", "--limit", "1")
    assert result.stdout.count("seen at the") == shown
    assert "10.1.0.1:40002" not in result.stdout
    assert result.stderr == "More connections match: raise --limit, or give a shorter time.\n"
    result = export(tmp_path, "--conversation", "--side", "server")
    assert result.stdout.count("seen at the server's end") == result.stdout.count("seen at the") == 1


def test_zeros_inside_responses_take_at_most_half_of_the_file() -> None:
    connection, file = PacketMaker(*ends("10.0.0.1:1", "10.0.0.2:9092"), 1, 1), BytesIO()
    output = CaptureFile(file, 1 << 20)
    for _ in range(100):
        wire = WireFrame([b"head", Zeros(30_000), b"tail"])
        for packet in connection.frame(1, 1, wire, 30_008, output.may_fill, response=True):
            output.write(packet)
    assert 400_000 < len(file.getvalue()) < 540_000


def test_a_new_file_is_its_owners_only(tables: Path, tmp_path: Path) -> None:
    export(tables, "--api", "Metadata", "--pcapng", str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_one_sentence(tables: Path) -> None:
    result = export(tables, "--api", "Metadata", "--pcapng", "/dev/full")
    assert str(result.exception) == "The capture file cannot be written: No space left on device."


def test_two_exports_are_equal_and_standard_output_is_a_file(tables: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for file in (first, second):
        export(tables, "--api", "Metadata", "--pcapng", str(file))
    assert first.read_bytes() == second.read_bytes()
    assert export(tables, "--api", "Metadata", "--pcapng", "-").stdout_bytes == first.read_bytes()


def test_a_full_file_ends_with_a_sentence(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_flags, "_LEAST_BYTES", 1)
    result = export(tables, "--api", "Metadata", "--pcapng", str(tmp_path / "small"), "--pcapng-bytes", "500")
    assert "The file has as many bytes as --pcapng-bytes allows, and ends early." in result.stderr
    assert len(tshark(tmp_path / "small", "frame.number")) >= 1
    assert b"and ends early." in (tmp_path / "small").read_bytes()


def test_one_way_of_output_is_chosen(tables: Path) -> None:
    assert str(export(tables, "--pcapng", "-", "--count").exception).startswith("Use one of --conversation, --pcapng")


def test_a_large_produce_is_matched_with_its_response(tmp_path: Path) -> None:
    partitions = [{"Index": 0, "Records": Records(bytes(300_000))}]
    tree = {"ClientId": CLIENT_ID, "Acks": 1, "TopicData": [{"Name": "orders", "PartitionData": partitions}]}
    asked, answered = message_of("Produce", False, 8, tree), message_of("Produce", True, 8, {})
    connection = PacketMaker(*ends("[::1]:40000", "[::1]:9093"), 1, 1)
    file = tmp_path / "large.pcapng"
    with file.open("wb") as stream:
        output = CaptureFile(stream, 1 << 30)
        for message in (asked, answered, asked, answered):
            frame, size = copied(message), len(message.frame())
            sequence = connection.sequence(response=message.response)
            rebuilt = wire_frame(frame)
            for packet in connection.frame(1, sequence, rebuilt, size, output.may_fill, response=message.response):
                output.write(packet)
    responses = tshark(file, "kafka.api_key", "kafka.request_frame", only="kafka.request_frame")
    assert [key for key, _ in responses] == ["0", "0"]
    assert tshark(file, "frame.number", only="_ws.malformed") == []


def test_a_gigabyte_of_responses_is_a_small_file() -> None:
    connection, stream = PacketMaker(*ends("10.0.0.1:1", "10.0.0.2:9092"), 1, 1), BytesIO()
    output, size, shown_bytes = CaptureFile(stream, 1 << 30), 100 << 20, 0
    for _ in range(10):
        wire = WireFrame([b"head", Zeros(size - 4)])
        for packet in connection.frame(
            1, connection.sequence(response=True), wire, size, output.may_fill, response=True
        ):
            assert output.write(packet)
            shown_bytes += packet.size
    assert shown_bytes > 10 * size
    assert len(stream.getvalue()) < 5_000_000


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "10.0.0.1", "broker:9092", "10.0.0.1:70000", "10.0.0.1:-1", "[::1]:x", "[fe80::1%x]:1"),
        *("1.2.3.4: 9 ", "]]1.2.3.4[:1_0", "10.0.0.1:٩", "::1:9092", "[10.0.0.1:9092"),
    ],
)
def test_a_text_that_is_no_endpoint_is_none(text: str | None) -> None:
    assert Endpoint.of(text) is None


def test_nothing_found_leaves_no_file(tables: Path, tmp_path: Path) -> None:
    result = export(tables, "--flow", "absent", "--pcapng", str(tmp_path / "none"))
    assert "No frame matches" in str(result.exception)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("size", [-1, 0, 3, 1 << 40])
def test_a_forged_size_takes_no_memory(size: int) -> None:
    connection = PacketMaker(*ends("10.0.0.1:1", "10.0.0.2:9092"), 1, 1)
    frame = copied(message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "g", "MemberId": "m"}))
    wire = wire_frame(CopiedFrame(frame.first._replace(frame_bytes=size), frame.data, whole=True, copied_all=True))
    tracemalloc.start()
    try:
        packets = islice(connection.frame(1, 1, wire, size, lambda _zeros: True, response=False), 100)
        assert all(packet.size <= 1 << 16 for packet in packets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
