"""Frames planted in records, with correlation ids and client id in use: nothing of them leaves the kernel.

However the position in the stream is lost, wherever the calls are split. The capture refuses any sample with MARKER.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import product

import pytest

from kafka_probe.capture.compiler import HOP_RUNS, HOPS, RUNS
from tests.builders.trees import message_of
from tests.builders.wire import (
    API_VERSIONS,
    FETCH,
    MARKER,
    METADATA,
    Set,
    answer,
    batch,
    fetched,
    frame_of,
    produce,
    request,
    response,
)
from tests.lab.capture import Capture
from tests.lab.conversation import (
    Conversation,
    exchange,
    kafka,
    receive_at_once,
    receive_pieces,
    send_all,
    send_at_once,
    send_pieces,
    sendfile,
    splice_out,
    transfer,
)
from tests.lab.processes import free_port

pytestmark = pytest.mark.root

BEYOND_ALL_HOPS = range(1, HOP_RUNS * HOPS + 6 * RUNS)  # correlation ids of more frames than a call follows and skips
CARRIER = BEYOND_ALL_HOPS.stop  # that of the frame with the plants; those planted go on from it
PLANTED = range(CARRIER, CARRIER + 6)
TOPIC = MARKER.decode()


def planted(numbers: range, *, response: bool) -> list[bytes]:
    """Return frames with which the conversation might go on, with MARKER in each."""
    tree = {"Topics": [{"Name": TOPIC}]}
    frames = [frame_of(message_of("Metadata", response, 12, tree), number).wire for number in numbers]
    assert all(MARKER in frame for frame in frames)
    return frames


@dataclass(frozen=True, slots=True)
class Carrier:
    """A frame with plants in a record. start: where the first begins; lengths: of each, the last to the frame's end."""

    wire: bytes
    start: int
    lengths: list[int]


def carrier(numbers: range = PLANTED, *, by_server: bool) -> Carrier:
    """Return a Produce request or Fetch response of one record, whose value is frames and ends the message."""
    plants = planted(numbers, response=by_server)
    topics = {"orders": {0: Set(batch(1, magic=1, value=b"".join(plants)), 1)}}
    frame = fetched(2, topics, correlation_id=CARRIER) if by_server else produce(2, topics, correlation_id=CARRIER)
    start = frame.wire.index(plants[0])
    assert frame.wire.endswith(plants[-1])
    return Carrier(frame.wire, start, [len(plant) for plant in plants])


Lose = Callable[[Conversation, bytes, bool], None]
"""Moves the bytes up to the first plant, by the server or not, and loses the position at one end or both."""


def ends(talk: Conversation, by_server: bool) -> tuple[socket.socket, socket.socket]:
    return (talk.server, talk.client) if by_server else (talk.client, talk.server)


def by_a_malformed_length(talk: Conversation, head: bytes, by_server: bool) -> None:
    transfer(*ends(talk, by_server), b"\xff" * 20)
    transfer(*ends(talk, by_server), head)


def by_too_many_frames(talk: Conversation, head: bytes, by_server: bool) -> None:
    requests = b"".join(struct.pack(">ihhih", 10, API_VERSIONS, 0, number, -1) for number in BEYOND_ALL_HOPS)
    answers = [struct.pack(">ii", 4, number) for number in BEYOND_ALL_HOPS]
    talk.widen()
    many = b"".join(answers) if by_server else requests
    transfer(*ends(talk, by_server), many + head, send_at_once, receive_at_once)
    half = len(answers) // 2
    for some in () if by_server else (answers[:half], answers[half:]):  # within the hops
        transfer(talk.server, talk.client, b"".join(some), send_at_once, receive_at_once)


def by_unseen_bytes(talk: Conversation, head: bytes, by_server: bool) -> None:
    transfer(*ends(talk, by_server), head, send_all, splice_out)


def by_an_unreadable_buffer(talk: Conversation, head: bytes, by_server: bool) -> None:
    transfer(*ends(talk, by_server), head, sendfile)


WAYS: dict[str, Lose] = {
    "malformed length": by_a_malformed_length,
    "too many frames": by_too_many_frames,
    "unseen bytes": by_unseen_bytes,
    "unreadable buffer": by_an_unreadable_buffer,
}


def pieces(of: Carrier, aligned: bool) -> list[int]:
    """Return the sizes of the calls after the carrier's head: those of the plants, or others."""
    return of.lengths[:-1] if aligned else [7, 60, 33]


def move_plants(talk: Conversation, of: Carrier, by_server: bool, aligned: bool, answered: bool) -> None:
    """Move the rest of the carrier, then hold a conversation as usual.

    If the carrier is a request, it is answered if `answered` is true.
    """
    sizes = pieces(of, aligned)
    transfer(*ends(talk, by_server), of.wire[of.start :], send_pieces(*sizes), receive_pieces(*sizes))
    if answered and not by_server:
        transfer(talk.server, talk.client, answer(0, 2, CARRIER, bytes(8)).wire)
    talk.sent.clear()
    exchange(talk, range(CARRIER + 1, CARRIER + 8))


def assert_found(capture: Capture, talk: Conversation) -> None:
    """Assert that the conversation after the plants is found within its exchanges, and nothing else is reported."""
    seen = capture.ends_of(talk)
    assert len(seen) == 2
    for end in seen:
        after = [frame for frame in end.frames if frame.correlation_id > CARRIER + 3]
        assert after == talk.sent[-len(after) :]
        assert len(after) >= 6


@pytest.mark.kernel
@pytest.mark.parametrize("answered", [False, True], ids=["unanswered", "answered"])
@pytest.mark.parametrize("aligned", [False, True], ids=["split anywhere", "split at the frames"])
@pytest.mark.parametrize("by_server", [False, True], ids=["Produce", "Fetch"])
@pytest.mark.parametrize("way", WAYS)
def test_no_planted_frame_leaves(
    capture: Capture, port: int, way: str, by_server: bool, aligned: bool, answered: bool
) -> None:
    of = carrier(by_server=by_server)
    with kafka(port) as talk:
        if by_server and answered:
            talk.ask(request(FETCH, 4, CARRIER))
        WAYS[way](talk, of.wire[: of.start], by_server)
        move_plants(talk, of, by_server, aligned, answered)
    assert_found(capture, talk)
    capture.begin()  # which exchange is the first to be shown depends on how a backend sees the calls


@pytest.mark.kernel
@pytest.mark.parametrize("own_calls", [(2, 0.5, 0.5), (1, 0.5, 1.5), (0.1, 0.8, 1.1)], ids=str)
def test_no_planted_frame_leaves_while_earlier_requests_are_answered(
    capture: Capture, port: int, own_calls: tuple[float, float, float]
) -> None:
    """The plants have the ids of requests in flight. These are answered while a part of a plant is sent.

    own_calls: how much of the plants each call sends; the answers arrive before the last.
    """
    numbers = range(CARRIER, CARRIER + 60)
    of = carrier(numbers, by_server=False)
    rest, (length, *_) = of.wire[of.start :], of.lengths
    sizes = [int(length * plants) for plants in own_calls[:2]]
    sizes.append(round(sum(own_calls)) * length - sum(sizes))
    with kafka(port) as talk:
        talk.ask(*(request(METADATA, 12, number) for number in numbers))
        transfer(talk.server, talk.client, b"\xff" * 20)
        by_a_malformed_length(talk, of.wire[: of.start], by_server=False)
        answers = 0
        while rest:
            for size in sizes[:2]:
                transfer(talk.client, talk.server, rest[:size])
                rest = rest[size:]
            whole = len(numbers) - 1 - len(rest) // length
            for number in numbers[answers:whole]:
                talk.answer(response(METADATA, 12, number))
            answers = whole
            transfer(talk.client, talk.server, rest[: sizes[2]])
            rest = rest[sizes[2] :]
        transfer(talk.server, talk.client, answer(0, 2, CARRIER, bytes(8)).wire)
        exchange(talk, range(CARRIER + 70, CARRIER + 80))
    for end in capture.both_ends_of(talk):
        assert end.frames[-8:] == talk.sent[-8:]


Case = tuple[bool, ...]
CASES = list(product((False, True), repeat=3))


@pytest.fixture(scope="module")
def attached_in_mid_record() -> Iterator[tuple[Capture, dict[Case, Conversation]]]:
    port = free_port()
    with ExitStack() as stack:
        talks = {case: stack.enter_context(kafka(port)) for case in CASES}
        for (by_server, _, answered), talk in talks.items():
            of = carrier(by_server=by_server)
            if by_server and answered:
                talk.ask(request(FETCH, 4, CARRIER))
            transfer(*ends(talk, by_server), of.wire[: of.start])
        with closing(Capture(port)) as capture:
            yield capture, talks


@pytest.mark.parametrize("case", CASES)
def test_no_planted_frame_leaves_of_a_connection_found_in_mid_record(
    attached_in_mid_record: tuple[Capture, dict[Case, Conversation]], case: Case
) -> None:
    capture, talks = attached_in_mid_record
    capture.begin()
    by_server, aligned, answered = case
    move_plants(talks[case], carrier(by_server=by_server), by_server, aligned, answered)
    assert_found(capture, talks[case])
