"""The list of connections that are open when the agent starts, made by a separate process."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kafka_probe.connections.identity import Identity
from kafka_probe.connections.listing import Listing
from kafka_probe.connections.sock_diag import _messages
from kafka_probe.workloads import Owner
from tests.lab.conversation import conversation
from tests.lab.network import Namespace
from tests.lab.processes import free_port, wait_until


@pytest.fixture
def port() -> int:
    return free_port()


def listed(
    port: int, netns: Path | None = None, *, side: str = "both", agent_tgid: int = 0, at_once: int = 100
) -> list[tuple[Identity, Owner]]:
    """Return the listed connections, the client's end first."""
    found = taken(Listing((port,), side, netns, agent_tgid), at_once)
    return sorted((one for one in found if one), key=lambda one: one[0].server_side)


def taken(started: Listing, at_once: int = 100) -> list[tuple[Identity, Owner] | None]:
    """Return the whole list, taken in parts."""
    found: list[tuple[Identity, Owner] | None] = []

    def done() -> bool:
        part = listing.take(at_once)
        found.extend(part or [])
        return part is not None and len(part) < at_once

    with closing(started) as listing:
        wait_until(done, "the list")
    return found


@pytest.mark.root
@pytest.mark.parametrize("server", ["127.0.0.1", "::", "::1"])
def test_both_ends_of_a_connection_with_their_process(port: int, server: str) -> None:
    with conversation(port, server=server, client="127.0.0.1" if server == "::" else None) as talk:
        found = listed(port)
    assert [(one.local, one.peer) for one, _ in found] == [talk.names, talk.names[::-1]]
    netns = os.stat("/proc/self/ns/net").st_ino
    for one, owner in found:
        assert (one.flow_id, one.from_start, one.netns) == (None, False, netns)
        assert one.conn == one.cookie != 0
        assert (owner.pid, owner.uid, owner.netns) == (os.getpid(), os.getuid(), netns)
        assert owner.comm == Path("/proc/self/comm").read_bytes().rstrip()


@pytest.mark.root
def test_the_agents_own_connections_are_left_out(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with conversation(port):
        assert listed(port, agent_tgid=os.getpid()) == []
    assert caplog.messages == []


@pytest.mark.parametrize(("side", "server_side"), [("server", True), ("client", False)])
def test_only_the_side_that_is_watched(port: int, side: str, server_side: bool) -> None:
    with conversation(port):
        assert [one.server_side for one, _ in listed(port, Path("/proc/self/ns/net"), side=side)] == [server_side]


def test_a_long_list_comes_in_parts(port: int) -> None:
    with conversation(port) as talk:
        found = listed(port, Path("/proc/self/ns/net"), at_once=1)
    assert [one.local for one, _ in found] == list(talk.names)


def test_connections_beyond_the_bound_are_a_number_only(port: int) -> None:
    with conversation(port) as talk:
        found = taken(Listing((port,), "both", Path("/proc/self/ns/net"), 0, most=1))
    ((identity, owner),) = [one for one in found if one]
    assert found.count(None) == 1
    assert identity.local in talk.names
    assert owner.pid == os.getpid()


@pytest.mark.root
def test_a_connection_that_is_not_accepted_yet_has_no_process(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        assert [owner.pid for _, owner in listed(port)] == [os.getpid(), 0]


def test_listening_sockets_and_other_ports_are_none(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with conversation(free_port()), socket.create_server(("127.0.0.1", port)):
        assert listed(port, Path("/proc/self/ns/net")) == []
    assert caplog.messages == []


@pytest.mark.root
def test_a_list_that_cannot_be_made_is_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert listed(port, Path("/proc/self/ns/nothing")) == []
    (message,) = caplog.messages
    assert message.startswith("The list of open connections is incomplete (")
    assert "/proc/self/ns/nothing" in message


def test_a_list_whose_process_was_killed_is_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Listing((port,), "both", Path("/proc/self/ns/net"), 0)) as listing:
        listing._process.kill()
        listing._process.wait()
        assert listing.take(100) == []
    (message,) = caplog.messages
    assert "(the listing program exited with status -9)" in message


def test_a_kernel_that_does_not_list_tcp_is_an_error_and_no_empty_list() -> None:
    done, multi, missing = 3, 2, struct.pack("=i", -errno.ENOENT)
    kernel, netlink = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kernel, netlink:
        kernel.send(struct.pack("=IHHII", 20, done, multi, 0, 0) + missing)
        with pytest.raises(FileNotFoundError):
            list(_messages(netlink))


def test_a_list_that_nobody_waits_for_is_given_up(port: int) -> None:
    listing = Listing((port,), "both", None, 0)
    listing.close()
    assert listing._process.returncode == -signal.SIGKILL


@pytest.mark.root
def test_without_the_right_to_enter_others_its_own_namespace_is_listed_and_the_log_says_so(
    port: int, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec setpriv --bounding-set=-sys_admin --inh-caps=-all {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    other = Namespace()
    try:
        with other.inside():
            sleeper = subprocess.Popen(["sleep", "infinity"])
        with sleeper, conversation(port) as talk:
            try:
                found = listed(port)
            finally:
                sleeper.kill()
    finally:
        other.close()
    assert [one.local for one, _ in found] == list(talk.names)
    assert "without CAP_SYS_ADMIN" in caplog.text
