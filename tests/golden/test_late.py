"""A capture that finds connections in mid-stream and in mid-frame: nothing mislabelled, and soon all right again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.golden.capture import Capture
from tests.golden.conversation import Conversation, conversation, exchange, receive_all
from tests.golden.wire import METADATA, produce, records_of, request
from tests.lab.processes import free_port

pytestmark = pytest.mark.root

FRAME = produce(9, {"orders": {0: records_of(50)}})


@dataclass(frozen=True, slots=True)
class Late:
    """A capture younger than two connections: one between its frames, one inside of a frame, at both ends."""

    capture: Capture
    between: Conversation
    inside: Conversation


@pytest.fixture(scope="module")
def late() -> Iterator[Late]:
    port = free_port()
    with conversation(port) as between, conversation(port) as inside:
        between.ask(request(METADATA, 12, 1))
        inside.client.sendall(FRAME.wire[:200])
        receive_all(inside.server, 100)
        between.said.clear()
        with closing(Capture(port)) as capture:
            yield Late(capture, between, inside)


def assert_soon_right(capture: Capture, talk: Conversation) -> None:
    exchange(talk, range(10, 20))
    for end in capture.ends_of(talk):
        assert not end.identity.from_start
        sure = [seen for seen in end.frames if not seen.unsure]
        assert sure == talk.said[-len(sure) :]
        assert len(sure) >= len(talk.said) - 2
        unsure = [seen.correlation_id for seen in end.frames if seen.unsure]
        assert unsure == [seen.correlation_id for seen in talk.said[: len(unsure)]]


def test_between_two_frames(late: Late) -> None:
    late.capture.begin()
    assert_soon_right(late.capture, late.between)
    client, server = late.capture.ends_of(late.between)
    assert (client.identity.accepting, server.identity.accepting) == (False, True)
    assert client.identity.flow_id == server.identity.flow_id
    assert set(late.capture.lost()) <= {"frame_truncated"}


def test_inside_a_frame(late: Late) -> None:
    late.capture.begin()
    late.inside.client.sendall(FRAME.wire[200:])
    receive_all(late.inside.server, len(FRAME) - 100)
    assert_soon_right(late.capture, late.inside)
    assert set(late.capture.lost()) <= {"resync", "frame_truncated"}
