"""A ring without room: connections that could not be told when they began are told later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.golden import capture as golden
from tests.golden.capture import Capture
from tests.golden.conversation import conversation, exchange
from tests.lab.processes import free_port, wait_until

pytestmark = pytest.mark.root

FILLED = 30


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Capture, int]]:
    """A capture with a ring of 16 records, and its port."""
    monkeypatch.setattr(golden, "RING_BYTES", 4096)
    port = free_port()
    with closing(Capture(port)) as capture:
        yield capture, port


def test_with_their_next_frame(small: tuple[Capture, int]) -> None:
    capture, port = small
    with conversation(port) as first, conversation(port) as second:
        exchange(first, range(FILLED))
        exchange(second, [1])
        assert capture.ends_of(second) == []
        exchange(second, [2])
        ends = capture.ends_of(second)
        assert [end.identity.from_start for end in ends] == [True, True]
        assert [end.frames for end in ends] == [second.said[2:], second.said[2:]]
    assert capture.lost().keys() == {"ring_full"}


def test_with_their_end(small: tuple[Capture, int]) -> None:
    capture, port = small
    with conversation(port) as first:
        with conversation(port) as second:
            exchange(first, range(FILLED))
            exchange(second, [1])
            assert capture.ends_of(second) == []
        wait_until(lambda: [end.gone for end in capture.ends_of(second)] == [True, True], "both ends to close")
    assert all(end.closed for end in capture.ends_of(second))
