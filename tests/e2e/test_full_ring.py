"""More closes at once than the ring can contain: no closed connection is reported as open."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.lab.crowd import Crowd
from tests.lab.network import Namespace
from tests.lab.processes import wait_until
from tests.lab.product import Watched

pytestmark = pytest.mark.root

PORT = 9092
CONNECTIONS = 1000


def test_connections_whose_ends_did_not_fit_are_no_longer_open(tmp_path: Path) -> None:
    with closing(Namespace()) as inside, ExitStack() as until_they_end:
        crowd = until_they_end.enter_context(Crowd(inside, PORT, CONNECTIONS, tmp_path))
        watched = Watched(tmp_path, PORT, "--netns", inside.path, "--ring-size-bytes", "64KiB")

        def connections() -> int:
            return int(watched.wait_for(1, "the agent to tell", kind="agent")[-1]["connections"])

        with watched.agent:
            wait_until(lambda: connections() == 2 * CONNECTIONS, "both ends of all to be listed")
            crowd.speak()
            until_they_end.close()
            wait_until(lambda: connections() == 0, "all to be forgotten")
    report = watched.events(kind="agent")[-1]
    assert 0 < report["losses"]["close_unknown"] <= 2 * CONNECTIONS
    # Others were listed, and their first sample was lost.
    assert 0 < report["counters"]["connections"] < 2 * CONNECTIONS
