"""The lab's parts that close connections, tried on two plain sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import cast

import pytest

from tests.lab.network import Answer, Connection, Network, nat
from tests.lab.processes import LabError, wait_until
from tests.lab.sockets import sockets

pytestmark = pytest.mark.root

IDLE_S = 2


@pytest.fixture
def network() -> Iterator[Network]:
    with nat(idle_s=IDLE_S, forgotten="reset") as network:
        yield network


def test_the_gateway_resets_who_speaks_on_a_forgotten_connection_and_the_other_end_hears_nothing(
    network: Network,
) -> None:
    with network.broker.inside(), socket.create_server((network.broker.address, 0)) as listener:
        with network.clients[0].inside():
            client = socket.create_connection(listener.getsockname(), timeout=10)
        broker, _ = listener.accept()
    with client, broker:
        client.sendall(b"data")
        assert broker.recv(4) == b"data"
        ends = Connection(*("{}:{}".format(*end) for end in (client.getsockname(), client.getpeername())))
        assert network.translated() == {ends: "{}:{}".format(*broker.getpeername())}
        wait_until(lambda: not network.tracked(), "the gateway to forget", timeout_s=5 * IDLE_S)

        (open_,) = sockets(network.clients[0])
        assert open_.connection == ends
        assert open_.silent_ms >= IDLE_S * 1000
        client.sendall(b"data")
        with pytest.raises(ConnectionResetError):
            client.recv(4)
        broker.settimeout(1)
        with pytest.raises(TimeoutError):
            broker.recv(4)


def test_the_gateway_knows_two_answers_only(network: Network) -> None:
    with pytest.raises(LabError, match="drop or reset"):
        network.run_gateway(IDLE_S, cast("Answer", "forgive"))
