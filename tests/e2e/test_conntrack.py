"""On a node that does NAT itself, connection tracking gives the other side's addresses, for either end."""

from __future__ import annotations

import errno
import json
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import NetlinkError
from pyroute2.netlink.nfnetlink import nfctsocket

from kafka_probe.connections import conntrack
from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.connections.identity import Identity
from tests.lab.network import Network, nat
from tests.lab.processes import wait_until
from tests.lab.product import Agent

pytestmark = pytest.mark.root


def connect(network: Network) -> tuple[socket.socket, socket.socket]:
    """Connect through the gateway; return the client's end and the broker's."""
    with network.broker.inside(), socket.create_server((network.broker.address, 0)) as listener:
        with network.clients[0].inside():
            client = socket.create_connection(listener.getsockname(), timeout=10)
        broker, _ = listener.accept()
    return client, broker


def names(sock: socket.socket) -> tuple[str, str]:
    local, peer = sock.getsockname(), sock.getpeername()
    return f"{local[0]}:{local[1]}", f"{peer[0]}:{peer[1]}"


def identity(ends: tuple[str, str], *, server_side: bool) -> Identity:
    local, peer = ends
    return Identity(1, server_side, True, "0" * 16, local, peer, "", 1, None, None)


def test_each_end_of_a_masqueraded_connection_is_given_the_other_side(tmp_path: Path) -> None:
    with nat() as network:
        client, broker = connect(network)
        with client, broker:
            seen_by_client, seen_by_broker = names(client), names(broker)
            port = str(client.getpeername()[1])
            flags = ("--sink", "stdout", "--ports", port, "--interval-s", "0.3", "--conntrack", "true")
            # As if the gateway were the node: its agent sees both ends.
            with network.gateway.inside(), Agent(tmp_path, *flags) as agent:
                client.sendall(b"data")
                assert broker.recv(4) == b"data"

                def reported() -> dict[str, Any]:
                    lines = agent.output.read_text().splitlines()
                    events = [json.loads(line) for line in lines if '"kind":"open"' in line]
                    return {event["side"]: event["nat"] for event in events if event["flow_id"]}

                wait_until(lambda: len(reported()) == 2, "both ends to be reported", timeout_s=30)
    assert reported() == {
        "client": {"local": seen_by_broker[1], "peer": seen_by_broker[0]},
        "server": {"local": seen_by_client[1], "peer": seen_by_client[0]},
    }


def test_what_is_not_translated_or_not_tracked_has_no_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conntrack, "ASKED_AT_ONCE", 4)
    with nat() as network, network.gateway.inside():
        client, broker = connect(network)
        with network.broker.inside():
            listener = socket.create_server((network.broker.address, 0))
        with client, broker, listener, socket.create_connection(listener.getsockname(), timeout=10) as direct:
            ends = names(client)
            asked = Conntrack()
            beyond, *others = asked.translations(
                [
                    identity(ends, server_side=False),
                    identity(names(direct), server_side=False),  # tracked, and not translated
                    identity(("10.57.1.99:1", ends[1]), server_side=False),
                    identity(("[2001:db8::1]:1", "[2001:db8::2]:2"), server_side=True),
                    identity(ends, server_side=False),
                ]
            )
    assert beyond
    assert others == [None] * 4
    assert asked.not_asked == 1


class Refusing(nullcontext[object]):
    """Stands in for a kernel that does not let this process ask."""

    asked = 0
    answer: Exception = NetlinkError(errno.EPERM)

    def __init__(self, **_: object) -> None:
        super().__init__(self)

    def entry(self, *_: object, **__: object) -> None:
        Refusing.asked += 1
        raise Refusing.answer


@pytest.mark.parametrize("answer", [NetlinkError(errno.EPERM), OSError(errno.EPROTONOSUPPORT, "no such protocol")])
def test_a_kernel_that_refuses_is_asked_once(
    answer: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nfctsocket, "NFCTSocket", Refusing)
    monkeypatch.setattr(Refusing, "asked", 0)
    monkeypatch.setattr(Refusing, "answer", answer)
    asked = Conntrack()
    one = identity(("10.57.1.99:1", "10.57.1.98:2"), server_side=False)
    assert asked.translations([one, one]) + asked.translations([one]) == [None, None, None]
    assert Refusing.asked == 1
    (message,) = caplog.messages
    assert "Connection tracking cannot be queried" in message
