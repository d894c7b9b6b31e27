"""With all ports watched, Kafka is detected by its bytes, with the client's side; nothing else is detected."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.builders.strangers import FIRST_WORDS
from tests.builders.trees import message_of
from tests.builders.wire import (
    FETCH,
    METADATA,
    Frame,
    Set,
    fetched,
    frame_of,
    produce,
    records_of,
    request,
    response,
)
from tests.lab.capture import Capture
from tests.lab.conversation import Conversation, conversation, exchange, transfer
from tests.lab.processes import free_port

pytestmark = pytest.mark.root

METADATA_1 = 3 << 16 | 1  # a correlation id that reads as API key and version


@pytest.fixture(scope="module")
def older() -> Iterator[Conversation]:
    """Yield a connection that was there before the capture."""
    with conversation(free_port()) as talk:
        exchange(talk)
        yield talk


@pytest.fixture(scope="module")
def reversible() -> Iterator[Conversation]:
    """Yield an older connection whose two directions both read as requests; one request is in flight."""
    with conversation(free_port()) as talk:
        transfer(talk.client, talk.server, produce_to(3, 4).wire)
        yield talk


def produce_to(version: int, topics: int) -> Frame:
    """Return a Produce request to this many topics."""
    names = {f"topic-{number}": {0: Set(b"", 0)} for number in range(topics)}
    return produce(version, names, correlation_id=METADATA_1)


def produced(version: int, topics: int) -> Frame:
    """Return the response, which also reads as a request.

    Its correlation id reads as API key and version, its count of topics as correlation id.
    """
    partitions = [{"Index": 0, "BaseOffset": 5}]
    responses = [{"Name": f"topic-{number}", "PartitionResponses": partitions} for number in range(topics)]
    return frame_of(message_of("Produce", True, version, {"Responses": responses}), METADATA_1)


@pytest.fixture(scope="module")
def attached_to_all(older: Conversation, reversible: Conversation) -> Iterator[Capture]:
    assert older.sent
    assert not reversible.sent
    with closing(Capture()) as capture:
        yield capture


@pytest.fixture
def any_port(attached_to_all: Capture) -> Capture:
    attached_to_all.begin()
    return attached_to_all


@pytest.mark.parametrize("backwards", [False, True])
def test_kafka_is_found_by_who_asks(any_port: Capture, backwards: bool) -> None:
    with conversation(free_port()) as talk:
        if backwards:  # the Kafka client is the end that accepted the connection
            talk.client, talk.server, talk.names = talk.server, talk.client, talk.names[::-1]
        exchange(talk)
    client, server = any_port.ends_of(talk)
    assert (client.identity.server_side, server.identity.server_side) == (False, True)
    assert (client.frames, server.frames) == (talk.sent, talk.sent)


def test_an_older_connection_whose_answer_is_seen_first_is_not_mistaken(any_port: Capture, older: Conversation) -> None:
    older.sent.clear()
    for correlation_id in (103, 104, 105):
        older.answer(response(METADATA, 12, correlation_id))
    exchange(older, range(106, 120))
    for end in any_port.both_ends_of(older):
        assert end.frames == older.sent[-len(end.frames) :]
        assert len(end.frames) > 20


def test_nothing_is_shown_where_both_directions_read_as_requests(any_port: Capture, reversible: Conversation) -> None:
    """The answer's records read as a request that may leave the kernel: the capture refuses MARKER in them."""
    transfer(reversible.server, reversible.client, produced(3, 4).wire)
    for version in (4, 5):
        transfer(reversible.client, reversible.server, produce_to(version, version + 1).wire)
        transfer(reversible.server, reversible.client, produced(version, version + 1).wire)
    transfer(reversible.client, reversible.server, request(FETCH, 4, METADATA_1).wire)
    answer = fetched(4, {"orders": {0: records_of(3)}}, correlation_id=METADATA_1)
    transfer(reversible.server, reversible.client, answer.wire)
    before = any_port.lost()["resync"]
    exchange(reversible, range(METADATA_1 + 100, METADATA_1 + 110))
    assert any_port.ends_of(reversible) == []
    assert any_port.lost()["resync"] > before


@pytest.mark.parametrize("protocol", FIRST_WORDS)
def test_other_protocols_are_not_found(any_port: Capture, protocol: str) -> None:
    words, _ = FIRST_WORDS[protocol]
    with conversation(free_port()) as talk:
        for _ in range(3):
            transfer(talk.client, talk.server, words)
            transfer(talk.server, talk.client, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    assert any_port.ends_of(talk) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_not_found(any_port: Capture, seed: int) -> None:
    noise = random.Random(seed)
    with conversation(free_port()) as talk:
        for _ in range(20):
            transfer(talk.client, talk.server, noise.randbytes(noise.randint(1, 3000)))
            transfer(talk.server, talk.client, noise.randbytes(noise.randint(1, 3000)))
    assert any_port.ends_of(talk) == []


def test_good_connections_are_found_beside_them(any_port: Capture) -> None:
    with conversation(free_port()) as talk:
        talk.ask(request(METADATA, 12, 1))
        talk.answer(response(METADATA, 12, 1))
    assert [end.frames for end in any_port.ends_of(talk)] == [talk.sent, talk.sent]


def test_what_comes_before_the_first_answer_is_counted(any_port: Capture) -> None:
    with conversation(free_port()) as talk:
        talk.ask(*(request(METADATA, 12, correlation_id) for correlation_id in (1, 2, 3)))
        talk.answer(*(response(METADATA, 12, correlation_id) for correlation_id in (1, 2, 3)))
    first, *_, one, two, three = talk.sent
    assert [end.frames for end in any_port.ends_of(talk)] == [[first, one, two, three]] * 2
    assert any_port.lost()["before_proof"] >= 4  # two at either end; others may talk here, too
