"""The gateway's script in a network namespace: it hides clients, and drops connections that are idle too long."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.network import SCRIPTS, Namespace, Network, nat
from tests.lab.processes import LabError, wait_until

pytestmark = pytest.mark.root

IDLE_S = 3
PATIENCE_S = 2.0  # for what never comes


@dataclass(frozen=True, slots=True)
class Ends:
    """A connection through the gateway; `peer` is the client's address as the broker has it."""

    client: socket.socket
    broker: socket.socket
    peer: str


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with nat(clients=2, idle_s=IDLE_S) as network:
        yield network


@contextmanager
def connection(network: Network, of: Namespace | None = None) -> Iterator[Ends]:
    with network.broker.inside(), socket.create_server((network.broker.address, 0)) as listener:
        listener.settimeout(10)
        with (of or network.clients[0]).inside():
            client = socket.create_connection(listener.getsockname(), timeout=10)
        broker, (peer, _) = listener.accept()
    with client, broker:
        for sock in (client, broker):
            sock.settimeout(PATIENCE_S)
            # Closed at once, whatever was not delivered: it would hold the namespaces.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        yield Ends(client, broker, peer)


def arrives(sender: socket.socket, receiver: socket.socket) -> bool:
    """Return True if bytes that one end writes reach the other."""
    sender.sendall(b"data")
    try:
        return receiver.recv(4) == b"data"
    except TimeoutError:
        return False


def remembers(network: Network, ends: Ends) -> bool:
    """Return True if the firewall still tracks the connection."""
    _, port = ends.client.getsockname()
    with network.gateway.inside():
        return f" sport={port} " in Path("/proc/thread-self/net/nf_conntrack").read_text()


def dropped(network: Network) -> int:
    """Return the number of segments that the firewall dropped since it was made."""
    found = re.search(r"counter packets (\d+)", network.gateway.run("nft", "list", "table", "ip", "kafka-probe-lab"))
    assert found
    return int(found[1])


def test_the_broker_sees_the_gateway_in_place_of_each_client(network: Network) -> None:
    for client in network.clients:
        with connection(network, client) as ends:
            assert ends.client.getsockname()[0] == client.address
            assert ends.peer == network.gateway_address
            assert arrives(ends.client, ends.broker)
            assert arrives(ends.broker, ends.client)


def test_a_connection_that_was_silent_too_long_is_dropped_without_a_word_to_either_end(network: Network) -> None:
    with connection(network) as ends:
        assert arrives(ends.client, ends.broker)
        before = dropped(network)
        wait_until(lambda: not remembers(network, ends), "the firewall to forget", timeout_s=3 * IDLE_S)

        assert not arrives(ends.client, ends.broker)
        assert not arrives(ends.broker, ends.client)
        assert [sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for sock in (ends.client, ends.broker)] == [0, 0]
        assert dropped(network) > before


def test_keepalive_within_the_time_keeps_a_silent_connection(network: Network) -> None:
    with connection(network) as silent, connection(network) as kept:
        for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1)):
            kept.client.setsockopt(socket.IPPROTO_TCP, option, value)
        kept.client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert arrives(kept.client, kept.broker)
        assert arrives(silent.client, silent.broker)
        wait_until(lambda: not remembers(network, silent), "the firewall to forget", timeout_s=3 * IDLE_S)

        assert arrives(kept.client, kept.broker)
        assert arrives(kept.broker, kept.client)


def test_it_may_run_again_under_open_connections(network: Network) -> None:
    with connection(network) as ends:
        network.run_gateway(IDLE_S)
        assert arrives(ends.client, ends.broker)
        assert arrives(ends.broker, ends.client)


def test_without_its_parameters_it_changes_nothing_and_names_the_first(network: Network) -> None:
    before = network.gateway.run("nft", "list", "ruleset")
    with pytest.raises(LabError, match="IDLE_S"):
        network.gateway.run("bash", SCRIPTS / "gateway.sh")
    assert network.gateway.run("nft", "list", "ruleset") == before


def test_a_lab_ends_with_its_use_even_if_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), nat() as network:
        _ = 1 / 0
    for namespace in (*network.clients, network.gateway, network.broker):
        with pytest.raises(LabError, match="enter a network namespace"):
            namespace.run("true")
