"""Kafka is classified as Kafka, and nothing else is. `make false-positives` tries more conversations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders.wire import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    Frame,
    fetched,
    joined,
    produce,
    records_of,
    request,
    response,
)
from tests.lab.classifier import OTHERS, Classifier, Direction, classifier

CONVERSATIONS = 30_000  # of each protocol and kind of port
WHOLE = 1 << 20
RECORDS = {"orders": {0: records_of(3)}}


@pytest.fixture(scope="module", params=[False, True], ids=["named port", "any port"])
def tried(request: pytest.FixtureRequest) -> Iterator[Classifier]:
    with classifier(any_port=request.param) as found:
        yield found


@pytest.mark.parametrize("protocol", OTHERS)
def test_another_protocol_is_not_taken_for_kafka(tried: Classifier, protocol: str) -> None:
    assert tried.taken_for_kafka(protocol, 7, CONVERSATIONS) == 0


def test_kafka_is_found_among_the_same_conversations(tried: Classifier) -> None:
    assert tried.taken_for_kafka("kafka", 7, CONVERSATIONS, late_one_in=0) == CONVERSATIONS


def tell(tried: Classifier, server_side: bool, frames: list[tuple[Frame, Frame]], piece: int = WHOLE) -> list[bool]:
    """Move the exchanges over a new connection; return after each frame whether it is taken for Kafka."""
    tried.connect(server_side=server_side)
    taken = []
    for asked, answered in frames:
        for frame, by_client in ((asked, True), (answered, False)):
            tried.move(Direction.RECEIVE if by_client == server_side else Direction.SEND, frame.wire, piece)
            taken.append(tried.is_kafka)
    return taken


EXCHANGES = {
    "ApiVersions": (request(API_VERSIONS, 3), response(API_VERSIONS, 3)),
    "Metadata": (request(METADATA, 12), response(METADATA, 12)),
    "Produce": (produce(9, RECORDS), response(PRODUCE, 9)),
    "Fetch": (request(FETCH, 12), fetched(12, RECORDS)),
}


@pytest.mark.parametrize("server_side", [False, True])
@pytest.mark.parametrize("piece", [1, 4, 5, 100, WHOLE])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_request_and_its_answer_are_kafka(tried: Classifier, exchange: str, piece: int, server_side: bool) -> None:
    assert tell(tried, server_side, [EXCHANGES[exchange]], piece) == [False, True]


@pytest.mark.parametrize("server_side", [False, True])
def test_an_answer_to_something_else_proves_nothing(tried: Classifier, server_side: bool) -> None:
    assert not any(tell(tried, server_side, [(request(METADATA, 12, 1), response(METADATA, 12, 2))]))


@pytest.mark.parametrize("server_side", [False, True])
def test_two_consistent_requests_are_kafka_on_its_port(tried: Classifier, server_side: bool) -> None:
    tried.connect(server_side=server_side)
    asks = Direction.RECEIVE if server_side else Direction.SEND
    tried.move(asks, joined([request(METADATA, 12, 1), request(API_VERSIONS, 3, 2)]), WHOLE)
    assert tried.is_kafka == (not tried.any_port)


@pytest.mark.parametrize("server_side", [False, True])
def test_two_requests_that_do_not_belong_together_prove_nothing(tried: Classifier, server_side: bool) -> None:
    tried.connect(server_side=server_side)
    asks = Direction.RECEIVE if server_side else Direction.SEND
    tried.move(asks, joined([request(METADATA, 12, 5), request(API_VERSIONS, 3, 5)]), WHOLE)
    assert not tried.is_kafka


@pytest.mark.parametrize("server_side", [False, True])
def test_an_answer_that_comes_before_its_request_is_whole_proves_nothing(tried: Classifier, server_side: bool) -> None:
    asked = request(METADATA, 12)
    cut = Frame(asked.wire[:-1], asked.seen)
    assert tell(tried, server_side, [(cut, response(METADATA, 12))]) == [False, False]


@pytest.mark.parametrize("server_side", [False, True])
def test_kafka_is_found_on_a_connection_older_than_the_capture(tried: Classifier, server_side: bool) -> None:
    tried.connect(server_side=server_side, seen=1000)
    asks, answers = (Direction.RECEIVE, Direction.SEND)[:: 1 if server_side else -1]
    for correlation_id in range(100, 103):
        tried.move(asks, request(METADATA, 12, correlation_id).wire, WHOLE)
        tried.move(answers, response(METADATA, 12, correlation_id).wire, WHOLE)
    assert tried.is_kafka
