"""Record sets leave the kernel as counts, credentials not at all; the fields around them are decoded exactly.

Every record holds MARKER, and the capture refuses any sample of the ring with MARKER in it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_probe.protocol.facts import Status
from tests.builders.wire import (
    API_VERSIONS,
    CONTROL,
    FETCH,
    MARKER,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TRANSACTIONAL,
    Frame,
    Set,
    Topics,
    answer,
    batch,
    fetched,
    framed,
    header_only,
    produce,
    records_of,
    request,
    response,
    share_fetch,
    shared,
)
from tests.lab.capture import Capture
from tests.lab.conversation import (
    exchange,
    kafka,
    raw_token,
    receive_at_once,
    receive_pieces,
    send_pieces,
)

pytestmark = pytest.mark.root

GZIP = 1
EMPTY = Set(b"", 0)


@pytest.mark.parametrize("version", range(14))
def test_produce_with_many_topics_partitions_and_batches(capture: Capture, port: int, version: int) -> None:
    magic = 2 if version >= 3 else version // 2
    several = records_of(1, 20, 3, magic=magic)
    orders = {0: several, 7: records_of(5, magic=magic), 8: EMPTY, 9: None}
    with kafka(port) as talk:
        exchange(talk)
        talk.ask(produce(version, {"orders": orders, "nothing": {}, "payments": {1: several}}))
        talk.ask(request(METADATA, 12, 2))
    assert capture.saw(talk)


@pytest.mark.parametrize("version", range(18))
def test_fetch_with_many_topics_partitions_and_batches(capture: Capture, port: int, version: int) -> None:
    several = records_of(1, 20, 3, magic=2 if version >= 4 else version // 2)
    orders = {0: several, 3: EMPTY, 4: several}
    with kafka(port) as talk:
        talk.ask(request(FETCH, version, 1), request(METADATA, 12, 2))
        talk.answer(fetched(version, {"orders": orders, "nothing": {}, "payments": {1: several}}, aborted=3))
        talk.answer(response(METADATA, 12, 2))
    assert capture.saw(talk)


@pytest.mark.kernel
@pytest.mark.parametrize("version", range(3))
def test_share_fetch_with_many_topics_partitions_and_batches(capture: Capture, port: int, version: int) -> None:
    several = records_of(1, 20, 3)
    topics: Topics = {"orders": {0: several, 3: EMPTY, 4: several}, "nothing": {}, "payments": {1: several}}
    error = "a message that is longer than one step of the cursor copies, by far"
    with kafka(port) as talk:
        for correlation_id, acquired in enumerate((0, 1, 200)):
            talk.ask(share_fetch(version, correlation_id))
            talk.answer(shared(version, topics, correlation_id=correlation_id, acquired=acquired, error=error))
        talk.ask(request(METADATA, 12, 4))
    assert capture.saw(talk)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_message_set_hides_its_count(capture: Capture, port: int, magic: int) -> None:
    with kafka(port) as talk:
        talk.ask(produce(2, {"orders": {0: Set(batch(5, magic=magic, codec=GZIP), None)}}))
    assert capture.saw(talk)


def test_a_compressed_batch_says_its_count(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        talk.ask(produce(9, {"orders": {0: Set(batch(500, codec=GZIP), 500)}}))
    assert capture.saw(talk)


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL, CONTROL, TRANSACTIONAL | CONTROL])
@pytest.mark.parametrize("marked", [0, 1])
def test_batches_of_transactions_and_their_markers_are_reported(
    capture: Capture, port: int, attributes: int, marked: int
) -> None:
    batches = [batch(2, attributes=attributes if place == marked else 0) for place in range(2)]
    with kafka(port) as talk:
        talk.ask(request(FETCH, 12, 1))
        talk.answer(fetched(12, {"orders": {0: Set(b"".join(batches), 4)}}))
    assert capture.saw(talk)
    (records,) = capture.ends_of(talk)[0].frames[-1].facts.record_sets
    assert (records.transactional, records.control) == (attributes & TRANSACTIONAL > 0, attributes & CONTROL > 0)


def test_a_fetch_that_ends_inside_a_batch_counts_the_whole_ones(capture: Capture, port: int) -> None:
    whole, last = batch(3), batch(4)
    with kafka(port) as talk:
        for correlation_id, kept in enumerate(range(1, len(last), 4)):
            cut = Set(whole + last[:kept], 3)
            talk.ask(request(FETCH, 12, correlation_id))
            talk.answer(fetched(12, {"orders": {0: cut, 1: records_of(2)}}, correlation_id=correlation_id))
    assert capture.saw(talk)


PARTITIONS = {f"topic-{n}": {p: records_of(2) for p in range(32)} for n in range(32)}
CALL_BYTES = 1 << 15


@pytest.mark.kernel
def test_a_thousand_partitions_in_one_request_of_many_calls(capture: Capture, port: int) -> None:
    frame = produce(9, PARTITIONS)
    calls = [CALL_BYTES] * (len(frame) // CALL_BYTES)
    with kafka(port) as talk:
        talk.ask(frame, write=send_pieces(*calls), read=receive_pieces(*calls))
        talk.ask(request(METADATA, 12, 2))
    assert capture.saw(talk)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (request(FETCH, 12), fetched(12, PARTITIONS)),
        (share_fetch(2, 1), shared(2, PARTITIONS)),
    ],
    ids=["Fetch", "ShareFetch"],
)
def test_a_thousand_partitions_in_one_response(capture: Capture, port: int, asked: Frame, answered: Frame) -> None:
    with kafka(port) as talk:
        talk.widen()
        talk.ask(asked)
        talk.answer(answered, read=receive_at_once)
        talk.ask(request(METADATA, 12, 2))
    assert capture.saw(talk)


def test_more_partitions_than_one_call_can_show(capture: Capture, port: int) -> None:
    many = produce(9, {f"topic-{n}": {p: records_of(1) for p in range(1000)} for n in range(5)})
    with kafka(port) as talk:
        talk.widen()
        talk.ask(many, read=receive_pieces(*[CALL_BYTES] * (len(many) // CALL_BYTES)))
        talk.ask(request(METADATA, 12, 2))
    client, server = capture.ends_of(talk)
    shown, following = client.frames[2:]
    assert (shown.facts.status, shown.frame_bytes) == (Status.TRUNCATED, len(many))
    assert shown.values == many.seen.values[: len(shown.values)]
    assert following == talk.sent[-1]
    assert server.frames == talk.sent
    assert capture.lost() == {"frame_truncated": 1, "limit_reached": 1}


@pytest.mark.parametrize("version", [7, 9])
def test_what_stands_behind_the_record_sets_stays(capture: Capture, port: int, version: int) -> None:
    frame, rest = produce(version, {"orders": {0: records_of(1)}}), MARKER * 3
    wire = framed(frame.wire[4:] + rest)
    longer = Frame(wire, replace(frame.seen, frame_bytes=len(wire)))
    with kafka(port) as talk:
        talk.ask(request(METADATA, 12, 1))
        talk.ask(longer)
    assert capture.saw(talk)


def test_a_produce_that_wants_no_answer(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        for correlation_id in range(40):
            talk.ask(produce(9, {"orders": {0: records_of(1)}}, correlation_id=correlation_id, acks=0))
        talk.ask(request(METADATA, 12, 40))
        talk.answer(response(METADATA, 12, 40))
    assert capture.saw(talk)


@pytest.mark.kernel
def test_more_requests_in_flight_than_a_connection_remembers_itself(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        for correlation_id in range(100):
            talk.ask(request(METADATA, 12, correlation_id))
        for correlation_id in range(100):
            talk.answer(response(METADATA, 12, correlation_id))
        talk.ask(request(API_VERSIONS, 3, 100))
        talk.answer(response(API_VERSIONS, 3, 100))
    assert capture.saw(talk)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("handshake", "following"),
    [(1, 2), (1, 0), (0x7FFFFFF1, 0), (2147483647, 5)],
    ids=["counted on", "from zero", "java", "java, reauthenticated"],
)
def test_raw_sasl_tokens_stay_in_the_kernel(capture: Capture, port: int, handshake: int, following: int) -> None:
    with kafka(port) as talk:
        talk.ask(request(SASL_HANDSHAKE, 0, handshake))
        talk.answer(response(SASL_HANDSHAKE, 0, handshake))
        for token in (b"n,,n=alice,r=" + MARKER, b"\0alice\0" + MARKER, b"", b"\0\0\0\1\0\1\0\0\0\1" + MARKER):
            raw_token(talk, token)
        talk.ask(request(METADATA, 12, following))
        talk.answer(response(METADATA, 12, following))
    assert capture.saw(talk)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_sasl_authenticate_leaves_by_its_header(capture: Capture, port: int, version: int) -> None:
    token = b"\0alice\0" + MARKER
    with kafka(port) as talk:
        talk.ask(
            header_only(SASL_AUTHENTICATE, version, 1, bytes(3) + bytes([len(token)]) + token, flexible=version > 1)
        )
        talk.answer(answer(SASL_AUTHENTICATE, version, 1, bytes(8) + MARKER))
        talk.ask(request(METADATA, 12, 2))
    assert capture.saw(talk)
