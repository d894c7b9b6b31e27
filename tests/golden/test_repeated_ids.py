"""A client whose requests share one correlation id: answers are matched by their order, and no records leave.

Whichever requests the kernel did not follow, the answer to a Fetch is not taken for one of another request. The capture
refuses any sample with MARKER.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from kafka_probe.protocol.facts import Status
from tests.builders.messages import CLIENT_ID
from tests.builders.wire import (
    API_VERSIONS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_HANDSHAKE,
    Frame,
    Set,
    batch,
    fetched,
    framed,
    header_only,
    joined,
    produce,
    records_of,
    request,
    response,
    unmatched,
)
from tests.lab.capture import Capture
from tests.lab.conversation import (
    Conversation,
    conversation,
    exchange,
    kafka,
    raw_token,
    receive_all,
    receive_at_once,
    send_at_once,
    sendfile,
    transfer,
)

pytestmark = pytest.mark.root

ID = 1_000  # of all requests that shall be taken for one another
IN_FLIGHT = 32  # what a connection remembers itself
EVICTED = 1 << 16  # requests of others that surely evict those of one connection
FETCHED = fetched(4, {"orders": {0: records_of(3)}}, correlation_id=ID)


def in_order(talk: Conversation) -> None:
    """Send more requests than the connection itself remembers; the kernel follows all of them."""
    talk.ask(*IN_FLIGHT * [request(API_VERSIONS, 3, ID)])
    ask_twice(talk)
    talk.answer(*IN_FLIGHT * [response(API_VERSIONS, 3, ID)])


def ask_twice(talk: Conversation) -> None:
    talk.ask(request(FETCH, 4, ID))
    talk.ask(request(LIST_OFFSETS, 1, ID))


def test_answers_are_those_of_the_requests_in_their_order(capture: Capture, port: int) -> None:
    with kafka(port) as talk:
        in_order(talk)
        talk.answer(FETCHED, response(LIST_OFFSETS, 1, ID))
    assert capture.saw(talk)


def hopped_over(talk: Conversation) -> None:
    """Send the Fetch behind more frames than a call of the program has steps for."""
    many = [*5_000 * [produce(9, {"orders": {0: records_of(1)}}, acks=0)], request(FETCH, 4, ID)]
    talk.widen()
    transfer(talk.client, talk.server, joined(many), send_at_once, receive_at_once)
    talk.ask(request(LIST_OFFSETS, 1, ID))


def skipped_as_a_token(talk: Conversation) -> None:
    """Send the Fetch where it looks like a token of SASL."""
    talk.ask(request(SASL_HANDSHAKE, 0, 1))
    talk.answer(response(SASL_HANDSHAKE, 0, 1))
    raw_token(talk, b"\0alice\0secret")
    transfer(talk.client, talk.server, request(FETCH, 4, ID).wire)
    talk.ask(request(API_VERSIONS, 3, 2), request(LIST_OFFSETS, 1, ID))


def behind_an_unknown_version(talk: Conversation) -> None:
    """Send the Fetch behind a request of a version that no sample can contain."""
    transfer(talk.client, talk.server, header_only(API_VERSIONS, 300, ID, bytes(4)).wire)
    ask_twice(talk)
    talk.answer(unmatched(ID))


def behind_a_produce_that_is_cut(talk: Conversation) -> None:
    """Send a Produce before the Fetch from a file, so that the client's end cannot read its acks."""
    frame = produce(8, {"orders": {0: records_of(1)}}, correlation_id=ID)
    in_file = frame.wire.index(CLIENT_ID.encode()) + len(CLIENT_ID)
    transfer(talk.client, talk.server, frame.wire[:in_file])
    transfer(talk.client, talk.server, frame.wire[in_file:], sendfile)
    ask_twice(talk)
    talk.answer(unmatched(ID))


def behind_answers_in_doubt_with_ids_of_known_requests(talk: Conversation) -> None:
    """Let the kernel skip two requests; answer the first with the id of the request behind it."""
    transfer(talk.client, talk.server, header_only(API_VERSIONS, 300, 500, bytes(4)).wire)
    talk.ask(request(METADATA, 12, 500), request(SASL_HANDSHAKE, 0, 501))
    transfer(talk.client, talk.server, request(FETCH, 4, ID).wire)  # as a token
    talk.ask(request(API_VERSIONS, 3, 502), request(LIST_OFFSETS, 1, ID))
    talk.answer(unmatched(500), response(METADATA, 12, 500), response(SASL_HANDSHAKE, 0, 501))


def behind_a_produce_of_an_unknown_version(talk: Conversation) -> None:
    """Send a Produce of an unknown version: it expects no answer, which only its acks would show."""
    transfer(talk.client, talk.server, header_only(PRODUCE, 30, ID, bytes(8)).wire)
    talk.ask(request(METADATA, 12, ID))
    talk.answer(response(METADATA, 12, ID))
    talk.ask(request(FETCH, 4, ID))


def exchange_within_a_send(talk: Conversation, asked: Frame, answer: Frame) -> None:
    """Let the client receive the answer while the call that sent the request still runs."""
    talk.client.setblocking(True)
    filler = produce(8, {"orders": {0: Set(batch(1, value=bytes(8 << 20)), 1)}}, acks=0).wire
    sending = Thread(target=talk.client.sendall, args=(asked.wire + filler,))
    sending.start()
    receive_all(talk.server, len(asked.wire))
    transfer(talk.server, talk.client, answer.wire)
    receive_all(talk.server, len(filler))
    sending.join()


def sent_by_calls_that_still_run(talk: Conversation) -> None:
    """Let the client receive the answers before its hook sees the requests."""
    exchange_within_a_send(talk, request(LIST_OFFSETS, 1, ID), response(LIST_OFFSETS, 1, ID))
    exchange_within_a_send(talk, request(FETCH, 4, ID), FETCHED)
    talk.ask(request(FETCH, 4, ID))


def sent_by_a_call_that_still_runs_behind_raw_tokens(talk: Conversation) -> None:
    """Let the kernel take the answer for that of a token."""
    talk.ask(request(SASL_HANDSHAKE, 0, ID - 1))
    talk.answer(response(SASL_HANDSHAKE, 0, ID - 1))
    exchange_within_a_send(talk, request(LIST_OFFSETS, 1, ID), response(LIST_OFFSETS, 1, ID))
    talk.ask(request(FETCH, 4, ID))


WAYS: dict[str, Callable[[Conversation], None]] = {
    "hopped over": hopped_over,
    "skipped as a token": skipped_as_a_token,
    "behind an unknown version": behind_an_unknown_version,
    "behind a Produce that is cut": behind_a_produce_that_is_cut,
    "behind a Produce of an unknown version": behind_a_produce_of_an_unknown_version,
    "sent by calls that still run": sent_by_calls_that_still_run,
    "sent by a call that still runs behind raw tokens": sent_by_a_call_that_still_runs_behind_raw_tokens,
    "behind answers in doubt": behind_answers_in_doubt_with_ids_of_known_requests,
}


@pytest.mark.kernel
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_may_be_that_of_a_request_not_followed_is_of_none(capture: Capture, port: int, way: str) -> None:
    with kafka(port) as talk:
        WAYS[way](talk)
        talk.answer(FETCHED)
    for end in capture.both_ends_of(talk):
        answers = [frame.facts for frame in end.frames if frame.frame_bytes == len(FETCHED.wire)]
        assert answers
        for last in answers:
            assert (last.api_key, last.status) in ((FETCH, Status.COMPLETE), (255, Status.UNKNOWN_API))
    capture.begin()  # the losses of the ways differ


@pytest.mark.kernel
def test_a_request_that_is_skipped_during_a_search_stays_in_doubt(capture: Capture, port: int) -> None:
    """The kernel searches for its position in the answers, and knows that in the requests."""
    name = b"x" * 600  # longer than what is copied: the acks behind it are not read
    first = framed(struct.pack(">hhih", 0, 8, 1, len(name)) + name + struct.pack(">hhii", -1, 1, 1000, 0))
    with conversation(port) as talk:
        transfer(talk.client, talk.server, first)
        transfer(talk.server, talk.client, framed(struct.pack(">iii", 1, 0, 0)))
        for asked, answer in ((METADATA, 12), (SASL_HANDSHAKE, 0)):
            talk.ask(request(asked, answer, 2 if asked == METADATA else 3))
            talk.answer(response(asked, answer, 2 if asked == METADATA else 3))
        transfer(talk.client, talk.server, request(FETCH, 4, ID).wire)  # as a token
        talk.ask(request(API_VERSIONS, 3, 4), request(LIST_OFFSETS, 1, ID))
        talk.answer(FETCHED)
    for end in capture.both_ends_of(talk):
        answers = [frame.facts.api_key for frame in end.frames if frame.frame_bytes == len(FETCHED.wire)]
        assert answers == [255]
    capture.begin()  # the losses of the two ends differ


def test_answers_behind_those_in_doubt_are_distinguished_by_their_ids(capture: Capture, port: int) -> None:
    """Only one of the two skipped requests is answered, so the order of answers does not identify them."""
    with kafka(port) as talk:
        for unknown in range(2):
            transfer(talk.client, talk.server, header_only(API_VERSIONS, 300, ID + unknown, bytes(4)).wire)
        talk.answer(unmatched(ID))
        talk.sent.clear()
        exchange(talk, range(ID + 2, ID + 6))
    for end in capture.both_ends_of(talk):
        shown = [frame.facts.api_key for frame in end.frames[-8:]]
        assert shown == [METADATA, 255, *6 * [METADATA]]
        assert end.frames[-6:] == talk.sent[2:]
    assert capture.lost() == {"unknown_version": 4, "response_unmatched": 4, "request_unanswered": 2}


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """Run the test on one CPU. The kernel evicts the newest entries of a CPU for others of that CPU only."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    yield
    os.sched_setaffinity(0, cpus)


@pytest.mark.usefixtures("one_cpu")
def test_a_request_in_flight_that_was_evicted_is_answered_by_none(capture: Capture, port: int) -> None:
    with kafka(port) as talk, kafka(port) as other:
        talk.ask(*IN_FLIGHT * [request(API_VERSIONS, 3, ID)], request(FETCH, 4, ID))
        for _ in range(EVICTED // 64):
            other.ask(*64 * [request(API_VERSIONS, 0, ID)])
            assert capture.ends  # read what is in the buffer
        talk.ask(request(LIST_OFFSETS, 1, ID))
        talk.answer(*IN_FLIGHT * [response(API_VERSIONS, 3, ID)], FETCHED, response(LIST_OFFSETS, 1, ID))
    for end in capture.both_ends_of(talk):
        assert [(frame.facts.api_key, frame.facts.response) for frame in end.frames[-2:]] == [
            (255, True),
            (LIST_OFFSETS, True),
        ]
    assert capture.lost()["in_flight_forgotten"] == 2
    capture.begin()


@pytest.mark.kernel
def test_no_answer_is_taken_for_one_that_came_before_its_request_was_read(capture: Capture, port: int) -> None:
    """Brokers answer only requests that they have read, but other servers may answer earlier."""
    asked = [request(METADATA, 12, number) for number in range(1, 4)]
    answers = [response(METADATA, 12, number) for number in range(1, 4)]
    fetched_one = fetched(4, {"orders": {0: records_of(3)}}, correlation_id=1)
    with kafka(port) as talk:
        talk.client.sendall(joined(asked))
        transfer(talk.server, talk.client, joined(answers))
        assert talk.server.recv(1 << 16) == joined(asked)
        talk.ask(request(FETCH, 4, 1))
        talk.answer(fetched_one)
    for end in capture.both_ends_of(talk):
        assert (end.frames[-1].facts.api_key, end.frames[-1].facts.status) in (
            (FETCH, Status.COMPLETE),
            (255, Status.UNKNOWN_API),
        )
    capture.begin()  # what each end can see differs
