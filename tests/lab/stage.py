"""Where the demo plays: on three nodes in network namespaces of this host, or at a broker that is there already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.broker import Broker
from tests.lab.network import Namespace, Network, nat
from tests.lab.product import Agent

CLIENTS, BROKER = "clients", "broker"
IDLE_S = 8  # of the firewall; more than an agent is ever silent
PORT = 9092


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker, and the namespaces of CLIENTS and BROKER; without a network all is on this host."""

    directory: Path
    bootstrap: str
    network: Network | None = None
    _nodes: Mapping[str, Namespace] = field(default_factory=dict)

    @property
    def port(self) -> str:
        """Of the broker."""
        return self.bootstrap.rpartition(":")[2]

    def at(self, node: str) -> AbstractContextManager[None]:
        """What is started meanwhile is on that node."""
        return self._nodes[node].inside() if self._nodes else nullcontext()

    @contextmanager
    def agents(self) -> Iterator[list[str]]:
        """Meanwhile each node has an agent, which sends to the broker that it watches; their flags."""
        to = ("--bootstrap-servers", self.bootstrap, "--ports", self.port)
        everywhere: dict[str, tuple[str, ...]] = {"demo": ()}
        watched = {node: ("--netns", namespace.path) for node, namespace in self._nodes.items()} or everywhere
        with ExitStack() as stack:
            for node, netns in watched.items():
                directory = self.directory / f"agent-{node}"
                directory.mkdir(parents=True, exist_ok=True)
                with self.at(node):
                    stack.enter_context(Agent(directory, *to, "--node", node, *netns))
            yield [" ".join((*to, "--node", node, *netns)) for node, netns in watched.items()]


@contextmanager
def own_stage(directory: Path) -> Iterator[Stage]:
    """A broker behind a gateway that hides its clients, and whose firewall forgets who is silent and then resets."""
    with nat(idle_s=IDLE_S, forgotten="reset") as network, ExitStack() as stack:
        with network.broker.inside():
            broker = Broker(directory / "broker", host=network.broker.address, port=PORT, keep=True)
            stack.enter_context(broker)
        yield Stage(directory, broker.bootstrap, network, {BROKER: network.broker, CLIENTS: network.clients[0]})
