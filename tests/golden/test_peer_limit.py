"""A ring that is not read: one peer cannot take the share of the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from itertools import count

import pytest

from kafka_probe.capture.sample import SLOT
from tests.builders.wire import METADATA, request, response
from tests.lab.capture import BUFFER, Capture
from tests.lab.conversation import Conversation, accepted_by, exchange, receive_all, vanish
from tests.lab.processes import free_port, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.kernel,
    pytest.mark.skipif(BUFFER == "perf", reason="perf buffers do not show how full they are"),
]

RING_BYTES = 64 << 10  # 256 samples, 16 of them a peer's share above half
FLOOD, AT_ONCE = 200, 20
HONEST = range(1, 6)
PORT = free_port()
ADDRESSES = (f"127.0.1.{number}" for number in count(1))  # what one has used is not forgotten


@pytest.fixture(scope="module")
def small() -> Iterator[Capture]:
    """Yield a capture of the server ends alone."""
    with closing(Capture(PORT, client_side=False, ring_bytes=RING_BYTES)) as capture:
        yield capture


@pytest.fixture(params=["127.0.0.1", "::"])
def server(small: Capture, request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Yield a listener for IPv4, by a socket of IPv4 or of IPv6; the ring is empty."""
    family = socket.AF_INET6 if request.param == "::" else socket.AF_INET
    any_address = "::" if request.param == "::" else "0.0.0.0"
    with socket.create_server((any_address, PORT), family=family, dualstack_ipv6=request.param == "::") as listener:
        small.begin()
        yield listener


def connection(server: socket.socket, source: str) -> AbstractContextManager[Conversation]:
    return accepted_by(server, "127.0.0.1", source=source)


def flood_with(talk: Conversation, correlation_ids: Sequence[int]) -> None:
    """Exchange Metadata, first once, then several requests at a time: single ones take long on emulated processors."""
    exchange(talk, correlation_ids[:1])
    for first in range(1, len(correlation_ids), AT_ONCE):
        some = correlation_ids[first : first + AT_ONCE]
        talk.ask(*(request(METADATA, 12, each) for each in some))
        talk.answer(*(response(METADATA, 12, each) for each in some))


def saw_all(capture: Capture, talk: Conversation) -> bool:
    return any(end.frames == talk.sent and end.closed and end.gone for end in capture.ends_of(talk))


@pytest.mark.parametrize("connections", [1, FLOOD])
def test_a_flood_from_another_address_leaves_space_in_the_ring(
    small: Capture, server: socket.socket, connections: int
) -> None:
    stranger, honest = next(ADDRESSES), next(ADDRESSES)
    for _ in range(connections):
        with connection(server, stranger) as flood:
            flood_with(flood, range(FLOOD // connections))
    with connection(server, honest) as talk:
        exchange(talk, HONEST)
    wait_until(lambda: saw_all(small, talk), "all of the honest client")
    assert small.lost().keys() - {"connection_unknown", "close_unknown", "frame_incomplete"} == {"peer_limited"}


def test_a_peer_above_half_may_write_a_sixteenth_of_the_ring_and_a_quarter_of_what_is_read(
    small: Capture, server: socket.socket
) -> None:
    whole, read = RING_BYTES // SLOT.itemsize, 32
    with connection(server, next(ADDRESSES)) as flood, connection(server, next(ADDRESSES)) as other:
        flood_with(flood, range(FLOOD))
        assert len(small.samples(read)) == read
        flood_with(other, range(FLOOD))  # fills the lower half again, and uses its own sixteenth
        flood_with(flood, range(FLOOD, 2 * FLOOD))
        assert abs(len(small.samples()) - (whole // 2 + whole // 16 + read // 4)) <= 1


def test_a_flood_from_the_same_address_is_counted(small: Capture, server: socket.socket) -> None:
    shared = next(ADDRESSES)
    with connection(server, shared) as talk, connection(server, shared) as flood:
        exchange(talk, HONEST)
        flood_with(flood, range(FLOOD))
        exchange(talk, HONEST)
        (end,) = small.ends_of(talk)
        assert end.frames == talk.sent[: 2 * len(HONEST)]
        assert small.lost()["peer_limited"] > 2 * len(HONEST)


def test_the_last_eighth_of_the_ring_is_for_opens_closes_and_resets(small: Capture, server: socket.socket) -> None:
    with ExitStack() as floods:
        for _ in range(8):  # together they fill seven eighths
            flood_with(floods.enter_context(connection(server, next(ADDRESSES))), range(FLOOD))
        with connection(server, next(ADDRESSES)) as talk:
            exchange(talk, HONEST)
        with connection(server, next(ADDRESSES)) as cut_off:
            vanish(cut_off.server)
            cut_off.client.send(request(METADATA, 12, 1).wire)
            with pytest.raises(ConnectionResetError):
                receive_all(cut_off.client, 1)
        wait_until(lambda: any(end.closed and end.gone for end in small.ends_of(talk)), "the open and the close")
    assert small.resets == [cut_off.names[::-1]]
    (end,) = small.ends_of(talk)
    assert end.frames == []
    assert small.lost()["ring_full"] >= 2 * len(HONEST)


def test_reading_frees_space_in_the_ring(small: Capture, server: socket.socket) -> None:
    with connection(server, next(ADDRESSES)) as talk:
        flood_with(talk, range(FLOOD))
        read = len(small.ends_of(talk)[0].frames)
        assert read < 2 * FLOOD
        exchange(talk, HONEST)
        assert small.ends_of(talk)[0].frames[read:] == talk.sent[2 * FLOOD :]


def test_a_ring_below_half_is_open_to_one_peer_alone(small: Capture, server: socket.socket) -> None:
    with connection(server, next(ADDRESSES)) as talk:
        exchange(talk, range(RING_BYTES // 256 // 2 // 4))
    wait_until(lambda: saw_all(small, talk), "all of it")
    assert not small.lost()
