"""A capture that starts in mid-stream and in mid-frame: nothing is mislabelled, and decoding recovers soon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest

from kafka_probe.capture.sample import Protocol
from tests.builders.wire import FIFTY_RECORDS, METADATA, produce, records_of, request, response
from tests.lab.capture import Capture
from tests.lab.conversation import (
    Conversation,
    conversation,
    exchange,
    kafka,
    receive_all,
    receive_pieces,
    send_pieces,
    transfer,
)
from tests.lab.processes import free_port

pytestmark = pytest.mark.root


NOBODY = 0
TLS_RECORD = bytes.fromhex("1703030040") + bytes(range(64))
# A client that receives the number of its socket, shuts it down, and closes it once the other end has.
HALF_CLOSES = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
end.setblocking(True)
end.shutdown(socket.SHUT_WR)
end.recv(1)
"""


READS = {"a whole record": receive_all, "its header by itself": receive_pieces(5)}


@dataclass(frozen=True, slots=True)
class Late:
    """A capture younger than connections: one between its frames, one inside of a frame, at both ends, and others.

    Of one the answer comes after the start of the capture, the request came before.
    """

    capture: Capture
    between: Conversation
    inside: Conversation
    asked: Conversation
    others: Mapping[str, Conversation]


@pytest.fixture(scope="module")
def late() -> Iterator[Late]:
    port = free_port()
    with (
        conversation(port) as between,
        conversation(port) as inside,
        conversation(port) as asked,
        ExitStack() as stack,
    ):
        between.ask(request(METADATA, 12, 1))
        inside.client.sendall(FIFTY_RECORDS.wire[:200])
        receive_all(inside.server, 100)
        between.sent.clear()
        asked.ask(request(METADATA, 12, 5))
        asked.sent.clear()
        others = {name: stack.enter_context(conversation(port)) for name in (*READS, "half closed", "ends")}
        transfer(others["ends"].client, others["ends"].server, request(METADATA, 12, 1).wire)
        transfer(others["ends"].server, others["ends"].client, response(METADATA, 12, 1).wire[:-2])
        with closing(Capture(port)) as capture:
            yield Late(capture, between, inside, asked, others)


def test_between_two_frames(late: Late) -> None:
    late.capture.begin()
    assert late.capture.soon_saw(late.between)
    client, server = late.capture.ends_of(late.between)
    assert (client.identity.server_side, server.identity.server_side) == (False, True)
    assert client.identity.flow_id == server.identity.flow_id
    assert client.identity.handshake_us is None  # its earlier payload was acknowledged
    assert set(late.capture.lost()) <= {"resync"}


def test_inside_a_frame(late: Late) -> None:
    late.capture.begin()
    late.inside.client.sendall(FIFTY_RECORDS.wire[200:])
    receive_all(late.inside.server, len(FIFTY_RECORDS) - 100)
    assert late.capture.soon_saw(late.inside)
    assert set(late.capture.lost()) <= {"resync", "frame_truncated"}


def test_correlation_ids_that_fall_cast_no_doubt_once_requests_and_answers_are_followed(late: Late) -> None:
    """Java numbers its requests when it makes them, and sends Metadata before the requests that wait for it."""
    late.capture.begin()
    transfer(late.asked.server, late.asked.client, response(METADATA, 12, 5).wire)
    exchange(late.asked, range(6, 12))
    late.asked.sent.clear()
    exchange(late.asked, (13, 12, 14, 15))
    for end in late.capture.both_ends_of(late.asked):
        assert end.frames[-8:] == late.asked.sent


@pytest.mark.parametrize("read", READS)
def test_tls_is_known_by_any_of_its_records(late: Late, read: str) -> None:
    late.capture.begin()
    talk = late.others[read]
    transfer(talk.server, talk.client, TLS_RECORD, read=READS[read])
    assert [end.opaque for end in late.capture.ends_of(talk)] == [Protocol.TLS, Protocol.TLS]
    talk.server.close()
    talk.client.close()
    client, server = (end.closed or {} for end in late.capture.wait_closed(talk))
    # No data was seen before the close_notify, so the silence before it has no known length.
    assert (client["closed_by"], server["closed_by"]) == ("peer", "local")
    assert (client["idle_us"], client["silence_us"]) == (None, None)
    assert late.capture.lost() == {}


def test_who_half_closes_is_the_owner_not_who_answers(late: Late) -> None:
    late.capture.begin()
    talk = late.others["half closed"]
    descriptor = talk.client.fileno()
    with subprocess.Popen([sys.executable, "-c", HALF_CLOSES, str(descriptor)], pass_fds=(descriptor,)) as client:
        talk.client.close()
        assert talk.server.recv(1) == b""
        talk.server.close()  # its FIN ends the other end, too, while this process runs
    ends = late.capture.wait_closed(talk)
    assert [end.pids - {NOBODY} for end in ends] == [{client.pid}, {os.getpid()}]
    assert [(end.closed or {})["closed_by"] for end in ends] == ["local", "peer"]


def test_the_last_bytes_of_a_frame_that_began_before_the_capture_are_no_header(late: Late) -> None:
    """Kafka sends what follows the records of a Fetch response in a call of its own: a byte or two of tagged fields."""
    late.capture.begin()
    talk = late.others["ends"]
    transfer(talk.server, talk.client, b"\0\0")
    talk.client.close()
    talk.server.close()
    late.capture.wait_closed(talk)
    assert late.capture.lost() == {}


def lose_the_position(talk: Conversation) -> None:
    transfer(talk.client, talk.server, b"\xff" * 20)
    transfer(talk.server, talk.client, b"\xff" * 20)
    talk.sent.clear()


@pytest.mark.parametrize("in_flight", [1, 5, 30, 100])
def test_a_client_that_does_not_wait_for_answers_is_found_again(capture: Capture, port: int, in_flight: int) -> None:
    with kafka(port) as talk:
        lose_the_position(talk)
        talk.ask(*(request(METADATA, 12, number) for number in range(10, 10 + in_flight)))
        for number in range(10, 110 + 2 * in_flight):
            talk.answer(response(METADATA, 12, number))
            talk.ask(request(METADATA, 12, number + in_flight))
    found = [frame for frame in talk.sent if frame.correlation_id >= 10 + 2 * in_flight]
    assert len(found) >= 200
    for end in capture.both_ends_of(talk):
        assert end.frames[2:] == found
    assert capture.lost().keys() <= {"malformed", "resync", "response_unmatched"}


LOSE: dict[str, Callable[[Conversation], None]] = {
    "both positions": lose_the_position,
    "that of the answers": lambda talk: transfer(talk.server, talk.client, b"\xff" * 20),
}


@pytest.mark.parametrize("in_flight", [1, pytest.param(5, marks=pytest.mark.kernel), 30, 100])
@pytest.mark.parametrize("lost", LOSE)
def test_a_client_is_found_that_has_always_sent_a_part_of_its_next_request(
    capture: Capture, port: int, lost: str, in_flight: int
) -> None:
    found = 10 + 2 * (in_flight + 1)
    with kafka(port) as talk:
        LOSE[lost](talk)
        for number in range(10, 2 * found):
            frame = request(METADATA, 12, number)
            transfer(talk.client, talk.server, frame.wire[:20])
            if number >= 10 + in_flight:
                talk.answer(response(METADATA, 12, number - in_flight))
            transfer(talk.client, talk.server, frame.wire[20:])
            talk.sent.append(frame.seen)
    client, _ = capture.ends_of(talk)
    after = [frame for frame in client.frames if frame.correlation_id >= found]
    assert after == [frame for frame in talk.sent if frame.correlation_id >= found]


def test_a_client_is_found_that_asks_for_few_answers(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        lose_the_position(talk)
        for start in range(1000, 5000, 1000):
            for number in range(start, start + 300):
                talk.ask(produce(9, {"orders": {0: records_of(1)}}, correlation_id=number, acks=0))
            exchange(talk, [start + 300])
    for end in capture.both_ends_of(talk):
        assert end.frames[2:] == [frame for frame in talk.sent if frame.correlation_id >= 3000]


def test_a_client_is_found_that_sends_the_size_of_each_frame_by_itself(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        lose_the_position(talk)
        for number in range(10, 20):
            talk.ask(request(METADATA, 12, number), write=send_pieces(4))
            talk.answer(response(METADATA, 12, number))
    client, _ = capture.ends_of(talk)
    assert client.frames[2:] == [frame for frame in talk.sent if frame.correlation_id >= 12]


def test_a_client_that_asks_for_no_answers_is_not_found_and_counted(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        before = talk.sent.copy()
        lose_the_position(talk)
        for number in range(10, 20):
            talk.ask(produce(9, {"orders": {0: records_of(1)}}, correlation_id=number, acks=0))
    ends = capture.ends_of(talk)
    assert [end.frames for end in ends] == [before, before]
    assert [end.closed and end.closed["in_flight"] for end in ends] == [0, 0]
    assert capture.lost() == {"malformed": 4, "resync": 20}
