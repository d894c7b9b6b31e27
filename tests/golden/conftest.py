"""Compiles the programs once for all conversations on one port; a test sees only its own conversation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.builders.wire import FIFTY_RECORDS
from tests.lab.capture import Capture
from tests.lab.conversation import Conversation, conversation, receive_all
from tests.lab.processes import free_port


@pytest.fixture(scope="session")
def port() -> int:
    """Return the watched port, of both ends."""
    return int(os.environ.get("GOLDEN_PORT", 0)) or free_port()


@pytest.fixture(scope="session")
def older(port: int) -> Iterator[Conversation]:
    """Yield a connection that the capture finds inside a frame, at both ends."""
    with conversation(port) as talk:
        talk.client.sendall(FIFTY_RECORDS.wire[:200])
        receive_all(talk.server, 100)
        yield talk


@pytest.fixture(scope="session")
def attached(port: int, older: Conversation) -> Iterator[Capture]:
    assert older.sent == []
    with closing(Capture(port)) as capture:
        yield capture


@pytest.fixture
def capture(attached: Capture) -> Iterator[Capture]:
    """Yield the running capture, with nothing seen and nothing lost so far."""
    attached.begin()
    yield attached
    _ = attached.ends  # what no test has looked at may hold no MARKER either
