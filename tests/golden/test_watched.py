"""The capture watches the right connections, reports their owners, and leaves no state of them behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from subprocess import PIPE

import pytest

from tests.builders.wire import METADATA, request
from tests.lab.capture import Capture
from tests.lab.conversation import conversation, exchange, receive_all, transfer
from tests.lab.network import Namespace
from tests.lab.processes import free_port, wait_until

pytestmark = pytest.mark.root

CLIENT = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(bytes.fromhex(sys.argv[2]))
sys.stdin.read()
"""

# Accepts a connection of its own, as an agent whose sink is on the watched port, and keeps it until its input ends.
AGENT = """
import socket, sys
frame = bytes.fromhex(sys.stdin.readline())
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(frame)
    assert server.recv(1000) == frame
print("used", flush=True)
sys.stdin.read()
"""


def test_one_side_only_and_not_the_agents_own_sockets() -> None:
    port, elsewhere = free_port(), free_port()
    with (
        subprocess.Popen([sys.executable, "-c", AGENT, str(port)], stdin=PIPE, stdout=PIPE, text=True) as agent,
        closing(Capture(port, client_side=False, agent_pid=agent.pid)) as capture,
    ):
        with conversation(elsewhere) as talk:
            exchange(talk)
        with conversation(port) as talk:
            exchange(talk)
        assert agent.stdin
        assert agent.stdout
        print(request(METADATA, 12, 1).wire.hex(), file=agent.stdin, flush=True)
        assert agent.stdout.readline() == "used\n"
        assert capture.entries("agent_socks") == 1
        agent.communicate()
        wait_until(lambda: capture.entries("agent_socks") == 0, "the agent's connection to be forgotten")
        (end,) = capture.ends
    assert (end.identity.server_side, end.frames, end.pids) == (True, talk.sent, {os.getpid()})


@pytest.mark.kernel
def test_a_client_that_vanishes(capture: Capture, port: int) -> None:
    frame = request(METADATA, 12, 1)
    with socket.create_server(("127.0.0.1", port)) as listener:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, str(port), frame.wire.hex()], stdin=subprocess.PIPE)
        accepted, _ = listener.accept()
        with accepted, client:
            receive_all(accepted, len(frame))
            client.kill()
            assert accepted.recv(1) == b""
    wait_until(lambda: len(capture.ends) == 2 and all(end.gone for end in capture.ends), "both ends to close")
    (vanished,) = (end for end in capture.ends if not end.identity.server_side)
    assert (vanished.pids, vanished.frames) == ({client.pid}, [])  # nothing proves that it was Kafka
    assert vanished.closed
    assert (vanished.closed["closed_by"], vanished.closed["how"], vanished.closed["in_flight"]) == ("local", "fin", 1)
    assert vanished.closed["owner_exiting"]
    assert vanished.closed["last_api"] is None
    assert capture.lost() == {"before_proof": 2}


@pytest.mark.kernel
def test_a_socket_handed_to_another_process_changes_its_owner(capture: Capture, port: int) -> None:
    with conversation(port) as talk:
        talk.ask(request(METADATA, 12, 1))
        child = os.fork()
        if not child:
            talk.client.send(request(METADATA, 12, 2).wire)
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        receive_all(talk.server, len(request(METADATA, 12, 2)))
    client, server = capture.ends_of(talk)
    assert [owner.pid for owner in client.owners] == [os.getpid(), child]
    assert server.pids == {os.getpid()}
    assert len(client.frames) == 2


TIMEOUT_MS = 500


def test_a_connection_that_times_out(capture: Capture, port: int) -> None:
    with closing(Namespace()) as apart, apart.inside(), conversation(port) as talk:
        exchange(talk)
        talk.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TIMEOUT_MS)
        apart.run("nft", "add table inet lab")
        apart.run("nft", "add chain inet lab in { type filter hook input priority 0; policy drop; }")
        talk.client.send(request(METADATA, 12, 3).wire)
        with pytest.raises(TimeoutError, match="Errno 110"):
            talk.client.recv(1)
        client, server = capture.ends_of(talk)
        wait_until(lambda: bool(capture.ends and client.closed), "the client's end to close")
        assert client.closed
        assert (client.closed["closed_by"], client.closed["how"]) == ("local", "timeout")
        assert client.closed["unacked_bytes"] == len(request(METADATA, 12, 3))
        assert server.closed is None
        apart.run("nft", "delete table inet lab")
    capture.wait_closed(talk)


def test_closed_connections_leave_nothing_in_the_kernel(capture: Capture, port: int) -> None:
    begun = request(METADATA, 12, 3).wire[:20]
    for _ in range(200):
        with conversation(port) as talk:
            exchange(talk)
            transfer(talk.client, talk.server, begun)
    capture.wait_closed(talk)
    wait_until(lambda: all(end.gone for end in capture.ends), "all ends to close")
    assert len(capture.ends) == 400
    assert (capture.entries("conns"), capture.entries("unfinished")) == (0, 0)
    assert capture.lost() == {"frame_truncated": 400}
