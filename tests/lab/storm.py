"""Causes a storm of dropped connections: many clients in many processes and cgroups behind one address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.broker import Broker
from tests.lab.cgroups import cgroup, path_of
from tests.lab.fleet import Fleet
from tests.lab.libraries import Library, Settings
from tests.lab.network import Connection, Network
from tests.lab.processes import wait_until
from tests.lab.sockets import sockets

# Cheap clients, because only their number matters.
_LIBRARIES: tuple[Library, ...] = ("kafka-python", "librdkafka")


@dataclass(frozen=True, slots=True)
class Victim:
    """A client process of a herd: its process id, its cgroup as the kernel names it, and its connections."""

    pid: int
    cgroup: str
    connections: frozenset[Connection]


@dataclass(frozen=True, slots=True)
class Herd:
    """Client processes by the path of their cgroup; each of the producers in them has one connection."""

    network: Network
    fleets: Sequence[tuple[str, Fleet]]

    def send(self) -> None:
        """Let every producer of every process send a record at about the same time; return when each arrived."""
        for _, fleet in self.fleets:
            fleet.order("send 100")
        for _, fleet in self.fleets:
            fleet.wait_done()

    def silences_ms(self) -> dict[Connection, int]:
        """Return the time since the last payload of each of its connections, ms."""
        pids = {fleet.pid for _, fleet in self.fleets}
        return {
            one.connection: one.silent_ms
            for namespace in self.network.clients
            for one in sockets(namespace)
            if one.pid in pids and one.state == "ESTAB"
        }

    def victims(self) -> list[Victim]:
        """Return its processes with their open connections."""
        return [Victim(fleet.pid, of, frozenset(fleet.connections())) for of, fleet in self.fleets]

    def stop(self) -> None:
        """Stop every client in order, all at about the same time."""
        for _, fleet in self.fleets:
            fleet.order("stop")
        for _, fleet in self.fleets:
            fleet.wait_ended()


@dataclass(frozen=True, slots=True)
class Storm:
    """The clients of a herd whose connections were dropped, and the silences before that, ms."""

    victims: Sequence[Victim]
    silences_ms: Sequence[int]


@contextmanager
def herd(
    network: Network,
    bootstraps: Sequence[str],
    directory: Path,
    *,
    topic: str,
    processes: int = 15,
    each: int = 20,
    cgroups: int = 5,
    request_timeout_ms: int = 5000,
) -> Iterator[Herd]:
    """Run a herd, spread over the network's clients and the brokers; kill it at the end."""
    with ExitStack() as stack:
        directories = [stack.enter_context(cgroup(f"herd-{number}")) for number in range(cgroups)]
        fleets = []
        for number in range(processes):
            inside = directories[number % cgroups]
            settings = Settings(bootstraps[number % len(bootstraps)], request_timeout_ms=request_timeout_ms)
            fleet = Fleet(
                network.clients[number % len(network.clients)],
                _LIBRARIES[number % len(_LIBRARIES)],
                settings,
                directory,
                count=each,
                topic=topic,
                name=f"herd-{number}",
                inside=inside,
            )
            fleets.append((path_of(inside), stack.enter_context(fleet)))
        made = Herd(network, fleets)
        made.send()
        yield made


def storm(of: Herd) -> Storm:
    """Keep all silent until the firewall has dropped their connections, and let them send again.

    Returns once every producer has lost its connection, and each record was delivered or given up.
    """
    before = of.victims()
    connections = set[Connection]().union(*(victim.connections for victim in before))
    wait_until(
        lambda: connections.isdisjoint(of.network.tracked()),
        f"the gateway to forget {len(connections)} connections",
        timeout_s=120,
        every_s=0.2,
    )
    silences = of.silences_ms()
    for _, fleet in of.fleets:
        fleet.order("send 100")
    wait_until(
        lambda: connections.isdisjoint(of.silences_ms()),
        f"{len(connections)} connections to be given up",
        timeout_s=120,
        every_s=0.5,
    )
    for _, fleet in of.fleets:
        fleet.wait_done()
    return Storm(before, [silences[connection] for connection in connections])


def restart(network: Network, brokers: Sequence[Broker]) -> None:
    """Restart one broker after the other: a rolling restart."""
    with network.broker.inside():
        for broker in brokers:
            broker.stop()
            broker.start()


def churn(network: Network, bootstrap: str, directory: Path, *, topic: str, rounds: int, each: int = 20) -> None:
    """Run clients of each library that send a record and end, one process after the other."""
    for number in range(rounds):
        library = _LIBRARIES[number % len(_LIBRARIES)]
        namespace = network.clients[number % len(network.clients)]
        settings = Settings(bootstrap)
        with Fleet(namespace, library, settings, directory, count=each, topic=topic, name=f"churn-{number}") as fleet:
            fleet.send()
            fleet.end("stop")
