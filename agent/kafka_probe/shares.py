"""How peers share a place of the agent that fills: a table or a queue, as bpf/share.h does it for the ring.

Up to half full the place takes everything. Above that each peer may take an eighth of it, and a quarter of what leaves
it meanwhile: so one peer alone cannot fill it. A peer is whom bpf/share.h takes for one: at a server end the
clients of an IPv4 address or of an IPv6 /64, at a client end a process.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from threading import RLock
from typing import Any

PEERS = 4096


def peer_of(side: str | None, endpoint: str, workload: Mapping[str, object]) -> str:
    """Return the peer of a connection, or of a reset if `side` is None. endpoint: the far end, address:port."""
    if side == "client":
        return f"process {workload.get('pid')}"
    address = endpoint.rpartition(":")[0]
    if not address.startswith("["):
        return address
    return str(ipaddress.ip_network((address.strip("[]"), 64), strict=False))


def peer_of_event(event: Mapping[str, Any]) -> str | None:
    """Return the peer that an event is about; None: it is not about one connection."""
    endpoint = event.get("peer")
    return endpoint and peer_of(event.get("side"), endpoint, event.get("workload", {}))


class Shares:
    """What peers have taken of a place above its half. Keeps the `PEERS` last that took any; others begin anew."""

    def __init__(self, place_bytes: int) -> None:
        self._place_bytes = place_bytes
        self._taken: dict[str, tuple[int, int]] = {}  # bytes, and how many had left the place when that was true

    def take(self, peer: str, size: int, used: int, gone: int = 0) -> bool:
        """Take so many bytes for a peer; False if it has no share left. used: of the place; gone: what has left it."""
        if used <= self._place_bytes // 2:
            return True
        taken, gone_then = self._taken.pop(peer, (0, gone))
        taken = max(0, taken - (gone - gone_then) // 4)
        fits = taken + size <= self._place_bytes // 8
        self._taken[peer] = taken + size * fits, gone
        if len(self._taken) > PEERS:
            del self._taken[next(iter(self._taken))]
        return fits


class SharedBudget:
    """Bytes that things take for as long as they are kept, shared by peers. What finds no place is counted in `losses`.

    Threads may share it: what one of them drops last gives its bytes back there.
    """

    def __init__(self, limit_bytes: int, losses: Counter[str]) -> None:
        self._limit_bytes = limit_bytes
        self._losses = losses
        self._shares = Shares(limit_bytes)
        self._gone_bytes = 0
        self._lock = RLock()
        self.used_bytes = 0

    def take(self, peer: str, size: int, loss: str, times: int = 1) -> bool:
        """Take so many bytes for a peer; False if there is no place, which is so many losses of that name."""
        with self._lock:
            fits = self.used_bytes + size <= self._limit_bytes and self._shares.take(
                peer, size, self.used_bytes, self._gone_bytes
            )
            self.used_bytes += size * fits
        if not fits:
            self._losses[loss] += times
        return fits

    def give_back(self, size: int) -> None:
        """Free what was taken."""
        with self._lock:
            self.used_bytes -= size
            self._gone_bytes += size
