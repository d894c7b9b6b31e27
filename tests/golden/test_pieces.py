"""Both ends report the same frames, exactly as encoded, however a program splits its reads and writes."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

import pytest

from kafka_probe.capture.sample import SAMPLE
from kafka_probe.protocol.facts import Facts, Status
from tests.builders import wire
from tests.builders.messages import CASES
from tests.builders.trees import message_of
from tests.builders.wire import (
    API_VERSIONS,
    METADATA,
    SASL_HANDSHAKE,
    Frame,
    Seen,
    answer,
    fetched,
    frame_of,
    header_only,
    joined,
    produce,
    records_of,
    request,
    response,
    some_records,
    unmatched,
)
from tests.lab.capture import RING_BYTES, Capture
from tests.lab.conversation import (
    FRAMES_PER_CALL,
    Read,
    conversation,
    exchange,
    kafka,
    receive_all,
    receive_at_once,
    receive_pieces,
    send_at_once,
    send_pieces,
    transfer,
)

pytestmark = pytest.mark.root

RAW_TOKENS = (SASL_HANDSHAKE, 0)  # opens another kind of conversation: test_records.py
HOPPED = 1 << 16  # so many more are found by their lengths
ORDERS = {"orders": {0: records_of(3)}}


def frame_like(facts: Facts, correlation_id: int) -> Frame:
    """Return a frame of the same API and version: one of the decoder's tests, or one with real record sets."""
    key, version = facts.api_key, facts.api_version
    topics = {"orders": {0: some_records(version), 1: None}}
    match key, facts.response:
        case wire.PRODUCE, False:
            return produce(version, topics, correlation_id=correlation_id)
        case wire.FETCH, True:
            return fetched(version, topics, correlation_id=correlation_id)
        case _, True:
            return response(key, version, correlation_id)
    return request(key, version, correlation_id)


def size_then_body(sock: socket.socket, size: int) -> None:
    """Read the size, then the body, as Kafka's Java code does."""
    while size:
        body = int.from_bytes(sock.recv(4), "big")
        receive_all(sock, body)
        size -= 4 + body


def byte_by_byte(sock: socket.socket, size: int) -> None:
    for _ in range(size):
        receive_all(sock, 1)


@pytest.mark.parametrize("read", [receive_all, size_then_body, byte_by_byte])
def test_every_version_of_every_decoded_api(capture: Capture, port: int, read: Read) -> None:
    facts = [case.facts for case in CASES if (case.facts.api_key, case.facts.api_version) != RAW_TOKENS]
    answers = {(answer.api_key, answer.api_version): answer for answer in facts if answer.response}
    with conversation(port) as talk:
        for correlation_id, asked in enumerate(asked for asked in facts if not asked.response):
            talk.ask(frame_like(asked, correlation_id), read=read)
            talk.answer(frame_like(answers[asked.api_key, asked.api_version], correlation_id), read=read)
    assert len(talk.sent) > 200
    assert capture.saw(talk)


@pytest.mark.kernel
def test_headers_split_at_each_of_their_bytes(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        for at in range(1, 17):
            talk.ask(request(METADATA, 12, at), write=send_pieces(at), read=receive_pieces(at))
            talk.ask(request(API_VERSIONS, 3, at + 100), read=receive_pieces(at))
            talk.answer(response(METADATA, 12, at), read=receive_pieces(at))
            talk.answer(response(API_VERSIONS, 3, at + 100), write=send_pieces(at))
    assert capture.saw(talk)


def test_a_record_set_split_at_each_of_its_bytes(capture: Capture, port: int) -> None:
    frame = produce(9, {"orders": {0: some_records(9), 1: some_records(9)}})
    with kafka(port) as talk:
        for at in range(16, len(frame), 5):
            talk.ask(frame, write=send_pieces(at), read=receive_pieces(at, 3))
    assert capture.saw(talk)


def test_a_broker_of_any_number_says_that_it_shuts_down(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        for correlation_id, broker in enumerate((3, 1 << 17, 1 << 20)):
            asked, answered = (
                frame_of(message_of("ControlledShutdown", response, 0, {"BrokerId": broker}), correlation_id)
                for response in (False, True)
            )
            talk.ask(asked, read=byte_by_byte)
            talk.answer(answered)
    assert capture.saw(talk)


@pytest.mark.parametrize(
    ("api_key", "version", "status"), [(120, 0, Status.UNKNOWN_API), (METADATA, 99, Status.UNKNOWN_VERSION)]
)
def test_a_request_newer_than_we_know_is_counted_by_its_header(
    capture: Capture, port: int, api_key: int, version: int, status: Status
) -> None:
    body = bytes(range(40))
    newer = header_only(api_key, version, 3, body)
    facts = newer.seen.facts._replace(status=status)
    with conversation(port) as talk:
        exchange(talk)
        talk.ask(Frame(newer.wire, replace(newer.seen, facts=facts)))
        talk.answer(Frame(answer(api_key, version, 3, body).wire, Seen(Facts(True, api_key, version, status), 3, 48)))
        exchange(talk, [4])
    ends = capture.ends_of(talk)
    assert [end.frames for end in ends] == [talk.sent] * 2
    assert capture.lost() == {"unknown_version": 2}


@pytest.mark.parametrize(("api_key", "version"), [(255, 0), (0x7FFF, 1), (METADATA, 256), (METADATA, 0x7FFF)])
def test_a_request_whose_api_no_record_can_name_is_skipped_by_its_length(
    capture: Capture, port: int, api_key: int, version: int
) -> None:
    body = joined([request(METADATA, 12, 4), request(METADATA, 12, 5)])
    with conversation(port) as talk:
        exchange(talk)
        transfer(talk.client, talk.server, header_only(api_key, version, 3, body).wire, read=receive_pieces(40, 30))
        talk.answer(unmatched(3))
        exchange(talk, [6, 7])
    assert [end.frames for end in capture.ends_of(talk)] == [talk.sent] * 2
    assert capture.lost() == {"unknown_version": 2, "response_unmatched": 2}


def test_many_frames_in_one_call(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        talk.ask(*(request(API_VERSIONS, 3, n) for n in range(FRAMES_PER_CALL)))
        for first in range(0, FRAMES_PER_CALL, 100):
            talk.answer(*(response(API_VERSIONS, 3, n) for n in range(first, min(first + 100, FRAMES_PER_CALL))))
    assert capture.saw(talk)


@pytest.mark.kernel
def test_the_reader_is_woken_before_its_buffer_is_full(capture: Capture, port: int) -> None:
    quarter = RING_BYTES // 4 // SAMPLE.itemsize
    with conversation(port) as talk:
        # Ten records each: a request of one and a response of four, at both ends.
        for first in range(0, quarter // 10 + 100, 100):
            talk.ask(*(request(API_VERSIONS, 3, n) for n in range(first, first + 100)))
            talk.answer(*(response(API_VERSIONS, 3, n) for n in range(first, first + 100)))
        assert capture.fills()
    assert capture.lost() == {}
    capture.begin()  # nobody looks at each of the frames


@pytest.mark.kernel
def test_more_than_a_thousand_partitions_in_one_call(capture: Capture, port: int) -> None:
    records = some_records(9)
    with kafka(port) as talk:
        talk.ask(
            produce(9, {"orders": dict.fromkeys(range(600), records), "clicks": dict.fromkeys(range(500), records)})
        )
        talk.ask(request(METADATA, 12, 2))
    assert capture.saw(talk)


@pytest.mark.kernel
@pytest.mark.parametrize("by_server", [False, True], ids=["requests", "answers"])
def test_frames_beyond_the_steps_of_a_call_are_hopped_over_by_their_lengths(
    capture: Capture, port: int, by_server: bool
) -> None:
    ids = range(10, 10 + HOPPED)
    tiny = [struct.pack(">ii", 4, n) if by_server else struct.pack(">ihhih", 10, API_VERSIONS, 0, n, -1) for n in ids]
    last = (fetched if by_server else produce)(9, ORDERS, correlation_id=ids.stop)
    with conversation(port) as talk:
        talk.widen()
        exchange(talk)
        sender, receiver = (talk.server, talk.client)[:: 1 if by_server else -1]
        transfer(sender, receiver, b"".join(tiny) + last.wire[:100], send_at_once, receive_at_once)
        transfer(sender, receiver, last.wire[100:])
        answers = [] if by_server else [unmatched(n) for n in (*ids, ids.stop)]
        transfer(talk.server, talk.client, joined(answers), send_at_once, receive_at_once)
        assert capture.ends_of(talk)  # empties the ring: many calls on a slow machine have many samples
        talk.sent.clear()
        exchange(talk, range(ids.stop + 1, ids.stop + 4))
    hopped = 0
    for end in capture.both_ends_of(talk):
        assert end.frames[-6:] == talk.sent, capture.lost()
        shown = [frame.facts.status for frame in end.frames[4:-6]]
        hopped += HOPPED + 1 + len(answers) - len(shown) + shown.count(Status.TRUNCATED)
    assert capture.lost()["limit_reached"] == hopped
    capture.begin()  # how many are shown depends on how a backend sees a call


@pytest.mark.kernel
def test_a_call_that_ends_inside_the_next_header(capture: Capture, port: int) -> None:
    first, second = request(METADATA, 12, 1), request(API_VERSIONS, 3, 2)
    with conversation(port) as talk:
        for extra in range(1, 13):
            talk.ask(first, second, write=send_pieces(len(first) + extra), read=receive_pieces(len(first) + extra))
    assert capture.saw(talk)
