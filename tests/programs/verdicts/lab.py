"""Provides the lab of disconnects: clients, a gateway with three behaviours, and brokers with different limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock
from typing import Literal, TypedDict, Unpack

from tests.lab.broker import Broker
from tests.lab.fleet import Fleet
from tests.lab.keys import Key, make_key
from tests.lab.libraries import USER, Library, Settings
from tests.lab.network import Answer, Connection, Namespace, Network, nat
from tests.lab.processes import wait_until
from tests.lab.sockets import sockets
from tests.lab.topics import create_topics

Security = Literal["plaintext", "tls"]
GatewayMode = Literal["forgiving"] | Answer

IDLE_S = 4  # of every idle limit: the impatient broker's, the firewall's, and at least the clients'
MAX_BYTES = 50_000  # of a record batch, by the brokers' limit
TOPIC = "orders"
# Ports of plaintext and TLS.
_PATIENT, _IMPATIENT = (9092, 9093), (9192, 9193)
# A pair for each cell that ends a broker: a client's port comes again only with another port of a broker.
_DOOMED = tuple((port, port + 1) for port in range(9200, 9230, 2))
SASL_PORT = 9094
PORTS = (SASL_PORT, *_PATIENT, *_IMPATIENT, *(port for pair in _DOOMED for port in pair))

_HOUR_S = 3600


class Gateway:
    """The gateway of the lab. Cells that need the same mode share it, others wait."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._mode: GatewayMode = "forgiving"
        self._guests = 0
        self._changed = Condition()

    @contextmanager
    def in_mode(self, mode: GatewayMode) -> Iterator[None]:
        """Keep one behaviour for the block: no drops (`forgiving`), or drops or resets of idle connections."""
        with self._changed:
            self._changed.wait_for(lambda: mode == self._mode or not self._guests)
            if mode != self._mode:
                self._mode = mode
                if mode == "forgiving":
                    self._network.run_gateway(_HOUR_S)
                else:
                    self._network.run_gateway(IDLE_S, mode)
            self._guests += 1
        try:
            yield
        finally:
            with self._changed:
                self._guests -= 1
                self._changed.notify_all()


class Wishes(TypedDict, total=False):
    """The settings that a fleet may have, see `Settings`."""

    acks: Literal["all", "0"]
    idle_ms: int
    request_timeout_ms: int
    password: str


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab: a patient broker with the default idle limit, and one that closes connections idle for IDLE_S.

    knocking: held by who must be the only one at the SASL port.
    """

    directory: Path
    network: Network
    gateway: Gateway
    key: Key
    patient: Broker
    impatient: Broker
    knocking: Lock = field(default_factory=Lock)
    _doomed_ports: list[tuple[int, int]] = field(default_factory=lambda: list(_DOOMED))

    @property
    def clients(self) -> Namespace:
        """Return the namespace of all clients."""
        return self.network.clients[0]

    def fleet(
        self, broker: Broker, library: Library, security: Security, count: int, name: str, **wishes: Unpack[Wishes]
    ) -> Fleet:
        """Return producers of a broker of the lab, not started yet; those with a password use the SASL port."""
        bootstrap, certificate = broker.bootstrap, None
        if "password" in wishes:
            bootstrap = broker.address("SASL_PLAINTEXT")
        elif security == "tls":
            bootstrap, certificate = broker.address("SSL"), self.key.certificate
        settings = Settings(bootstrap, certificate=certificate, **wishes)
        name = f"{name}-{library}-{security}"
        return Fleet(self.clients, library, settings, self.directory, count=count, topic=TOPIC, name=name)

    @contextmanager
    def doomed_broker(self, name: str) -> Iterator[Broker]:
        """Run a broker for one cell, which may stop it."""
        with _broker(self.network, self.directory / name, self._doomed_ports.pop(), self.key.properties) as broker:
            yield broker

    def wait_silent(self, connections: set[Connection], silence_s: int) -> None:
        """Wait until nothing was sent on any of the connections for that long."""
        wait_until(
            lambda: all(
                one.silent_ms >= silence_s * 1000 for one in sockets(self.clients) if one.connection in connections
            ),
            f"{len(connections)} connections to be silent for {silence_s} s",
            every_s=0.3,
        )

    def wait_forgotten(self, connections: set[Connection]) -> None:
        """Wait until the gateway remembers none of the connections."""
        wait_until(
            lambda: connections.isdisjoint(self.network.tracked()),
            f"the gateway to forget {len(connections)} connections",
            every_s=0.3,
        )

    def wait_closed(self, connections: set[Connection]) -> None:
        """Wait until nothing is left of the clients' ends, not even a socket that still sends in vain."""
        wait_until(
            lambda: connections.isdisjoint(one.connection for one in sockets(self.clients)),
            f"{len(connections)} connections to be closed",
            timeout_s=180,
            every_s=0.3,
        )


@contextmanager
def lab(directory: Path) -> Iterator[Lab]:
    """Run the lab for the duration of the block.

    Raises:
        LabError: this machine cannot make it; the text names the part.
    """
    with ExitStack() as stack:
        network = stack.enter_context(nat(clients=1, idle_s=_HOUR_S))
        # Else the kernel tries for two minutes more to send what a client left behind when it gave up.
        network.clients[0].run("sysctl", "-qw", "net.ipv4.tcp_orphan_retries=3")
        key = make_key(directory, network.broker.address)
        sasl = {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{key.password}";'
            ),
        }
        idle = {"connections.max.idle.ms": str(IDLE_S * 1000)}
        patient = _broker(network, directory / "patient", _PATIENT, {**key.properties, **sasl}, sasl_port=SASL_PORT)
        impatient = _broker(network, directory / "impatient", _IMPATIENT, {**key.properties, **idle})
        up = stack.enter_context
        yield Lab(directory, network, Gateway(network), key, up(patient), up(impatient))


@contextmanager
def _broker(
    network: Network, directory: Path, ports: tuple[int, int], properties: Mapping[str, str], sasl_port: int = 0
) -> Iterator[Broker]:
    plaintext, tls = ports
    with network.broker.inside():
        broker = Broker(
            directory,
            host=network.broker.address,
            port=plaintext,
            listeners={"SSL": tls, **({"SASL_PLAINTEXT": sasl_port} if sasl_port else {})},
            properties={"message.max.bytes": str(MAX_BYTES), **properties},
            heap_mb=256,
        )
        broker.start()
        create_topics(broker.bootstrap, [TOPIC], partitions=1)
    try:
        yield broker
    finally:
        broker.stop()
