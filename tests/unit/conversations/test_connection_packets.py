"""Packets of a connection: which side ends it by its close, and what of a frame is captured."""

from __future__ import annotations

import pytest

from kafka_probe.connections.close_reason import _how
from kafka_probe.conversations.connection_packets import ConnectionPackets
from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.conversations.packets import Bit
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.copied import copied
from tests.builders.trees import CLIENT_ID, message_of

OWN, OTHER = "10.0.0.1:40000", "10.0.0.2:9092"
ENDS = {
    ("local", "fin"): [("own", Bit.FIN), ("other", Bit.FIN)],
    ("peer", "fin"): [("other", Bit.FIN), ("own", Bit.FIN)],
    ("local", "rst_sent"): [("own", Bit.RST)],
    ("peer", "rst_received"): [("other", Bit.RST)],
    ("local", "rst_received"): [("own", Bit.FIN), ("other", Bit.RST)],
    ("local", "timeout"): [],
    ("unknown", "unknown"): [],
}
FORGED: dict[tuple[str | None, str | None], list[tuple[str, Bit]]] = {
    ("unknown", "fin"): [],
    ("peer", "x"): [],
    (None, None): [],
}


def connection(side: str, local: str = OWN, peer: str = OTHER) -> ConnectionPackets | None:
    frame = copied(message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "g", "MemberId": "m"}))
    end = ConnectionEnd("agent", "1", f"{1000:08x}{2000:08x}", local, peer, CLIENT_ID, None, None)
    return ConnectionPackets.of(end, frame.first._replace(side=side, ts_us=1))


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize(("close", "expected"), [*ENDS.items(), *FORGED.items()])
def test_the_side_that_closed_sends_fin_and_the_side_that_reset_sends_rst(
    side: str, close: tuple[str, str], expected: list[tuple[str, Bit]]
) -> None:
    packets = connection(side)
    assert packets
    closed_by, how = close
    seen = []
    for packet in packets.closed(how, closed_by, 5, 7):
        source = ".".join(map(str, packet.captured[12:16]))
        seen.append(("own" if source == "10.0.0.1" else "other", Bit(packet.captured[33]) & ~Bit.ACK))
    assert seen == expected


def test_every_end_that_the_kernel_reports_is_known() -> None:
    states, errors = range(1, 13), (0, 32, 104, 110, 113, 101)
    assert {_how(state, error) for state in states for error in errors} == {*ENDS}


def test_an_address_of_version_4_in_version_6_is_version_4() -> None:
    packets = connection("client", "[::ffff:10.0.0.1]:40000")
    assert packets
    assert str(packets.own.address) == "10.0.0.1"


def test_addresses_of_two_versions_are_in_no_packet() -> None:
    assert connection("client", "[2001:db8::1]:40000") is None


def test_a_request_that_may_not_be_filled_is_captured_up_to_its_last_known_byte() -> None:
    frame = copied(message_of("Produce", False, 8, {"ClientId": CLIENT_ID, "Acks": 1, "TopicData": []}))
    long = frame.first._replace(frame_bytes=200_000, api_key=ApiKey.PRODUCE)
    packets = connection("client")
    assert packets
    frame = CopiedFrame(long, frame.data, frame.whole, frame.copied_all)
    short = [*packets.frame(frame, lambda _size: False)]
    assert sum(packet.size for packet in short) == 200_000 + 40 * len(short)
    assert sum(len(packet.captured) for packet in short) < 1000
    assert any("captured up to withheld bytes" in comment for comment in short[0].comments)


@pytest.mark.parametrize("size", [-(2**31), 0, 7, (1 << 30) + 4, 1 << 62])
def test_a_frame_of_an_impossible_size_has_no_packet(size: int) -> None:
    frame = copied(message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "g", "MemberId": "m"}))
    packets = connection("client")
    assert packets
    forged = CopiedFrame(frame.first._replace(frame_bytes=size), frame.data, whole=True, copied_all=True)
    assert [*packets.frame(forged, lambda _zeros: True)] == []
