"""A peer is an IPv6 /64, or a process at a client's end. With perf buffers each peer has a fixed rate."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.builders.wire import METADATA, joined, request, response
from tests.lab.capture import Capture
from tests.lab.conversation import TIMEOUT_S, accepted_by, exchange, receive_all
from tests.lab.network import Namespace
from tests.lab.processes import free_port, wait_until

pytestmark = [
    pytest.mark.root,
]

RING_BYTES = 64 << 10  # 256 samples, 16 of them a peer's share above half
FLOOD = range(200)
HONEST = range(1, 6)
BURST = 10_000  # frames that a peer may send at once: 20,000 samples, of which a frame takes one or two
SERVER, STRANGER, NEIGHBOUR, OTHER = "fd00::9:0:0:0:1", "fd00::1:0:0:0:1", "fd00::1:0:0:0:2", "fd00::2:0:0:0:1"
# Sends requests, each after the response to the one before: port, then hexadecimal requests with the responses' sizes.
CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as sock:
    for frame in sys.argv[2:]:
        asked, size = frame.split(":")
        sock.sendall(bytes.fromhex(asked))
        assert len(sock.recv(int(size), socket.MSG_WAITALL)) == int(size)
"""


@pytest.fixture
def network() -> Iterator[Namespace]:
    """Yield a namespace with these addresses on its loopback interface."""
    with closing(Namespace()) as network:
        for address in (SERVER, STRANGER, NEIGHBOUR, OTHER):
            network.run("ip", "address", "add", f"{address}/128", "dev", "lo", "nodad")
        yield network


def test_addresses_of_an_ipv6_network_have_one_share(network: Namespace) -> None:
    port = free_port()
    with (
        closing(Capture(port, client_side=False, buffer="ring", ring_bytes=RING_BYTES)) as capture,
        network.inside(),
        socket.create_server((SERVER, port), family=socket.AF_INET6) as listener,
        accepted_by(listener, SERVER, source=STRANGER) as flood,
        accepted_by(listener, SERVER, source=NEIGHBOUR) as neighbour,
        accepted_by(listener, SERVER, source=OTHER) as other,
    ):
        exchange(flood, FLOOD)
        exchange(neighbour, HONEST)
        exchange(other, HONEST)
        frames = {talk.names: [end.frames for end in capture.ends_of(talk)] for talk in (neighbour, other)}
        assert frames[other.names] == [other.sent]
        assert frames[neighbour.names] != [neighbour.sent]
        assert capture.lost().keys() == {"peer_limited"}


def test_processes_at_a_clients_end_have_shares_of_their_own() -> None:
    port = free_port()
    asked, given = [[make(METADATA, 12, number) for number in HONEST] for make in (request, response)]
    arguments = [f"{one.wire.hex()}:{len(other.wire)}" for one, other in zip(asked, given, strict=True)]
    with (
        closing(Capture(port, server_side=False, buffer="ring", ring_bytes=RING_BYTES)) as capture,
        socket.create_server(("127.0.0.1", port)) as listener,
        accepted_by(listener, "127.0.0.1") as flood,
        accepted_by(listener, "127.0.0.1") as same,
    ):
        exchange(flood, FLOOD)
        exchange(same, HONEST)
        with subprocess.Popen([sys.executable, "-c", CLIENT, str(port), *arguments]) as client:
            accepted, (_, client_port) = listener.accept()
            with accepted:
                accepted.settimeout(TIMEOUT_S)
                for one, other in zip(asked, given, strict=True):
                    receive_all(accepted, len(joined([one])))
                    accepted.sendall(joined([other]))
            assert client.wait(TIMEOUT_S) == 0
        expected = [frame.seen for pair in zip(asked, given, strict=True) for frame in pair]

        def is_seen() -> bool:
            ends = {end.identity.local: end for end in capture.ends}
            found = ends.get(f"127.0.0.1:{client_port}")
            return found is not None and found.frames == expected

        wait_until(is_seen, "all of the other process")
        assert [end.frames for end in capture.ends_of(same)] != [same.sent]
        assert capture.lost().keys() >= {"peer_limited"}


def test_a_peer_of_perf_buffers_has_a_fixed_rate() -> None:
    port = free_port()
    asked, given = [[make(METADATA, 12, number) for number in range(1000)] for make in (request, response)]
    with (
        closing(Capture(port, client_side=False, buffer="perf", ring_bytes=64 << 20)) as capture,
        socket.create_server(("127.0.0.1", port)) as listener,
        accepted_by(listener, "127.0.0.1", source="127.0.2.1") as flood,
        accepted_by(listener, "127.0.0.1", source="127.0.2.2") as other,
    ):
        for _ in range(50):  # several times what a second allows
            flood.ask(*asked)
            flood.answer(*given)
        exchange(other, HONEST)
        (end,) = capture.ends_of(other)
        assert end.frames == other.sent
        (limited,) = capture.ends_of(flood)
        assert BURST <= len(limited.frames) < len(flood.sent)
        lost = capture.lost()
        assert lost["peer_limited"] > 0
        assert "ring_full" not in lost
