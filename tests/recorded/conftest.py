"""Replays the recordings over real sockets under the real capture, once for all tests."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.builders.recordings import names
from tests.lab.capture import Capture
from tests.lab.processes import free_port
from tests.lab.replay import Held, Replay, replay


@pytest.fixture(scope="session")
def replays() -> dict[str, Replay]:
    port = free_port()
    with closing(Capture(port)) as capture:
        return {name: replay(capture, port, name) for name in names()}


@pytest.fixture(scope="session")
def everything(replays: dict[str, Replay]) -> dict[str, list[Held]]:
    """Return all conversations, by name."""
    return {name: replay.held for name, replay in replays.items()}


@pytest.fixture(params=names())
def conversation(request: pytest.FixtureRequest, everything: dict[str, list[Held]]) -> list[Held]:
    return everything[request.param]
