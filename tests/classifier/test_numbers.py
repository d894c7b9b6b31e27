"""Numbers of requests wrap around after 2^32: no answer is matched to a request of 2^31 or more numbers ago."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_probe.capture.sample import Flag, SampleKind
from tests.builders.wire import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    SASL_HANDSHAKE,
    Frame,
    fetched,
    framed,
    produce,
    records_of,
    request,
    response,
)
from tests.lab.classifier import Classifier, Direction, classifier

WHOLE = 1 << 20
QUARTER = 1 << 30  # of all numbers
ID = 1_000
FETCHED = fetched(4, {"orders": {0: records_of(3)}}, correlation_id=ID)
TOKEN, ANSWER = framed(b"\xff" * 20), framed(b"\xff" * 8)


@pytest.fixture
def broker() -> Iterator[Classifier]:
    with classifier(any_port=False) as found:
        found.connect(server_side=True)
        yield found


def asked(broker: Classifier, data: bytes) -> None:
    broker.move(Direction.RECEIVE, data, WHOLE)


def answered(broker: Classifier, data: bytes) -> None:
    broker.move(Direction.SEND, data, WHOLE)


def apis_of(broker: Classifier, frame: Frame) -> set[int]:
    """Return the APIs to which the samples attribute answers of this frame's size."""
    return {
        int(sample["api_key"])
        for sample in broker.samples()
        if sample["kind"] == SampleKind.FRAME
        and sample["flags"] & Flag.RESPONSE
        and sample["frame_bytes"] == len(frame.wire)
    }


def test_requests_in_flight_beyond_those_that_a_connection_keeps(broker: Classifier) -> None:
    asked(broker, request(METADATA, 12, ID).wire)
    answered(broker, response(METADATA, 12, ID).wire)
    for _ in range(33):  # 32 are kept with the connection
        asked(broker, request(METADATA, 12, ID).wire)
    for _ in range(2):
        asked(broker, request(METADATA, 12, ID).wire)
        answered(broker, response(METADATA, 12, ID).wire)
        broker.pass_numbers(QUARTER, matched=True)
    for _ in range(34):
        asked(broker, request(FETCH, 4, ID).wire)
    for _ in range(33):
        answered(broker, response(METADATA, 12, ID).wire)
    for _ in range(34):
        answered(broker, FETCHED.wire)
    assert apis_of(broker, FETCHED) in ({FETCH}, {255}, {FETCH, 255})


def test_requests_behind_raw_tokens(broker: Classifier) -> None:
    asked(broker, request(SASL_HANDSHAKE, 0, 1).wire)
    answered(broker, response(SASL_HANDSHAKE, 0, 1).wire)
    asked(broker, TOKEN)  # one is always in flight
    for numbers in (*3 * [QUARTER], QUARTER - 20):
        broker.pass_numbers(numbers, matched=False)
        asked(broker, TOKEN)
        answered(broker, ANSWER)
    asked(broker, produce(8, {"orders": {0: records_of(1)}}, correlation_id=ID, acks=0).wire)  # as a token
    asked(broker, request(LIST_OFFSETS, 1, 2).wire)
    answered(broker, ANSWER)
    while broker.next_number() != 2:
        asked(broker, request(LIST_OFFSETS, 1, ID).wire)
        answered(broker, response(LIST_OFFSETS, 1, ID).wire)
    asked(broker, request(FETCH, 4, ID).wire)
    answered(broker, response(LIST_OFFSETS, 1, ID).wire)
    answered(broker, FETCHED.wire)
    assert apis_of(broker, FETCHED) in ({FETCH}, {255}, {FETCH, 255})
