"""Sets the demo's stage: three nodes in network namespaces of this host, or an existing broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.lab.broker import Broker
from tests.lab.http import get
from tests.lab.network import Namespace, Network, nat
from tests.lab.processes import free_port
from tests.lab.product import Agent

CLIENTS, BROKER = "clients", "broker"
IDLE_S = 8  # of the firewall; more than an agent is ever silent
PORT = 9092


class StagedAgent(NamedTuple):
    """An agent at work: its node, its flags, and where it answers over HTTP; empty if it does not."""

    node: str
    flags: str
    url: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker, and the namespaces of CLIENTS and BROKER; without a network all is on this host."""

    directory: Path
    bootstrap: str
    network: Network | None = None
    _nodes: Mapping[str, Namespace] = field(default_factory=dict)

    @property
    def port(self) -> str:
        """Return the broker's port."""
        return self.bootstrap.rpartition(":")[2]

    def at(self, node: str) -> AbstractContextManager[None]:
        """Start processes of the block on that node."""
        return self._nodes[node].inside() if self._nodes else nullcontext()

    @contextmanager
    def agents(self, *, listening: bool = False) -> Iterator[list[StagedAgent]]:
        """Run an agent on each node for the duration of the block; each sends to the broker that it watches."""
        to = ("--bootstrap-servers", self.bootstrap, "--ports", self.port)
        everywhere: dict[str, tuple[str, ...]] = {"demo": ()}
        watched = {node: ("--netns", namespace.path) for node, namespace in self._nodes.items()} or everywhere
        agents = []
        with ExitStack() as stack:
            for node, netns in watched.items():
                directory = self.directory / f"agent-{node}"
                directory.mkdir(parents=True, exist_ok=True)
                flags = [*to, "--node", node, *netns]
                address = f"127.0.0.1:{free_port()}" if listening else ""
                if listening:
                    flags += ["--listen", address]
                with self.at(node):
                    stack.enter_context(Agent(directory, *flags))
                agents.append(StagedAgent(node, " ".join(flags), f"http://{address}" if listening else ""))
            yield agents

    def clients_seen(self, agent: StagedAgent) -> set[str]:
        """Return the client ids that the listening agents list."""
        with self.at(agent.node):
            answer = get(f"{agent.url}/api/v1/clients")
        return {row["client"]["id"] for row in answer.json()["rows"]}

    def command_at(self, node: str, command: str) -> str:
        """Return the command line that runs the command on that node, from a terminal of this host."""
        return f"nsenter --net={self._nodes[node].path} {command}" if self._nodes else command


@contextmanager
def own_stage(directory: Path) -> Iterator[Stage]:
    """Set a stage with a broker behind a gateway that hides its clients and resets idle connections."""
    with nat(idle_s=IDLE_S, forgotten="reset") as network, ExitStack() as stack:
        with network.broker.inside():
            broker = Broker(directory / "broker", host=network.broker.address, port=PORT, keep=True)
            stack.enter_context(broker)
        yield Stage(directory, broker.bootstrap, network, {BROKER: network.broker, CLIENTS: network.clients[0]})
