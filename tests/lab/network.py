"""Builds a NAT lab on one machine: clients, a gateway with an idle firewall, and a broker, in network namespaces.

The gateway is what `vagrant/scripts/gateway.sh` makes of its namespace, as of a machine. The namespaces have no names:
the kernel removes them with the last process that holds them, so that even a killed test run leaves nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Literal, NamedTuple

from tests.lab.processes import LabError

SCRIPTS = Path(__file__).parents[2] / "vagrant" / "scripts"

_CLIENTS, _BROKERS = IPv4Interface("10.57.1.2/24"), IPv4Interface("10.57.2.2/24")
_FIRST = 9  # the address of a network's first member is this far above the gateway's: .11
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
# A line has the addresses that the client used, then those of the answers, which go to the translated address.
_TRACKED = re.compile(
    r"^.*? src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+) .*?src=\S+ dst=(\S+) sport=\d+ dport=(\d+) ", re.MULTILINE
)

Answer = Literal["drop", "reset"]


class Connection(NamedTuple):
    """Address:port of both ends of a connection, as its client has them.

    Other connections may use the same local port.
    """

    local: str
    peer: str


class Namespace:
    """A new network namespace, with loopback up. `address` is empty until it is wired."""

    def __init__(self) -> None:
        self.address = ""
        with _returning():
            _check(_libc.unshare(_CLONE_NEWNET), "make a network namespace")
            self._fd = _own()
            _run("ip", "link", "set", "lo", "up")

    @property
    def path(self) -> str:
        """Return a file for the namespace, which `ip` accepts in place of a name."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the block in the namespace: its sockets and processes stay there."""
        with _returning():
            _check(_libc.setns(self._fd, _CLONE_NEWNET), "enter a network namespace")
            yield

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command inside to its end; return its output.

        Raises:
            LabError: it failed; the text ends with its output.
        """
        with self.inside():
            return _run(*command, **variables)

    def close(self) -> None:
        """Release the namespace."""
        os.close(self._fd)
        self._fd = -1


@dataclass(frozen=True, slots=True)
class Network:
    """The lab, wired: clients reach the broker through the gateway, which has an address on either side."""

    clients: Sequence[Namespace]
    gateway: Namespace
    broker: Namespace
    gateway_address: str

    def run_gateway(self, idle_s: int, forgotten: Answer = "drop") -> None:
        """Make the gateway's namespace a gateway; it may be one already."""
        networks = {"CLIENTS": str(_CLIENTS.network), "BROKERS": str(_BROKERS.network)}
        self.gateway.run("bash", SCRIPTS / "gateway.sh", IDLE_S=str(idle_s), FORGOTTEN=forgotten, **networks)

    def tracked(self) -> set[Connection]:
        """Return the connections in the gateway's table, which keeps those closed in order for two more minutes."""
        return set(self.translated())

    def translated(self) -> dict[Connection, str]:
        """Return the same connections, each with its client's address:port as the broker sees it."""
        with self.gateway.inside():
            table = Path("/proc/thread-self/net/nf_conntrack").read_text()
        return {
            Connection(f"{source}:{port}", f"{target}:{to}"): f"{masked}:{masked_port}"
            for source, target, port, to, masked, masked_port in _TRACKED.findall(table)
        }


@contextmanager
def nat(*, clients: int = 1, idle_s: int = 60, forgotten: Answer = "drop") -> Iterator[Network]:
    """Yield a network whose firewall drops the state of a connection after `idle_s` seconds of silence.

    Raises:
        LabError: this machine cannot make it; the text contains the command that failed.
    """
    with ExitStack() as stack:

        def namespace() -> Namespace:
            made = Namespace()
            stack.callback(made.close)
            return made

        gateway, broker = namespace(), namespace()
        behind = [namespace() for _ in range(clients)]
        _wire(gateway, "clients", _CLIENTS, behind)
        _wire(gateway, "brokers", _BROKERS, [broker])
        for client in behind:
            client.run("ip", "route", "add", str(_BROKERS.network), "via", str(_CLIENTS.ip))
        network = Network(behind, gateway, broker, str(_BROKERS.ip))
        network.run_gateway(idle_s, forgotten)
        yield network


def _wire(gateway: Namespace, name: str, address: IPv4Interface, members: Sequence[Namespace]) -> None:
    """Make a network: a bridge with an address in the gateway, and a pair of interfaces to each member."""
    gateway.run("ip", "link", "add", name, "type", "bridge")
    gateway.run("ip", "address", "add", str(address), "dev", name)
    gateway.run("ip", "link", "set", name, "up")
    for number, member in enumerate(members):
        cable = f"{name}-{number}"
        member.address = str(address.ip + _FIRST + number)
        member.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", cable, "netns", gateway.path)
        member.run("ip", "address", "add", f"{member.address}/{address.network.prefixlen}", "dev", "eth0")
        member.run("ip", "link", "set", "eth0", "up")
        gateway.run("ip", "link", "set", cable, "master", name, "up")


@contextmanager
def _returning() -> Iterator[None]:
    """Return to the current network namespace after the block."""
    home = _own()
    try:
        yield
    finally:
        _check(_libc.setns(home, _CLONE_NEWNET), "return to the first network namespace")
        os.close(home)


def _own() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _check(status: int, what: str) -> None:
    if status:
        raise LabError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


def _run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env={**os.environ, **variables})
    if done.returncode:
        raise LabError(f"{' '.join(map(str, command))} failed: {done.stderr}")
    return done.stdout
