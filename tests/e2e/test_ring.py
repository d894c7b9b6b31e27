"""The ring: a client at full speed loses nothing if there is space; what a small ring loses is counted."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.builders.wire import METADATA, request, response
from tests.lab.conversation import conversation, receive_all
from tests.lab.crowd import Crowd
from tests.lab.network import Namespace
from tests.lab.processes import wait_until
from tests.lab.product import Watched

pytestmark = pytest.mark.root

PORT = 9092
SIDES = ("client", "server")
CONNECTIONS = 1000
EXCHANGES = 50_000
# Four samples per exchange, of 256 bytes with the ring's header, are less than half of it: no peer is limited then.
LARGE = 128 << 20
assert EXCHANGES * 4 * 256 < LARGE / 2


def test_one_client_at_full_speed_loses_nothing_of_what_the_ring_has_space_for(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port, "--ring-size-bytes", str(LARGE))
    asked, answer = request(METADATA, 12).wire, response(METADATA, 12).wire

    def seen() -> Counter[str]:
        flows = watched.events(kind="flow")
        return Counter({side: sum(flow["responses"] for flow in flows if flow["side"] == side) for side in SIDES})

    with watched.agent, conversation(port) as talk:
        for _ in range(EXCHANGES):
            talk.client.sendall(asked)
            receive_all(talk.server, len(asked))
            talk.server.sendall(answer)
            receive_all(talk.client, len(answer))
        wait_until(lambda: seen() == dict.fromkeys(SIDES, EXCHANGES), "all exchanges to be reported")
    losses = watched.events(kind="agent")[-1]["losses"]
    assert {reason: count for reason, count in losses.items() if count} == {}


def test_connections_whose_ends_did_not_fit_are_no_longer_open(tmp_path: Path) -> None:
    with closing(Namespace()) as inside, ExitStack() as until_they_end:
        crowd = until_they_end.enter_context(Crowd(inside, PORT, CONNECTIONS, tmp_path))
        watched = Watched(tmp_path, PORT, "--netns", inside.path, "--ring-size-bytes", "64KiB")

        def connections() -> int:
            return int(watched.wait_for(1, "a report of the agent", kind="agent")[-1]["connections"])

        with watched.agent:
            wait_until(lambda: connections() == 2 * CONNECTIONS, "both ends of all to be listed")
            crowd.speak()
            until_they_end.close()
            wait_until(lambda: connections() == 0, "all to be forgotten")
    report = watched.events(kind="agent")[-1]
    assert 0 < report["losses"]["close_unknown"] <= 2 * CONNECTIONS
    # Others were listed, and their first sample was lost.
    assert 0 < report["counters"]["connections"] < 2 * CONNECTIONS
