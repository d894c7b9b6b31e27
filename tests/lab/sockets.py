"""Lists the TCP connections of a network namespace, from the kernel (`ss`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.lab.network import Connection, Namespace

_NONE = ("LISTEN", "TIME-WAIT")
_MAPPED = re.compile(r"\[::ffff:([\d.]+)\]")
_PID = re.compile(r"\bpid=(\d+)")
_SILENCE = re.compile(r"\blast(?:snd|rcv):(\d+)")


@dataclass(frozen=True, slots=True)
class Socket:
    """The client end of a connection, and the process that has it open, if one has.

    silent_ms: time since the last payload in either direction.
    """

    state: str
    connection: Connection
    pid: int | None
    silent_ms: int


def sockets(namespace: Namespace) -> list[Socket]:
    """Return the sockets of clients in the namespace, also closed ones that still send."""
    return [one for line in namespace.run("ss", "-HOtanpi").splitlines() if (one := _read(line)).state not in _NONE]


def _read(line: str) -> Socket:
    # A socket of IPv6 may use IPv4, as Java's do.
    state, _, _, local, peer, *_ = _MAPPED.sub(r"\1", line).split()
    owner = _PID.search(line)
    silences = [int(silence) for silence in _SILENCE.findall(line)]
    return Socket(state, Connection(local, peer), int(owner[1]) if owner else None, min(silences, default=0))
