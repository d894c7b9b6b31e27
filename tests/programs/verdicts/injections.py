"""Causes disconnects: a function per cause, which returns the connections that it closed.

A connection counts if it was open just before its end was brought about and is gone, with nothing left of its socket,
while its client is still there, or with it if the client's end is the cause. Kafka's Java producer has a second
connection, from its bootstrap, which only speaks once: it does not count where a cause needs a client that speaks.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, replace
from typing import Literal, Self

from tests.lab.fleet import Fleet
from tests.lab.libraries import Library
from tests.lab.network import Connection
from tests.lab.processes import LabError, wait_until
from tests.lab.sockets import sockets
from tests.programs.verdicts.lab import IDLE_S, MAX_BYTES, Lab, Security, Wishes

Connections = set[Connection]

_GIVES_UP_MS = 5000
_OUTLIVES_S = 3  # the product takes a process that ends within two seconds after a close for its cause


@dataclass(frozen=True, slots=True)
class Open:
    """Connections, and since when all of them had their addresses to themselves, µs since epoch."""

    connections: Connections
    since_us: int

    @classmethod
    def of(cls, fleet: Fleet) -> Self:
        """Return the current connections."""
        return cls(since_us=now_us(), connections=fleet.connections())


def now_us() -> int:
    """Return the time in µs since epoch."""
    return time.time_ns() // 1000


def client_idle_limit(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Let clients close connections that exceed their own idle limit.

    A silent Java client looks once in a request timeout, and closes one connection at a time; librdkafka's close up to
    two seconds before the limit, each at another time.
    """
    wishes = Wishes(idle_ms=(IDLE_S + 2) * 1000, request_timeout_ms=_GIVES_UP_MS)
    with lab.fleet(lab.patient, library, security, count, "client-idle", **wishes) as fleet:
        fleet.send()
        idle = Open.of(fleet)
        lab.wait_closed(idle.connections)
        _live_on(lab, fleet)
    return idle


def broker_idle_limit(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Let the broker close connections that exceed its idle limit."""
    with lab.fleet(lab.impatient, library, security, count, "broker-idle") as fleet:
        fleet.send()
        idle = Open.of(fleet)
        lab.wait_closed(idle.connections)
        _live_on(lab, fleet)
    return idle


def middlebox(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Let the firewall drop the state of connections whose clients then send again."""
    with lab.fleet(lab.patient, library, security, count, "middlebox", request_timeout_ms=_GIVES_UP_MS) as fleet:
        fleet.send()
        idle = Open.of(fleet)
        lab.wait_forgotten(idle.connections)
        fleet.order("send 100")
        ended = _given_up(fleet, idle.connections)
        lab.wait_closed(ended)
        _live_on(lab, fleet)
    return replace(idle, connections=ended)


def oversize(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Send a record batch above the broker's limit with acks=0: the broker can only close."""
    with lab.fleet(lab.patient, library, security, count, "oversize", acks="0") as fleet:
        fleet.send()
        used = Open.of(fleet)
        fleet.order(f"send {2 * MAX_BYTES}")
        ended = _given_up(fleet, used.connections)
        lab.wait_closed(ended)
        _live_on(lab, fleet)
    return replace(used, connections=ended)


def unsupported_version(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Send a request of a version that the broker does not support, after one that it does."""
    with lab.fleet(lab.patient, library, security, count, "unsupported-version") as fleet:
        fleet.send(1)
        used = Open.of(fleet)
        fleet.send(99)
        lab.wait_closed(used.connections)
    return used


def wrong_password(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Run clients with a wrong password. They close too quickly to be listed, so the gateway's table is read."""
    with lab.knocking:
        before, since_us = lab.network.tracked(), now_us()

        def refused() -> Connections:
            port = lab.patient.address("SASL_PLAINTEXT")
            knocked = {one for one in lab.network.tracked() - before if one.peer == port}
            return knocked - {one.connection for one in sockets(lab.clients)}

        wishes = Wishes(password="wrong", request_timeout_ms=_GIVES_UP_MS)
        with lab.fleet(lab.patient, library, security, count, "wrong-password", **wishes) as fleet:
            fleet.order("send 100")
            wait_until(lambda: len(refused()) >= count, f"{count} of {fleet.name} to be refused", timeout_s=60)
            return Open(refused(), since_us)


def killed_client(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Kill the client with `kill -9`."""
    with lab.fleet(lab.patient, library, security, count, "killed-client") as fleet:
        fleet.send()
        used = Open.of(fleet)
        fleet.kill()
        lab.wait_closed(used.connections)
    return used


def left_client(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Let the client exit without closing anything."""
    return _ended_by(lab, library, security, count, "left-client", "leave")


def stopped_client(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Stop the client in order, right after its work."""
    return _ended_by(lab, library, security, count, "stopped-client", "stop")


def stopped_silent_client(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Stop the client in order, after a silence as long as an idle limit."""
    return _ended_by(lab, library, security, count, "stopped-silent-client", "stop", silence_s=IDLE_S)


def killed_broker(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Kill the broker with `kill -9`."""
    with (
        lab.doomed_broker(f"killed-{library}-{security}") as broker,
        lab.fleet(broker, library, security, count, "killed-broker") as fleet,
    ):
        fleet.send()
        used = Open.of(fleet)
        broker.kill()
        lab.wait_closed(used.connections)
    return used


def stopped_broker(lab: Lab, library: Library, security: Security, count: int) -> Open:
    """Send SIGTERM to the broker; its clients outlive it."""
    with (
        lab.doomed_broker(f"stopped-{library}-{security}") as broker,
        lab.fleet(broker, library, security, count, "stopped-broker") as fleet,
    ):
        fleet.send()
        used = Open.of(fleet)
        if broker.stop() == -signal.SIGKILL:
            raise LabError(f"the broker at {broker.bootstrap} did not stop in order")
        lab.wait_closed(used.connections)
        closed_s = time.monotonic()
        wait_until(lambda: time.monotonic() - closed_s > _OUTLIVES_S, "the clients to outlive their connections")
    return used


def _ended_by(
    lab: Lab,
    library: Library,
    security: Security,
    count: int,
    name: str,
    order: Literal["stop", "leave"],
    silence_s: int = 0,
) -> Open:
    with lab.fleet(lab.patient, library, security, count, name) as fleet:
        fleet.send()
        used = Open.of(fleet)
        lab.wait_silent(used.connections, silence_s)
        fleet.end(order)
        lab.wait_closed(used.connections)
    return used


def _live_on(lab: Lab, fleet: Fleet) -> None:
    """Wait until the clients have worked on and been silent for a while: no connection was closed by their end."""
    fleet.send()
    lab.wait_silent(fleet.connections(), _OUTLIVES_S)


def _given_up(fleet: Fleet, among: Connections) -> Connections:
    """Return the connections that the clients have dropped, once it is at least one for each."""
    ended: Connections = set()

    def enough() -> bool:
        ended.update(among - fleet.connections())
        return len(ended) >= fleet.count

    wait_until(enough, f"{fleet.count} connections of {fleet.name} to be given up", timeout_s=90, every_s=0.3)
    return ended
