"""Lists the causes of disconnects that the product names, each with the clients that it applies to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from tests.lab.libraries import LIBRARIES, Library
from tests.lab.network import Connection
from tests.lab.processes import LabError
from tests.programs.verdicts import injections
from tests.programs.verdicts.lab import GatewayMode, Lab, Security

Verdict = Literal[
    "client_idle_limit",
    "broker_idle_limit",
    "middlebox_reset",
    "middlebox_silent_drop",
    "rejected_request",
    "auth_failure",
    "process_exit",
    "broker_shutdown",
    "normal",
]
Inject = Callable[[Lab, Library, Security, int], injections.Open]

_SECURITIES: tuple[Security, ...] = get_args(Security)


@dataclass(frozen=True, slots=True)
class Cause:
    """A way in which connections close.

    inject: `inject(lab, library, security, count)` ends at least `count` connections and returns them.
    in_plaintext: the evidence is in the bytes, so that TLS hides it. gateway_mode: the mode of the gateway that it
    needs. by_hand: no library can cause it.
    """

    name: str
    verdict: Verdict
    inject: Inject
    in_plaintext: bool = False
    gateway_mode: GatewayMode = "forgiving"
    by_hand: bool = False

    def cells(self) -> list[Cell]:
        """Yield a cell for each library and kind of listener to which the cause applies."""
        libraries: tuple[Library, ...] = ("raw",) if self.by_hand else LIBRARIES
        securities: tuple[Security, ...] = ("plaintext",) if self.in_plaintext else _SECURITIES
        return [Cell(self, library, security) for library in libraries for security in securities]


@dataclass(frozen=True, slots=True)
class Ended:
    """The connections that a cell ended, and between which times, µs since epoch.

    All were open at the first: their addresses were those of others before, and may be again.
    """

    connections: frozenset[Connection]
    since_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A cause, with the clients that it applies to."""

    cause: Cause
    library: Library
    security: Security

    def __str__(self) -> str:
        return f"{self.cause.name}, {self.library}, {self.security}"

    def inject(self, lab: Lab, count: int) -> Ended:
        """Close connections by the cause, once the gateway has the behaviour that the cause requires.

        Raises:
            LabError: fewer than `count` connections closed.
        """
        with lab.gateway.in_mode(self.cause.gateway_mode):
            used = self.cause.inject(lab, self.library, self.security, count)
            ended = Ended(frozenset(used.connections), used.since_us, injections.now_us())
        if len(ended.connections) < count:
            raise LabError(f"{self}: only {len(ended.connections)} of {count} connections ended")
        return ended


CAUSES = (
    Cause("client idle limit", "client_idle_limit", injections.client_idle_limit),
    Cause("broker idle limit", "broker_idle_limit", injections.broker_idle_limit),
    Cause("oversize record, acks=0", "rejected_request", injections.oversize, in_plaintext=True),
    Cause("unsupported version", "rejected_request", injections.unsupported_version, in_plaintext=True, by_hand=True),
    Cause("wrong password", "auth_failure", injections.wrong_password, in_plaintext=True),
    Cause("client killed", "process_exit", injections.killed_client),
    Cause("client left", "process_exit", injections.left_client),
    Cause("broker killed", "process_exit", injections.killed_broker),
    Cause("broker stopped", "broker_shutdown", injections.stopped_broker),
    Cause("client stopped", "normal", injections.stopped_client),
    Cause("silent client stopped", "normal", injections.stopped_silent_client),
    Cause("firewall drops", "middlebox_silent_drop", injections.middlebox, gateway_mode="drop"),
    Cause("firewall resets", "middlebox_reset", injections.middlebox, gateway_mode="reset"),
)
