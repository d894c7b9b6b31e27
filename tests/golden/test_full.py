"""Full kernel maps: samples that cannot be sent at once are sent later. What cannot be kept is reported in part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafka_probe.capture.compiler import CONNECTIONS_PER_UNFINISHED
from kafka_probe.protocol.facts import Status
from tests.builders.wire import METADATA, request, response
from tests.lab.capture import Capture
from tests.lab.conversation import (
    Conversation,
    conversation,
    exchange,
    kafka,
    receive_pieces,
    send_pieces,
    transfer,
)
from tests.lab.processes import free_port, wait_until

pytestmark = pytest.mark.root

FILLED = 16
REQUEST_HEAD = 14


@pytest.fixture
def small() -> Iterator[tuple[Capture, int]]:
    """Run a capture with a ring of 16 samples; yield it and its port."""
    port = free_port()
    with closing(Capture(port, ring_bytes=4096)) as capture:
        yield capture, port


def fill(talk: Conversation, port: int) -> None:
    """Send frames up to half the ring and a peer's share, then open and close other connections."""
    exchange(talk, range(FILLED))
    for _ in range(FILLED):
        with conversation(port):
            pass


def test_with_their_next_frame(small: tuple[Capture, int]) -> None:
    capture, port = small
    with conversation(port) as first, conversation(port) as second:
        fill(first, port)
        exchange(second, [1])
        assert capture.ends_of(second) == []
        exchange(second, [2])
        ends = capture.ends_of(second)
        assert [end.identity.from_start for end in ends] == [True, True]
        assert [end.frames for end in ends] == [second.sent[2:], second.sent[2:]]
    assert capture.lost().keys() & {"ring_full", "peer_limited"}


def test_with_their_end(small: tuple[Capture, int]) -> None:
    capture, port = small
    with conversation(port) as first:
        with conversation(port) as second:
            fill(first, port)
            exchange(second, [1])
            assert capture.ends_of(second) == []
        wait_until(lambda: [end.gone for end in capture.ends_of(second)] == [True, True], "both ends to close")
    assert all(end.closed for end in capture.ends_of(second))


def test_a_frame_that_finds_no_slot_between_two_calls_is_reported_without_its_rest() -> None:
    port = free_port()
    frame, at = request(METADATA, 12), REQUEST_HEAD + 4
    with (
        closing(Capture(port, max_connections=2 * CONNECTIONS_PER_UNFINISHED)) as capture,
        kafka(port) as waiting,
        kafka(port) as talk,
    ):
        transfer(waiting.client, waiting.server, frame.wire[:at])  # both its ends now take the space
        talk.ask(frame, write=send_pieces(at), read=receive_pieces(at))
        talk.answer(response(METADATA, 12))
        transfer(waiting.client, waiting.server, frame.wire[at:])
        assert [end.frames for end in capture.ends_of(waiting)] == [[*waiting.sent, frame.seen]] * 2
        for end in capture.both_ends_of(talk):
            *_, asked, answered = end.frames
            assert (asked.facts.api_key, asked.facts.status, asked.facts.stopped_at) == (
                METADATA,
                Status.TRUNCATED,
                "ClientId",
            )
            assert answered == talk.sent[-1]
        lost = capture.lost()
        lost.pop("before_proof", None)  # the free one of two slots for first requests may be of another processor
        assert lost == {"limit_reached": 2, "frame_truncated": 2}
